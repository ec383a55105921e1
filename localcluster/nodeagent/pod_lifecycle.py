"""The next step of a pod's containers: pure, and asked again after every change.

Rules: Kubernetes documentation, "Pod Lifecycle", "Init Containers", "Sidecar Containers" and "Termination of Pods".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from localcluster.nodeagent.podspec import ContainerSpec, PodSpec, RestartPolicy, Role
from localcluster.nodeagent.states import ContainerState


@dataclass(frozen=True)
class LifecycleStep:
    """The step to take now.

    Attributes:
        start: containers to start, in this order.
        stop: running containers to begin stopping; naming one that is being stopped already changes nothing.
        delayed: containers whose restart waits for the crash back-off, with the time it ends.
        initialized: init containers are done and sidecars were started (the pod's condition Initialized).
        finished: nothing runs and nothing will run again.
        failed_init: an init container failed for good.
    """

    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    delayed: Mapping[str, float] = field(default_factory=dict)
    initialized: bool = False
    finished: bool = False
    failed_init: bool = False


def decide(
    pod: PodSpec,
    states: Mapping[str, ContainerState],
    not_before: Mapping[str, float],
    now: float,
    *,
    ending: bool,
) -> LifecycleStep:
    """The next step of a pod.

    Args:
        pod: the pod.
        states: every container's state.
        not_before: per crashed container, the time before which it must not be started again.
        now: seconds, on the clock of `not_before`.
        ending: the pod was deleted or ran past its deadline: nothing starts any more.
    """
    initialized = _initialized(pod, states)
    if ending:
        return LifecycleStep(
            stop=_stopping(pod, states), initialized=initialized, finished=not _any_running(pod, states)
        )
    wanted, failed_init = _wanted(pod, states, initialized=initialized)
    if failed_init or (initialized and _mains_done(pod, states)):
        return LifecycleStep(
            stop=_stopping(pod, states),
            initialized=initialized,
            finished=not _any_running(pod, states),
            failed_init=failed_init,
        )
    delayed = {name: at for name in wanted if (at := not_before.get(name, now)) > now}
    return LifecycleStep(
        start=tuple(name for name in wanted if name not in delayed), delayed=delayed, initialized=initialized
    )


def restarts(policy: RestartPolicy, role: Role, exit_code: int) -> bool:
    """Whether a container that ended with this code is started again."""
    if role is Role.SIDECAR:
        return True
    if role is Role.INIT:
        return exit_code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _wanted(
    pod: PodSpec, states: Mapping[str, ContainerState], *, initialized: bool
) -> tuple[tuple[str, ...], bool]:
    """Containers that should run and do not; and whether an init container has failed for good."""
    wanted: list[str] = []
    if not initialized:
        for container in pod.inits:
            state = states[container.name]
            if _init_passed(container, state):
                continue
            ended = state.ended
            if ended and not restarts(pod.restart_policy, container.role, ended.exit_code):
                return (), True
            if not state.running:
                wanted.append(container.name)
            break
        # A sidecar that was started once and crashed comes back while later init containers still run.
        wanted += [c.name for c in _sidecars(pod) if states[c.name].ended and c.name not in wanted]
        return tuple(wanted), False
    wanted += [c.name for c in _sidecars(pod) if not states[c.name].running]
    for container in pod.mains:
        state = states[container.name]
        if state.running:
            continue
        ended = state.ended
        if ended is None or restarts(pod.restart_policy, container.role, ended.exit_code):
            wanted.append(container.name)
    return tuple(wanted), False


def _initialized(pod: PodSpec, states: Mapping[str, ContainerState]) -> bool:
    """True once all init containers are through; stays true when a sidecar crashes later."""
    if any(states[c.name].ever_ran for c in pod.mains):
        return True
    return all(_init_passed(c, states[c.name]) for c in pod.inits)


def _init_passed(container: ContainerSpec, state: ContainerState) -> bool:
    if container.role is Role.SIDECAR:
        return state.running and state.started
    return not state.running and state.ended is not None and state.ended.exit_code == 0


def _mains_done(pod: PodSpec, states: Mapping[str, ContainerState]) -> bool:
    for container in pod.mains:
        ended = states[container.name].ended
        if ended is None or restarts(pod.restart_policy, container.role, ended.exit_code):
            return False
    return True


def _stopping(pod: PodSpec, states: Mapping[str, ContainerState]) -> tuple[str, ...]:
    """Main and init containers together first; then sidecars, last started first, one after the other."""
    others = tuple(c.name for c in pod.containers if c.role is not Role.SIDECAR and states[c.name].running)
    if others:
        return others
    return next(((c.name,) for c in reversed(list(_sidecars(pod))) if states[c.name].running), ())


def _sidecars(pod: PodSpec) -> Iterator[ContainerSpec]:
    return (c for c in pod.inits if c.role is Role.SIDECAR)


def _any_running(pod: PodSpec, states: Mapping[str, ContainerState]) -> bool:
    return any(states[c.name].running for c in pod.containers)
