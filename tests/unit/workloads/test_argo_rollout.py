"""An Argo Rollout's own facts: its ReplicaSets by hash, what of its user's holds a roll, an abort, a template elsewhere."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from breakeven.serving.opt_in import ANNOTATION
from breakeven_operator.cluster.api_json import problem_of, read_object
from breakeven_operator.kinds import ARGO_ROLLOUTS
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.targetstatus import HistoryResult, Rollout, RolloutPhase
from breakeven_operator.resources.updatepolicy import PRODUCTION
from breakeven_operator.rolls.rollout import watch
from breakeven_operator.step import RolloutContext, RolloutStep
from breakeven_operator.workloads.known import ARGO_ROLLOUT
from breakeven_operator.workloads.target import refuse_rolls
from breakeven_operator.workloads.workload import NearbyObjects, Workload, observe
from fakes.cases import CHAT
from fakes.fleet_world import SERVICE, TARGET

NOW = datetime(2026, 11, 26, tzinfo=UTC)
SPEC = SpeculativeService.read(
    {**SERVICE, "metadata": {"name": "chat", "namespace": "llm", "uid": "u"}}, "service"
).spec


def rollout(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    target = copy.deepcopy(TARGET)
    target["metadata"] |= {"namespace": "llm", "uid": "r", "generation": 4}
    target["spec"] |= {"strategy": {"canary": {"maxSurge": 1, "maxUnavailable": 0}}, **spec}
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 2)
    # The number is a text in the status of a Rollout.
    target["status"] = {"observedGeneration": "4", "currentPodHash": "b", **counts, **(status or {})}
    return target


def replica_set(template_hash: str, owner: str = "r") -> dict[str, Any]:
    meta = {
        "name": f"chat-vllm-{template_hash}",
        "uid": f"{owner}/{template_hash}",
        "labels": {"rollouts-pod-template-hash": template_hash},
        "ownerReferences": [{"kind": "Rollout", "name": "chat-vllm", "uid": owner, "controller": True}],
    }
    return {"metadata": meta}


def pod(template_hash: str, owner: str = "r") -> dict[str, Any]:
    name = f"chat-vllm-{template_hash}"
    reference = {"kind": "ReplicaSet", "name": name, "uid": f"{owner}/{template_hash}", "controller": True}
    return {"metadata": {"name": f"{name}-x2b4c", "uid": f"{name}-x2b4c", "ownerReferences": [reference]}}


def observed(target: dict[str, Any], *pods: dict[str, Any]) -> Workload:
    makers = [replica_set("a"), replica_set("b"), replica_set("b", "another")]
    around = NearbyObjects(makers=makers, pods=pods)
    return observe(ARGO_ROLLOUT, target, around, container_name=None, gpu_label="gpu", now=NOW)


def test_the_newest_pods_are_those_of_the_hash_that_its_controller_names() -> None:
    found = observed(rollout(), pod("a"), pod("b"), pod("b", "another"))
    assert [(one.revision, one.current) for one in found.pods] == [
        ("chat-vllm-a", False),
        ("chat-vllm-b", True),
    ]
    assert found.newest_revision == "chat-vllm-b"
    assert observed(rollout({"currentPodHash": ""}), pod("a")).newest_revision is None


@pytest.mark.parametrize(
    ("status", "rolled_out"),
    [
        ({}, True),
        ({"observedGeneration": "3"}, False),
        ({"updatedReplicas": 1}, False),
        # The old pods stand beside the new ones for a while after a switch of traffic.
        ({"replicas": 4}, False),
        ({"availableReplicas": 1}, False),
    ],
)
def test_an_update_has_ended_if_all_pods_are_new_and_available(
    status: dict[str, Any], rolled_out: bool
) -> None:
    assert observed(rollout(status)).rolled_out is rolled_out


RUNNING = {"name": "a", "status": "Running"}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, None),
        ({"pauseConditions": [{"reason": "CanaryPauseStep"}]}, "its pause holds it"),
        ({"canary": {"currentStepAnalysisRunStatus": RUNNING}}, "its analysis holds it"),
        ({"canary": {"currentStepAnalysisRunStatus": {**RUNNING, "status": "Successful"}}}, None),
        # One that runs beside all steps holds none of them.
        ({"canary": {"currentBackgroundAnalysisRunStatus": RUNNING}}, None),
        ({"canary": {"currentExperiment": "e"}}, "its experiment holds it"),
        ({"blueGreen": {"prePromotionAnalysisRunStatus": RUNNING}}, "its analysis holds it"),
    ],
)
def test_what_of_its_user_s_holds_a_roll(status: dict[str, Any], said: str | None) -> None:
    assert observed(rollout(status)).waits == said


def test_a_pause_and_an_abort_hold_a_roll_that_has_not_begun() -> None:
    assert observed(rollout()).held is None
    assert "resume" in str(observed(rollout(paused=True)).held)
    aborted = observed(rollout({"abort": True}))
    assert aborted.aborted is not None
    assert "retry or undo" in str(aborted.held)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({"canary": {}}, (2, 2)),
        ({"canary": {"maxSurge": 1, "maxUnavailable": 0}}, (1, 0)),
        ({"canary": {"maxSurge": 0, "maxUnavailable": 0}}, (0, 1)),
        ({"canary": {"trafficRouting": {"nginx": {}}, "maxSurge": 1}}, (8, 0)),
        ({"blueGreen": {"activeService": "a"}}, (8, 0)),
        ({"blueGreen": {}}, (8, 0)),
    ],
)
def test_behind_a_switch_of_traffic_all_new_pods_stand_beside_the_old_ones(
    strategy: dict[str, Any], expected: tuple[int, int]
) -> None:
    found = observed(rollout(replicas=8, strategy=strategy))
    assert (found.max_surge, found.max_unavailable) == expected


def test_what_its_controller_writes_beside_the_status_is_nobody_s_change() -> None:
    def entry(manager: str, minute: int) -> dict[str, Any]:
        return {"manager": manager, "time": (NOW + timedelta(minutes=minute)).isoformat()}

    target = rollout()
    target["metadata"]["managedFields"] = [entry("helm", 1), entry("rollouts-controller", 2)]
    assert observed(target).last_writer == "helm"


def test_a_template_in_another_object_is_read_off_pods_and_not_rolled() -> None:
    text = '{"metadata": {"name": "chat", "uid": "r"}, "spec": {"workloadRef": {"kind": "Deployment", "name": "d"}}}'
    assert problem_of(read_object(text.encode(), ARGO_ROLLOUTS)) is None
    refused = refuse_rolls(SPEC, observed(rollout(workloadRef={"kind": "Deployment", "name": "d"}), pod("b")))
    assert refused is not None
    assert refused.reason == "TargetOwned"
    assert "takes its pod template from Deployment d" in refused.message
    assert refuse_rolls(SPEC, observed(rollout(), pod("b"))) is None


VALUE = '{"method":"eagle3"}'


def watched(status: dict[str, Any], left_s: float) -> RolloutStep:
    """One look at a roll of which so much time is left."""
    target = rollout({"updatedReplicas": 1, "replicas": 3, **status})
    target["spec"]["template"]["metadata"]["annotations"] = {ANNOTATION: VALUE}
    under_way = Rollout(
        id="r1",
        from_arm="none",
        to_arm="eagle/3",
        reason="Pays",
        phase=RolloutPhase.ROLLING,
        value=VALUE,
        started_time=NOW - timedelta(hours=1),
        deadline_time=NOW + timedelta(seconds=left_s),
        from_replica_set="chat-vllm-a",
    )
    return watch(
        RolloutContext(
            PRODUCTION,
            observed(target, pod("a"), pod("b")),
            MemoryStatus(written_value=VALUE),
            under_way,
            True,
            20.0,
            deadline_s=600.0,
            now=NOW,
            service=CHAT,
        )
    )


PAUSED = {"pauseConditions": [{"reason": "CanaryPauseStep"}]}


@pytest.mark.parametrize(
    ("status", "left_s", "expected_s"),
    [
        ({}, 200.0, 200.0),
        (PAUSED, 500.0, 500.0),
        # Not at each look, which would write the status each time.
        (PAUSED, 200.0, 600.0),
        (PAUSED, -5.0, 600.0),
    ],
)
def test_while_its_user_holds_a_roll_half_of_its_time_is_left(
    status: dict[str, Any], left_s: float, expected_s: float
) -> None:
    step = watched(status, left_s)
    assert step.rollout is not None
    assert step.rollout.phase is RolloutPhase.ROLLING
    assert step.rollout.deadline_time == NOW + timedelta(seconds=expected_s)
    assert ("its pause holds it" in step.message) is bool(status)


def test_without_a_pause_a_late_roll_is_undone() -> None:
    step = watched({}, -5.0)
    assert step.rollout is not None
    assert step.rollout.phase is RolloutPhase.UNDOING


def test_an_abort_ends_the_roll_and_writes_nothing() -> None:
    step = watched({"abort": True}, 300.0)
    assert (step.rollout, step.write) == (None, None)
    assert [entry.result for entry in step.ended] == [HistoryResult.SUPERSEDED]
    assert [event.reason for event in step.events] == ["RollAborted"]
    assert step.memory.written_value == VALUE
    assert step.memory.failures == 0
