"""The drivers of a gate's two pods: one holds its engine, the other one asks both and stores rows without any text."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from breakeven.upgrade.record import UpgradeFinding, UpgradeReport, UpgradeWord
from breakeven_operator import gate_driver
from breakeven_operator.driver import PointStore, RunGoneError, TrialEnvironment
from breakeven_operator.gate_driver import findings_of, run_gate
from breakeven_operator.resources.calibrationrun import CalibrationRun
from fakes.trial_run import TRIAL

pytestmark = pytest.mark.asyncio
READY = {"startedTime": "2026-11-30T12:00:00.000Z", "readyTime": "2026-11-30T12:00:40.000Z"}


def environment(arm: str, address: str | None = None) -> TrialEnvironment:
    trial = copy.deepcopy(TRIAL)
    trial["arm"] = {
        "arm": arm,
        "method": "eagle3",
        "k": 3,
        "candidate": "eagle",
        "speculativeConfig": '{"method": "eagle3"}',
    }
    trial |= {"otherAddress": address} if address else {}
    given = {"TRIAL": json.dumps(trial), "NAMESPACE": "llm", "URL": "https://10.0.0.2:8001"}
    return TrialEnvironment.read({f"BREAKEVEN_{name}": value for name, value in given.items()})


class Runs:
    """The run behind an API server; `changes` come one with each look."""

    def __init__(self, *changes: dict[str, Any]) -> None:
        self.run: dict[str, Any] = {
            "metadata": {"namespace": "llm", "name": "chat-7f3c2", "uid": "u"},
            "spec": {"serviceRef": {"name": "chat"}, "gate": ["vllm:v0.31.0", "vllm:v0.32.0"]},
            "status": {"phase": "Measuring", "startedTime": READY["startedTime"]},
        }
        self.changes = list(changes)
        self.applied: list[dict[str, Any]] = []

    async def get(self, *_: Any) -> dict[str, Any]:
        if self.changes:
            self.run["status"] |= self.changes.pop(0)
        return copy.deepcopy(self.run)

    async def apply(self, _: Any, body: dict[str, Any], **given: Any) -> dict[str, Any]:
        self.applied.append({"status": body["status"], "manager": given["manager"]})
        return CalibrationRun.read(self.run, "the run").to_json_object()


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    return waits


def starts(*arms: str) -> dict[str, Any]:
    return {"armStatuses": [{"arm": one, **(READY if one in arms else {})} for one in ("before", "after")]}


FOUND = {"findings": [{"figure": "upgrade", "word": "Same"}]}


async def test_the_pod_of_before_holds_its_engine_until_the_findings_are_there(slept: list[float]) -> None:
    trial = environment("before")
    without = {"findings": [{"figure": "answers", "word": "Same"}]}
    runs = Runs({}, {}, without, FOUND)
    assert await run_gate(trial, PointStore(trial, runs)) == "both engines were asked"
    assert len(slept) == 3, "what is noted before the fields is no end"


async def test_the_pod_of_before_ends_with_its_run() -> None:
    trial = environment("before")
    with pytest.raises(RunGoneError):
        await run_gate(trial, PointStore(trial, Runs({}, {"phase": "Failed"})))


@pytest.mark.parametrize(
    ("address", "url"), [("10.0.0.1", "https://10.0.0.1:8001"), ("fd00::1", "https://[fd00::1]:8001")]
)
async def test_the_driver_of_now_asks_both_and_stores_what_was_found(
    monkeypatch: pytest.MonkeyPatch, address: str, url: str
) -> None:
    asked: list[Any] = []

    async def tried(*given: Any) -> UpgradeReport:
        asked.extend(given)
        slower = UpgradeFinding(
            "tpot_s at 8 clients", 0.02, 0.025, 1.25, (1.2, 1.3), UpgradeWord.SLOWER, "25 % longer"
        )
        start = UpgradeFinding("start_s", 40.0, 41.0, None, None, None, "40 s before")
        return UpgradeReport(
            UpgradeWord.SLOWER, (slower, start), versions={"before": "0.31.0", "after": "0.32.0"}
        )

    monkeypatch.setattr(gate_driver, "try_upgrade", tried)
    trial, runs = environment("after", address), Runs(starts(), starts("before"), starts("before", "after"))
    assert await run_gate(trial, PointStore(trial, runs)) == "Slower"
    before, after, plan, _, note = asked
    assert (before.url, after.url) == (url, "https://10.0.0.2:8001")
    assert before.model == after.model == "tiny"
    assert plan.arm.name == "eagle/3"
    assert plan.start_s == (40.0, 40.0)
    assert plan.max_seconds == 1.0, "the run began long ago: the budget is over"
    await note(
        UpgradeReport(UpgradeWord.SLOWER, (UpgradeFinding("answers", None, None, None, None, None, "alike"),))
    )
    written, noted = runs.applied
    assert noted["status"] == {"findings": [{"figure": "answers", "message": "alike"}]}
    assert written["manager"] == "breakeven-trial-after"
    assert written["status"] == {
        "findings": [
            {"figure": "upgrade", "word": "Slower", "message": "25 % longer; 0.31.0 against 0.32.0"},
            {"figure": "tpot_s at 8 clients", "word": "Slower", "message": "25 % longer"},
            {"figure": "start_s", "message": "40 s before"},
        ]
    }


async def test_an_undecided_gate_says_what_a_decision_takes() -> None:
    (verdict,) = findings_of(UpgradeReport(UpgradeWord.UNDECIDED, needs="twenty minutes more"))
    assert (verdict.word, verdict.message) == ("Undecided", "twenty minutes more")
