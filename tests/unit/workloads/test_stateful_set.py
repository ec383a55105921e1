"""A StatefulSet's own facts: its revisions, how far an update is, what holds one back, and volumes of each pod's own."""

from __future__ import annotations

import copy
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from breakeven.serving.rolling import unshareable
from breakeven_operator.workloads.known import STATEFUL_SET
from breakeven_operator.workloads.object_facts import refusal_of
from breakeven_operator.workloads.workload import NearbyObjects, Workload, observe
from fakes.fleet_world import TARGET, as_stateful_set

NOW = datetime(2026, 11, 25, tzinfo=UTC)
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}}


def stateful(**spec: Any) -> dict[str, Any]:
    target = as_stateful_set(TARGET)
    target["metadata"] |= {"uid": "s", "generation": 4}
    target["spec"] |= spec
    return target


def status(**changes: Any) -> dict[str, Any]:
    """All of two pods run revision b."""
    return {
        "observedGeneration": 4,
        "replicas": 2,
        "readyReplicas": 2,
        "availableReplicas": 2,
        "currentReplicas": 2,
        "updatedReplicas": 2,
        "currentRevision": "chat-vllm-b",
        "updateRevision": "chat-vllm-b",
        **changes,
    }


def pod(name: str, revision: str, owner: str = "s", *, ready: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": NOW.isoformat()}]
    container = {"name": "vllm", "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    return {
        "metadata": {
            "name": name,
            "uid": f"{name}/{revision}",
            "labels": {"controller-revision-hash": revision},
            "ownerReferences": [
                {"kind": "StatefulSet", "name": "chat-vllm", "uid": owner, "controller": True}
            ],
        },
        "status": {"conditions": conditions, **({} if ready else {"containerStatuses": [container]})},
    }


def observed(target: dict[str, Any], *pods: dict[str, Any]) -> Workload:
    around = NearbyObjects(pods=pods)
    return observe(STATEFUL_SET, target, around, container_name=None, gpu_label="gpu", now=NOW)


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("chat-0", "chat"),
        ("chat-large-0", "chat-large"),
        ("chat-7d9f8b6c5d-x2b4c", None),
        # Five digits may be the letters at the end of a ReplicaSet's pod, or of a calibration's.
        ("chat-7f3c2-eagle-24567", None),
    ],
)
def test_a_pod_of_the_past_is_known_by_its_ordinal(name: str, workload: str | None) -> None:
    found = re.fullmatch(STATEFUL_SET.pod_name, name)
    assert (found[1] if found else None) == workload


@pytest.mark.parametrize(
    ("ready_after_s", "startup_s"),
    [
        ([40.0], 40.0),
        ([40.0, 60.0, 50.0], 50.0),
        # One probe has missed after half an hour, all have after hours, or none has.
        ([40.0, 1800.0, 60.0], 60.0),
        ([40.0, 54_000.0], 40.0),
        ([54_000.0, 7200.0], None),
        ([1500.0, 1600.0], 1500.0),
    ],
)
def test_a_probe_that_missed_is_no_start_of_an_engine(
    ready_after_s: list[float], startup_s: float | None
) -> None:
    pods = [pod(f"chat-vllm-{number}", "chat-vllm-b") for number in range(len(ready_after_s))]
    for one, after_s in zip(pods, ready_after_s, strict=True):
        placed = (NOW - timedelta(seconds=after_s)).isoformat()
        one["status"]["conditions"] += [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": placed}
        ]
    assert observed(stateful() | {"status": status()}, *pods).startup_s == startup_s


def test_pods_are_its_own_by_their_owner_and_new_by_their_revision() -> None:
    target = stateful() | {"status": status(currentRevision="chat-vllm-a")}
    found = observed(
        target,
        pod("chat-vllm-0", "chat-vllm-a"),
        pod("chat-vllm-1", "chat-vllm-b"),
        # Of a template that was undone: neither the current revision nor the one that is asked for.
        pod("chat-vllm-2", "chat-vllm-c", ready=False),
        pod("chat-vllm-3", "chat-vllm-b", owner="another"),
    )
    assert [(one.name, one.current) for one in found.pods] == [
        ("chat-vllm-0", False),
        ("chat-vllm-1", True),
        ("chat-vllm-2", False),
    ]
    assert found.newest_revision == "chat-vllm-b"


@pytest.mark.parametrize(
    ("changes", "rolled_out"),
    [
        ({}, True),
        # An API server that leaves the number out, or as it was, after an update has ended.
        ({"updatedReplicas": None}, True),
        ({"updatedReplicas": 0}, True),
        ({"currentRevision": "chat-vllm-a", "currentReplicas": 1, "updatedReplicas": 1}, False),
        ({"currentRevision": "chat-vllm-a", "currentReplicas": 0}, True),
        # The template was taken back: a pod of the revision between is still there.
        ({"currentReplicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}, False),
        ({"availableReplicas": None}, True),
        ({"availableReplicas": None, "readyReplicas": 1}, False),
        ({"observedGeneration": 3}, False),
        ({"replicas": 3}, False),
    ],
)
def test_an_update_has_ended_if_all_pods_are_of_the_newest_revision(
    changes: dict[str, Any], rolled_out: bool
) -> None:
    found = {name: value for name, value in status(**changes).items() if value is not None}
    assert observed(stateful() | {"status": found}).rolled_out is rolled_out


def test_an_update_that_has_replaced_no_pod_yet_has_not_ended() -> None:
    counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas", "currentReplicas"), 1)
    found = status(currentRevision="chat-vllm-a", **counts)
    # Kubernetes leaves a number of 0 out.
    del found["updatedReplicas"]
    assert not observed(stateful(replicas=1) | {"status": found}).rolled_out


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"type": "OnDelete"}, "OnDelete"),
        ({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}, "partition 1"),
        ({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}, None),
        ({"type": "RollingUpdate"}, None),
        (None, None),
    ],
)
def test_a_strategy_that_leaves_old_pods_holds_a_roll(strategy: Any, said: str | None) -> None:
    held = observed(stateful(updateStrategy=strategy)).held
    assert held is None if said is None else said in str(held)


@pytest.mark.parametrize(
    ("unavailable", "replicas", "expected"),
    [(None, 4, 1), (2, 4, 2), ("50%", 5, 2), ("10%", 4, 1), (None, 0, 1)],
)
def test_it_has_no_surge_and_goes_pod_by_pod(unavailable: Any, replicas: int, expected: int) -> None:
    rolling = {"partition": 0} | ({} if unavailable is None else {"maxUnavailable": unavailable})
    found = observed(stateful(replicas=replicas, updateStrategy={"rollingUpdate": rolling}))
    assert (found.max_surge, found.max_unavailable) == (0, expected)


def test_a_broken_pod_of_a_template_that_was_taken_back_is_named_with_the_command_that_ends_it() -> None:
    target = stateful() | {"status": status()}
    serving, broken = pod("chat-vllm-0", "chat-vllm-b"), pod("chat-vllm-1", "chat-vllm-c", ready=False)
    said = observed(target, serving, broken).blocked_words()
    assert said.endswith("kubectl delete pod chat-vllm-1 --namespace llm")
    assert "pod chat-vllm-1, container vllm does not start" in said


def event(reason: str, minute: int, note: str = "exceeded quota: few") -> dict[str, Any]:
    return {"reason": reason, "note": note, "metadata": {}, "eventTime": f"2026-11-25T00:{minute:02}:00Z"}


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], ""),
        ([event("FailedCreate", 5), event("SuccessfulCreate", 1)], "exceeded quota: few"),
        ([event("FailedCreate", 5), event("SuccessfulCreate", 6)], ""),
        ([event("FailedCreate", 1, "denied"), event("FailedCreate", 5)], "exceeded quota: few"),
        ([event("FailedCreate", 1), event("RecreatingFailedPod", 9)], "exceeded quota: few"),
    ],
)
def test_a_refusal_is_over_once_a_pod_has_been_made(events: list[dict[str, Any]], said: str) -> None:
    assert refusal_of(iter(events)) == said


def test_a_refused_pod_is_a_trouble_while_pods_are_lacking() -> None:
    lacking = stateful() | {"status": status(replicas=1, updatedReplicas=1, currentReplicas=1)}
    around = NearbyObjects(warnings={"s": 'pods "chat-vllm-1" is forbidden: exceeded quota: few'})
    for target, expected in ((lacking, "QuotaExceeded"), (stateful() | {"status": status()}, None)):
        found = observe(STATEFUL_SET, target, around, container_name=None, gpu_label="gpu", now=NOW)
        assert (found.trouble.reason if found.trouble else None) == expected


def test_nothing_is_deleted_by_hand_if_the_controller_goes_on_or_has_yet_to_see_the_change() -> None:
    serving, broken = pod("chat-vllm-0", "chat-vllm-b"), pod("chat-vllm-1", "chat-vllm-c", ready=False)
    parallel = stateful(podManagementPolicy="Parallel") | {"status": status()}
    unseen = stateful() | {"status": status(observedGeneration=3)}
    coming = copy.deepcopy(broken) | {"status": {"conditions": []}}
    for target, other in ((parallel, broken), (unseen, broken), (stateful() | {"status": status()}, coming)):
        assert observed(target, serving, other).blocked_words() == ""
    # One that hangs says nothing of itself.
    late = observed(stateful() | {"status": status()}, serving, coming).blocked_words(in_vain=True)
    assert "kubectl delete pod chat-vllm-1 " in late


def test_a_copy_gets_a_volume_of_its_own_in_place_of_a_pods_claim() -> None:
    target = stateful(volumeClaimTemplates=[{"metadata": {"name": "cache"}, "spec": CLAIM, "status": {}}])
    shared = {"name": "prompts", "configMap": {"name": "prompts"}}
    shadowed = {"name": "cache", "emptyDir": {}}
    target["spec"]["template"]["spec"]["volumes"] = [shared, shadowed]
    found = observed(target)
    assert found.engine is not None
    volumes = found.engine.pod_spec["volumes"]
    assert volumes == [shared, {"name": "cache", "ephemeral": {"volumeClaimTemplate": {"spec": CLAIM}}}]
    of_pods = {"metadata": {"name": "cache-chat-vllm-0"}, "spec": CLAIM}
    assert unshareable(found.engine.pod_spec, [of_pods]) is None
    # The object itself stays as it is.
    assert target["spec"]["template"]["spec"]["volumes"] == [shared, shadowed]
