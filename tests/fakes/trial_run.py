"""NearbyObjects of a trial driver: its environment, and the CalibrationRun that takes its points."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

from breakeven_operator.driver import TrialEnvironment
from breakeven_operator.kinds import RUNS, Resource
from breakeven_operator.ports import ClusterError
from breakeven_operator.resources.base import AGAIN
from breakeven_operator.resources.calibrationrun import CalibrationRun

TRIAL: dict[str, Any] = {
    "run": "chat-7f3c2",
    "plan": {
        "loads": 3,
        "promptTokens": 30,
        "outputTokens": 30,
        "pointSeconds": 1,
        "warmupSeconds": 0,
        "startupDeadlineSeconds": 600,
        "pendingDeadlineSeconds": 600,
        "budget": {"maxGpuSeconds": 600, "maxDurationSeconds": 600},
        "target": "chat-vllm",
        "containerName": "vllm",
        "servedModelName": "tiny",
        "gpuProduct": "A100",
        "fingerprint": "f",
    },
    "maxSeconds": 60,
    "maxConcurrency": 8,
}


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


def trial_environment(
    url: str,
    arm: str = "eagle/2",
    *,
    job_uid: str = "",
    answers: str = "",
    node: str = "",
    **changes: Any,
) -> TrialEnvironment:
    """The driver's environment as the Job gives it.

    Args:
        url: of the engine.
        arm: which arm is measured.
        job_uid, answers, node: the Job's uid, the folder of kept answers, and the pod's node.
        changes: other fields of the plan (`loads`), of the arm (`arm_k`) and of the document (`trial_run`), as in JSON.
    """
    method, _, k = arm.removesuffix(AGAIN).partition("/")
    trial = copy.deepcopy(TRIAL)
    config = {"method": "eagle3", "num_speculative_tokens": int(k or 0)} if k else None
    planned = {"arm": arm, "method": "eagle3" if k else "none", "k": int(k or 0)}
    trial["arm"] = planned | {"speculativeConfig": json.dumps(config)} | ({"candidate": method} if k else {})
    parts = {"arm": trial["arm"], "trial": trial, "plan": trial["plan"]}
    for name, value in changes.items():
        part, _, field = name.rpartition("_")
        parts[part or "plan"][field] = value
    given = {"TRIAL": json.dumps(trial), "NAMESPACE": "llm", "URL": url}
    given |= {"JOB_UID": job_uid, "ANSWERS": answers, "NODE": node}
    return TrialEnvironment.read({f"BREAKEVEN_{name}": value for name, value in given.items()})
