"""The lines that a dry run shows: one for each kind of action, with what it would do."""

from __future__ import annotations

import pytest

from breakeven_operator.actions import (
    Action,
    ActionPlan,
    Create,
    Delete,
    EmitEvent,
    Fit,
    WriteAnnotation,
    WriteProposal,
    WriteStatus,
)
from breakeven_operator.cluster.writer import DryRun
from breakeven_operator.kinds import RUNS, SERVICES, Ref

CHAT, RUN = Ref(SERVICES, "llm", "chat"), Ref(RUNS, "llm", "chat-1")


@pytest.mark.parametrize(
    ("action", "shown"),
    [
        (WriteAnnotation(CHAT, "null", 1), "set breakeven.dev/speculative-config of {chat} to null"),
        (WriteAnnotation(CHAT, None, 1, force=True), "set breakeven.dev/speculative-config of {chat} to nothing by force"),
        (WriteProposal(CHAT, None), "set breakeven.dev/next-rollout of {chat} to nothing"),
        (WriteStatus(CHAT, {"decision": {"action": "Hold", "reason": "NoProfile"}}), "write the status of {chat}: Hold NoProfile"),
        (WriteStatus(CHAT, {}), "write the status of {chat}"),
        (EmitEvent(CHAT, "Resumed", "by hand"), "say on {chat}: Resumed: by hand"),
        (Create(RUNS, {"metadata": {"namespace": "llm", "name": "chat-1"}}), "create {run}"),
        (Delete(RUN), "delete {run}"),
        (Fit(RUN, "method,k\nnone,0\nnone,0\n"), "fit 2 points of {run}"),
    ],
)  # fmt: skip
async def test_each_action_is_one_line(action: Action, shown: str):
    lines: list[str] = []
    await DryRun(lines.append).carry_out(ActionPlan(CHAT, (action,)))
    chat, run = "SpeculativeService/llm/chat", "CalibrationRun/llm/chat-1"
    assert lines == [f"{chat}: {shown.format(chat=chat, run=run)}"]
