"""The trouble that keeps a pod from coming, from its conditions, its containers and its events."""

from __future__ import annotations

from typing import Any

from breakeven_operator.workloads.object_facts import Patience, is_silent, not_started, trouble_of, warning_of

SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-06-01T12:00:00Z"}
CREATING = {"name": "vllm", "image": "vllm:1", "state": {"waiting": {"reason": "ContainerCreating"}}}
MULTI_ATTACH = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) chat-1-a'


def pod(*containers: dict[str, Any], conditions: tuple[dict[str, Any], ...] = (SCHEDULED,)) -> dict[str, Any]:
    meta = {"name": "chat-2-b", "creationTimestamp": "2026-06-01T12:00:00Z"}
    return {
        "metadata": meta,
        "status": {"conditions": list(conditions), "containerStatuses": list(containers)},
    }


def event(reason: str, second: float, note: str = "said", kind: str = "Warning") -> dict[str, Any]:
    """An event of an old recorder (whole seconds), or of the scheduler."""
    time = f"2026-06-01T12:00:{second:09.6f}Z"
    field = {"eventTime": time} if second % 1 else {"deprecatedLastTimestamp": time}
    return {"metadata": {}, "reason": reason, "type": kind, "note": note, **field}


def test_a_volume_that_another_node_holds_is_said_in_the_attachers_words():
    waiting = pod(CREATING)
    events = [
        event("Scheduled", 0.7, kind="Normal"),
        event("FailedAttachVolume", 0, MULTI_ATTACH),
        event("FailedMount", 40, "Unable to attach or mount volumes: timed out"),
    ]
    warning = warning_of(waiting, events)
    found = trouble_of(waiting, (), warning)
    assert found is not None
    assert (str(found.reason), found.patience) == ("VolumeNotShareable", Patience.PLACE)
    assert MULTI_ATTACH in found.message


def test_a_volume_that_cannot_be_mounted_is_said():
    waiting = pod(CREATING)
    found = trouble_of(
        waiting, (), warning_of(waiting, [event("FailedMount", 3, 'configmap "model" not found')])
    )
    assert found is not None
    assert str(found.reason) == "EngineNotStarting"
    assert found.message == 'pod chat-2-b: FailedMount: configmap "model" not found'


def test_a_warning_before_the_image_is_pulled_is_over():
    """Twenty gigabytes take twenty minutes: meanwhile nothing but an old event says that anything is wrong."""
    events = [event("FailedMount", 1, "not cached yet"), event("Pulling", 2, kind="Normal")]
    assert warning_of(pod(CREATING), events) == ""


def test_a_slow_start_is_no_trouble_whatever_events_say():
    starting = pod({"name": "vllm", "image": "vllm:1", "imageID": "vllm@sha256:1", "state": {"running": {}}})
    assert not is_silent(starting)
    assert warning_of(starting, [event("Unhealthy", 9, "Startup probe failed")]) == ""
    assert trouble_of(starting, (), "FailedMount: long ago") is None


def test_a_scheduler_that_speaks_in_events_alone_is_heard():
    unplaced = pod(conditions=())
    events = [event("FailedScheduling", 5.5, "no queue has room")]
    assert is_silent(unplaced)
    found = trouble_of(unplaced, (), warning_of(unplaced, events))
    assert found is not None
    assert (str(found.reason), found.message) == (
        "Unschedulable",
        "pod chat-2-b has no node: FailedScheduling: no queue has room",
    )
    # With a node at last, that is over.
    assert warning_of(pod(CREATING), events) == ""


def test_what_says_its_trouble_itself_is_not_silent():
    refused = {**SCHEDULED, "status": "False", "message": "0/3 nodes are available"}
    pulling = CREATING | {"state": {"waiting": {"reason": "ErrImagePull"}}}
    assert not is_silent(pod(conditions=(refused,)))
    assert not is_silent(pod(pulling))
    gone = pod(CREATING)
    gone["metadata"]["deletionTimestamp"] = "2026-06-01T12:00:00Z"
    assert not is_silent(gone)


def test_an_image_that_does_not_come_is_named():
    waits = {"reason": "ImagePullBackOff", "message": "Back-off pulling"}
    found = not_started(pod(CREATING | {"image": "registry/none:1", "state": {"waiting": waits}}))
    assert found is not None
    assert "image registry/none:1 of pod chat-2-b" in found.message
