"""Surroundings of a trial driver: its environment, and the CalibrationRun that takes its points."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from breakeven_operator.driver import TrialEnvironment
from breakeven_operator.kinds import RUNS, Resource
from breakeven_operator.ports import ClusterError
from breakeven_operator.resources.calibrationrun import CalibrationRun


class StoredRun:
    """One CalibrationRun behind an API server that may misbehave."""

    def __init__(self, run: dict[str, Any]) -> None:
        self.run = run
        self.applied: list[tuple[str, int]] = []
        self.fail_with: list[ClusterError] = []
        self.first_write = asyncio.Event()

    async def get(self, resource: Resource, namespace: str, name: str) -> Any:
        assert (resource, namespace, name) == (RUNS, "llm", "chat-7f3c2")
        return json.loads(json.dumps(self.run)) if self.run else None

    async def apply(
        self, resource: Resource, body: dict[str, Any], *, force: bool, subresource: str, manager: str
    ) -> dict[str, Any]:
        if self.fail_with:
            raise self.fail_with.pop(0)
        assert (resource, subresource, force) == (RUNS, "status", True)
        points = body["status"]["points"]
        assert list(body["status"]) == ["points"]
        arm = {point["arm"] for point in points}
        others = [point for point in self.run["status"].get("points", []) if point["arm"] not in arm]
        self.run["status"]["points"] = others + points
        self.applied.append((manager, len(points)))
        self.first_write.set()
        CalibrationRun.read(self.run, "run")
        return self.run


def trial_environment(url: str, arm: str = "eagle/2", **changes: str) -> TrialEnvironment:
    """The driver's environment as the Job gives it."""
    method, _, k = arm.partition("/")
    env = {
        "BREAKEVEN_NAMESPACE": "llm",
        "BREAKEVEN_RUN": "chat-7f3c2",
        "BREAKEVEN_ARM": arm,
        "BREAKEVEN_METHOD": "eagle3" if k else "none",
        "BREAKEVEN_K": k or "0",
        "BREAKEVEN_CANDIDATE": method if k else "",
        "BREAKEVEN_URL": url,
        "BREAKEVEN_MODEL": "tiny",
        "BREAKEVEN_LOADS": "3",
        "BREAKEVEN_PROMPT_TOKENS": "30",
        "BREAKEVEN_OUTPUT_TOKENS": "30",
        "BREAKEVEN_POINT_SECONDS": "1",
        "BREAKEVEN_WARMUP_SECONDS": "0",
        "BREAKEVEN_MAX_SECONDS": "60",
        "BREAKEVEN_MAX_CONCURRENCY": "8",
    }
    return TrialEnvironment.read(env | changes)
