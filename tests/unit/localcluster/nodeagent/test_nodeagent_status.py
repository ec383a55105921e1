"""The status a pod gets from its containers' states."""

import dataclasses

import pytest

from fakes.node_pods import WHERE, make_pod
from localcluster.nodeagent.pod_lifecycle import LifecycleStep
from localcluster.nodeagent.states import ContainerState, Running, Terminated, Waiting
from localcluster.nodeagent.status import PodVerdict, pod_status, restored, seconds, timestamp

RUNNING = ContainerState(
    Running(100.0), restarts=2, last=Terminated(1, "Error", 10.0, 20.0, "boom", "process://old"), started=True,
    ready=True, container_id="process://new", image="busybox", image_id="busybox@sha256:0",
)  # fmt: skip
DONE = ContainerState(Terminated(0, "Completed", 100.0, 160.0))
FAILED = ContainerState(Terminated(3, "Error", 100.0, 160.0))


def status(pod, step=None, states=None, **more):
    known = {c.name: (states or {}).get(c.name, ContainerState()) for c in pod.containers}
    return pod_status(pod, known, step or LifecycleStep(initialized=True), WHERE, 50.0, 200.0, **more)


def conditions(found):
    return {c["type"]: (c["status"], c["reason"]) for c in found["conditions"]}


def test_a_running_pod():
    found = status(make_pod(), states={"main": RUNNING})
    assert (found["phase"], found["podIP"], found["hostIP"]) == ("Running", "127.64.0.2", "127.64.0.1")
    assert found["observedGeneration"] == 3
    assert conditions(found) == dict.fromkeys(
        ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"], ("True", None)
    )
    (container,) = found["containerStatuses"]
    assert container["state"] == {"running": {"startedAt": "1970-01-01T00:01:40Z"}}
    assert container["lastState"]["terminated"] == {
        "exitCode": 1, "reason": "Error", "message": "boom", "containerID": "process://old",
        "startedAt": "1970-01-01T00:00:10Z", "finishedAt": "1970-01-01T00:00:20Z",
    }  # fmt: skip
    assert (container["restartCount"], container["ready"], container["started"]) == (2, True, True)


@pytest.mark.parametrize(
    ("step", "state", "policy", "phase", "reason"),
    [
        (LifecycleStep(), ContainerState(), "Always", "Pending", "ContainersNotReady"),
        (
            LifecycleStep(initialized=True),
            ContainerState(Waiting("ErrImagePull")),
            "Always",
            "Pending",
            "ContainersNotReady",
        ),
        (LifecycleStep(initialized=True), FAILED, "Always", "Running", "ContainersNotReady"),
        (LifecycleStep(initialized=True, finished=True), DONE, "Never", "Succeeded", "PodCompleted"),
        (LifecycleStep(initialized=True, finished=True), FAILED, "Never", "Failed", "PodFailed"),
        (LifecycleStep(finished=True, failed_init=True), ContainerState(), "Never", "Failed", "PodFailed"),
    ],
)
def test_phases(step, state, policy, phase, reason):
    found = status(make_pod(restartPolicy=policy), step, {"main": state})
    assert found["phase"] == phase
    assert conditions(found)["Ready"] == ("False", reason)


def test_sidecars_count_for_readiness_and_init_containers_do_not():
    pod = make_pod(initContainers=[{"name": "once"}, {"name": "proxy", "restartPolicy": "Always"}])
    states = {"once": DONE, "proxy": ContainerState(Running(0.0), started=True), "main": RUNNING}
    found = status(pod, states=states)
    ready = next(c for c in found["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["message"]) == ("False", "containers with unready status: [proxy]")
    assert found["initContainerStatuses"][0]["ready"]


def test_an_unfinished_init_container_is_named():
    pod = make_pod(initContainers=[{"name": "once"}])
    initialized = next(c for c in status(pod, LifecycleStep())["conditions"] if c["type"] == "Initialized")
    assert (initialized["reason"], initialized["message"]) == (
        "ContainersNotInitialized",
        "containers with incomplete status: [once]",
    )


def test_a_condition_keeps_its_transition_time_while_it_keeps_its_value():
    old = [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},
        {"type": "Initialized", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"},
    ]
    found = status(make_pod(), states={"main": RUNNING}, previous=old)
    since = {c["type"]: c["lastTransitionTime"] for c in found["conditions"]}
    assert since["Ready"] == "2020-01-01T00:00:00Z"
    assert since["Initialized"] == timestamp(200.0)


def test_readiness_gates_hold_ready_back_until_their_condition_is_true():
    pod = make_pod(readinessGates=[{"conditionType": "example.com/warm"}])
    found = status(pod, states={"main": RUNNING})
    assert conditions(found)["Ready"] == ("False", "ReadinessGatesNotReady")
    assert conditions(found)["ContainersReady"] == ("True", None)
    warm = {**pod.raw, "status": {"conditions": [{"type": "example.com/warm", "status": "True"}]}}
    found = status(dataclasses.replace(pod, raw=warm), states={"main": RUNNING})
    assert conditions(found)["Ready"] == ("True", None)


def test_a_refused_pod_stays_pending_with_the_reason_and_an_overdue_one_fails_when_stopped():
    refused = status(
        make_pod(), LifecycleStep(), verdict=PodVerdict("Unsupported", "spec.hostNetwork: no", failed=False)
    )
    assert (refused["phase"], refused["reason"], refused["message"]) == (
        "Pending",
        "Unsupported",
        "spec.hostNetwork: no",
    )
    overdue = PodVerdict("DeadlineExceeded", "too long", failed=True)
    assert status(make_pod(), states={"main": RUNNING}, verdict=overdue)["phase"] == "Running"
    over = status(make_pod(), LifecycleStep(initialized=True, finished=True), {"main": DONE}, verdict=overdue)
    assert (over["phase"], over["reason"]) == ("Failed", "DeadlineExceeded")


def test_states_survive_being_written_and_read_back():
    states = {
        "main": RUNNING,
        "done": DONE,
        "stuck": ContainerState(Waiting("CrashLoopBackOff", "wait"), last=FAILED.ended),
    }
    pod = make_pod(containers=[{"name": name} for name in states])
    found = status(pod, states=states)
    for name, state in states.items():
        back = restored(found, name)
        assert (back.activity, back.restarts, back.last) == (state.activity, state.restarts, state.last)
    assert restored(found, "other") is None


def test_times_are_whole_seconds_in_utc():
    assert timestamp(1_700_000_000.9) == "2023-11-14T22:13:20Z"
    assert seconds(timestamp(1_700_000_000)) == 1_700_000_000
    assert seconds(None) == 0
