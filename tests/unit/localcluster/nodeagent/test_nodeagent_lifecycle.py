"""The next container of a pod to run: init containers, sidecars, main containers, restarts and the order of stopping."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.node_pods import make_pod
from localcluster.nodeagent.pod_lifecycle import LifecycleStep, decide, restarts
from localcluster.nodeagent.podspec import Role
from localcluster.nodeagent.states import ContainerState, Running, Terminated, Waiting
from localcluster.nodeagent.status import changed_since

NEW = ContainerState()
RUNNING = ContainerState(Running(0.0), started=True, ready=True)
STARTING = ContainerState(Running(0.0), started=False)


def ended(code, at=0.0):
    return ContainerState(Terminated(code, "Completed" if code == 0 else "Error", 0.0, at))


def looping(code):
    return ContainerState(Waiting("CrashLoopBackOff"), last=Terminated(code, "Error", 0.0, 0.0))


def two_inits_a_sidecar_and_two_mains(policy="Always"):
    return make_pod(
        restartPolicy=policy,
        initContainers=[
            {"name": "first"},
            {"name": "proxy", "restartPolicy": "Always"},
            {"name": "engine", "restartPolicy": "Always"},
            {"name": "last"},
        ],
        containers=[{"name": "a"}, {"name": "b"}],
    )


def step(pod, *, ending=False, not_before=None, now=100.0, **states):
    known = {c.name: states.get(c.name, NEW) for c in pod.containers}
    return decide(pod, known, not_before or {}, now, ending=ending)


@pytest.mark.parametrize(
    ("states", "start"),
    [
        ({}, ("first",)),
        ({"first": RUNNING}, ()),
        ({"first": ended(0)}, ("proxy",)),
        # A sidecar holds the next one back until its startup probe has passed.
        ({"first": ended(0), "proxy": STARTING}, ()),
        ({"first": ended(0), "proxy": RUNNING}, ("engine",)),
        ({"first": ended(0), "proxy": RUNNING, "engine": RUNNING}, ("last",)),
        # One that crashed comes back while a later init container runs.
        ({"first": ended(0), "proxy": ended(1), "engine": RUNNING, "last": RUNNING}, ("proxy",)),
        ({"first": ended(0), "proxy": RUNNING, "engine": ended(0), "last": RUNNING}, ("engine",)),
        ({"first": ended(0), "proxy": ended(1), "engine": ended(1), "last": RUNNING}, ("proxy", "engine")),
    ],
)
def test_init_containers_start_one_after_the_other(states, start):
    found = step(two_inits_a_sidecar_and_two_mains(), **states)
    assert (found.start, found.initialized, found.finished) == (start, False, False)


READY = {"first": ended(0), "proxy": RUNNING, "engine": RUNNING, "last": ended(0)}


def test_main_containers_start_together_after_the_last_init_container():
    found = step(two_inits_a_sidecar_and_two_mains(), **READY)
    assert found == LifecycleStep(start=("a", "b"), initialized=True)


def test_a_pod_stays_initialized_when_a_sidecar_crashes_later():
    states = {**READY, "engine": ended(1), "a": RUNNING, "b": RUNNING}
    assert step(two_inits_a_sidecar_and_two_mains("Never"), **states) == LifecycleStep(
        start=("engine",), initialized=True
    )


def test_a_failed_init_container_fails_the_pod_only_with_never():
    pod = two_inits_a_sidecar_and_two_mains("Never")
    assert step(pod, first=ended(1)) == LifecycleStep(finished=True, failed_init=True)
    # The sidecars that run by then are stopped first.
    states = {"first": ended(0), "proxy": RUNNING, "engine": RUNNING, "last": ended(2)}
    assert step(pod, **states) == LifecycleStep(stop=("engine",), failed_init=True)
    assert step(two_inits_a_sidecar_and_two_mains("OnFailure"), first=ended(1)).start == ("first",)


def test_restarts_wait_for_their_back_off():
    pod = make_pod()
    waiting = step(pod, main=ended(1), not_before={"main": 110.0})
    assert (waiting.start, waiting.delayed) == ((), {"main": 110.0})
    assert step(pod, main=looping(1), not_before={"main": 110.0}, now=110.0).start == ("main",)


@pytest.mark.parametrize(
    ("policy", "role", "code", "again"),
    [
        ("Always", Role.MAIN, 0, True),
        ("OnFailure", Role.MAIN, 0, False),
        ("OnFailure", Role.MAIN, 1, True),
        ("Never", Role.MAIN, 1, False),
        ("Always", Role.INIT, 0, False),
        ("Always", Role.INIT, 1, True),
        ("OnFailure", Role.INIT, 1, True),
        ("Never", Role.INIT, 1, False),
        ("Never", Role.SIDECAR, 0, True),
    ],
)
def test_restart_policy(policy, role, code, again):
    assert restarts(policy, role, code) is again


def test_sidecars_stop_after_the_main_containers_last_started_first():
    pod = two_inits_a_sidecar_and_two_mains("Never")
    done = {**READY, "a": ended(0), "b": ended(3)}
    assert step(pod, **{**done, "b": RUNNING}) == LifecycleStep(initialized=True)
    assert step(pod, **done).stop == ("engine",)
    assert step(pod, **{**done, "engine": ended(0)}).stop == ("proxy",)
    last = step(pod, **{**done, "engine": ended(0), "proxy": ended(137)})
    assert (last.stop, last.start, last.finished) == ((), (), True)


def test_a_deleted_pod_starts_nothing_and_stops_main_containers_first():
    pod = two_inits_a_sidecar_and_two_mains()
    found = step(pod, ending=True, **{**READY, "a": RUNNING, "b": looping(1)})
    assert (found.start, found.stop, found.finished) == ((), ("a",), False)
    assert step(pod, ending=True, **{**READY, "a": ended(143)}).stop == ("engine",)
    assert step(pod, ending=True).finished


STATES = st.sampled_from([NEW, RUNNING, STARTING, ended(0), ended(1), looping(1)])


@given(
    st.sampled_from(["Always", "OnFailure", "Never"]), st.lists(STATES, min_size=6, max_size=6), st.booleans()
)
def test_a_step_never_contradicts_itself(policy, states, ending):
    pod = two_inits_a_sidecar_and_two_mains(policy)
    known = dict(zip((c.name for c in pod.containers), states, strict=True))
    found = decide(pod, known, {}, 0.0, ending=ending)
    running = {name for name, state in known.items() if state.running}
    assert not running & set(found.start)
    assert set(found.stop) <= running
    assert not (found.start and found.stop)
    if found.finished:
        assert not running
        assert not found.start
    if not found.finished and not running:
        # Nothing would ever wake such a pod again.
        assert found.start or found.delayed


TRUE = {"Initialized": "True", "ContainersReady": "True", "Ready": "True"}


@pytest.mark.parametrize(
    ("version", "shown", "changed"),
    [
        ("12", TRUE | {"Ready": "False"}, True),
        ("12", TRUE | {"Ready": "Unknown", "ContainersReady": "Unknown"}, True),
        ("12", {"Initialized": "True"}, True),
        ("12", TRUE | {"PodScheduled": "True", "example.com/gate": "False"}, False),
        ("12", TRUE, False),
        # The watch is behind what was written.
        ("9", TRUE | {"Ready": "False"}, False),
        ("10", TRUE | {"Ready": "False"}, False),
    ],
)
def test_a_condition_that_somebody_has_changed_since_is_written_again(version, shown, changed):
    def listed(conditions):
        return {"conditions": [{"type": kind, "status": word} for kind, word in conditions.items()]}

    pod = {"metadata": {"resourceVersion": version}, "status": listed(shown)}
    assert changed_since(listed(TRUE), 10, pod) is changed
