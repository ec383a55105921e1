"""A standing control: a target beside a service keeps the other arm, and pods of both arms show the speedup of now.

The control is a target with its own service (`spec.controlOf`), so that the operator rolls, watches and undoes it like any target.
A partition would not do, because pods below a partition keep the whole template of before, image and arguments too.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.estimate import Estimate
from breakeven.phrases import counted, figure, ratio_text, spoken
from breakeven.planning.roll_experiment import MeasuredSpeedup, experiment
from breakeven.profile import Profile
from breakeven_operator.case import HOLD, SWITCH, Case, StandingControl
from breakeven_operator.observing.fleet_query import CONTROL_WINDOWS, block_s
from breakeven_operator.observing.roll_metrics import PairedPods, both_arms
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.figures import bounded
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.targetstatus import ControlStatus, RolloutPhase
from breakeven_operator.rolls.roll_evidence import CONFIDENCE, law_of, why_nothing
from breakeven_operator.workloads.workload import Workload

FEWEST_PODS = 4
"""Pods of a service from which on one more may run the other arm: below, too many requests would wait for it."""
# Requests that waited through a roll are worked off in so many windows.
_SETTLED_WINDOWS = 2
# Few blocks have wide bounds, inside which any later speedup would lie.
_FIRST_WINDOWS = CONTROL_WINDOWS // 2
_NONE = NO_SPECULATION.name
_FIRST = ("since_time", "first_lower", "first_upper")


def other_arm(case: Case, running: Arm, controlled: SpeculativeService | None) -> tuple[str, str] | str:
    """Name of the arm that a control is to run and why, or why it keeps its arm."""
    name = case.spec.control_of
    if controlled is None:
        return f"there is no SpeculativeService {name}, of which this one would be the control"
    if controlled.spec.control_of is not None:
        return f"{name} is a control itself"
    status = controlled.status
    arm = status.current.arm if status.current is not None else None
    pods = (status.target.replicas if status.target is not None else None) or 0
    if arm is None:
        return f"which arm {name} runs is not known"
    few = pods < FEWEST_PODS
    decision, memory = status.decision, status.memory
    if not few and decision is not None and decision.action in {HOLD, SWITCH}:
        # An arm that dwells is not the decision's yet.
        wishes = {decision.arm, memory.candidate_arm if memory is not None else None} - {None, arm}
        if wishes:
            return f"{name} is about to change to {spoken(min(map(str, wishes)))}"
    if status.rollout is not None and (not few or status.rollout.phase is not RolloutPhase.CONFIRMING):
        return f"the arm of {name} is being changed or measured"
    if few:
        return (
            arm,
            f"{name} has {counted(pods, 'pod')}, fewer than {FEWEST_PODS}: the control runs the same arm",
        )
    wanted = _other(case, running, arm, controlled)
    if wanted == arm:
        return arm, f"no other arm than {spoken(arm)} may run beside {name}"
    rolled, cooldown_s = case.memory.last_switch_time, case.spec.update_policy.cooldown_seconds
    if wanted != running.name and rolled is not None and case.now - rolled < timedelta(seconds=cooldown_s):
        return f"{spoken(wanted)} is to run beside {name}, and the control was rolled within updatePolicy.cooldownSeconds"
    return wanted, f"{name} runs {spoken(arm)}, and its control {spoken(wanted)}"


def _other(case: Case, running: Arm, arm: str, controlled: SpeculativeService) -> str:
    """No speculation beside an arm; beside no speculation the control's own arm, or the best one."""
    if arm != _NONE:
        return _NONE
    theirs, decision = controlled.status.memory, controlled.status.decision
    barred = {one.arm for one in (*case.memory.barred, *(theirs.barred if theirs is not None else ()))}
    best = decision.compared_arm if decision is not None else None
    kept = running.name if running != NO_SPECULATION else None
    return next((one for one in (kept, best) if one is not None and one not in barred), _NONE)


def with_evidence(memory: MemoryStatus, control: SpeculativeService, profile: str | None) -> MemoryStatus:
    """The memory with what the latency of the control's arm has said since that arm last ran on the target."""
    theirs, current = control.status.memory, control.status.current
    if theirs is None or current is None or profile is None or theirs.profile != profile:
        return memory
    found = next((one for one in theirs.evidence if one.arm == current.arm), None)
    mine = next((one for one in memory.evidence if one.arm == current.arm), None)
    if found is None or memory.running_arm == current.arm or (mine is not None and mine.time >= found.time):
        return memory
    return memory.replace(evidence=(*(one for one in memory.evidence if one is not mine), found))


def measured_control(case: Case, control: StandingControl) -> ControlStatus:
    """The speedup of the target's arm over the control's arm in the last windows, or why there is none."""
    name, before = control.service.metadata.name, case.service.status.control
    current = control.service.status.current
    arm = case.running.arm.name if case.running.arm is not None else None
    against = current.arm if current is not None else None
    status = ControlStatus(service=name, arm=arm, against=against)
    if before is not None and (before.arm, before.against) != (arm, against):
        before = None
    problem = _why_not(case, control, arm, against)
    reading = control.reading
    if problem is None and reading is not None and reading.times_s:
        time = datetime.fromtimestamp(reading.times_s[-1], UTC)
        if before is not None and before.time == time:
            return before
        paired = _paired(case, control)
        found = _measure(case, control, paired)
        if not isinstance(found, str):
            window_s = case.spec.metrics_source.window_seconds
            blocks = sum(time_s > paired.begin_s for time_s in reading.times_s)
            whole = blocks * block_s(window_s) >= _FIRST_WINDOWS * window_s
            return _with_speedup(status, found, time, before, _pods(case, control), whole=whole)
        problem = found
    # An upgrade leaves nothing to compare for a while, and the speedup after it is held against the one before.
    first = {name: getattr(before, name) for name in _FIRST} if before is not None else {}
    return status.replace(
        **first, message=f"control {name} measures nothing: {problem or 'it was not asked yet'}"
    )


def _why_not(case: Case, control: StandingControl, arm: str | None, against: str | None) -> str | None:
    """Why the pods of both targets are not to be compared; None if they are."""
    theirs, name = control.workload, control.service.metadata.name
    if theirs is None or arm is None or against is None:
        return "its target, or an arm, is not known"
    if case.spec.metrics_source != control.service.spec.metrics_source:
        return f"metricsSource of {case.service.metadata.name} and of its control differ"
    if arm == against:
        return f"both run {spoken(arm)}"
    if any(
        one is not None and one.phase is not RolloutPhase.CONFIRMING
        for one in (case.context.rollout, control.service.status.rollout)
    ):
        return "an arm is being changed"
    mine, other = case.workload.proven_identity, theirs.proven_identity
    if mine is None or other is None:
        return "no pod of it serves"
    if mine.fingerprint != other.fingerprint:
        return f"{case.workload.title} and {theirs.title} differ in image, model, arguments or GPU class"
    if control.reading is not None and control.reading.error is not None:
        return f"Prometheus gives no figures of {name} ({control.reading.error})"
    return None


def _paired(case: Case, control: StandingControl) -> PairedPods:
    """The pods that serve, from two windows after the last change of either arm on."""
    assert control.workload is not None  # noqa: S101 - see _why_not
    rolls = (case.memory, control.service.status.memory)
    times = [
        one.last_switch_time.timestamp()
        for one in rolls
        if one is not None and one.last_switch_time is not None
    ]
    since_s = max(times, default=-math.inf) + _SETTLED_WINDOWS * case.spec.metrics_source.window_seconds
    return PairedPods(
        case.workload.ref.namespace,
        case.model_name,
        _serving(control.workload, since_s),
        _serving(case.workload, since_s),
    )


def _measure(case: Case, control: StandingControl, paired: PairedPods) -> MeasuredSpeedup | str:
    """The comparison of these pods, or why there is none."""
    reading, profile = control.reading, _profile(case)
    assert reading is not None  # noqa: S101 - see measured_control
    own, other = case.running.arm, _arm_of(case, control)
    if profile is None or own is None or other is None:
        return "no profile holds both arms"
    try:
        curves = [profile.curve(arm, case.live.conditions) for arm in (other, own)]
        result = experiment(*both_arms(reading, paired), *map(law_of, curves))
    except BreakevenError as error:
        return str(error)
    return result.found or why_nothing(result, other, own)


def _profile(case: Case) -> Profile | None:
    """The profile whose laws give the slopes: after an upgrade the former one, because no ratio of laws is used."""
    entry = case.calibrated.entry or case.calibrated.former
    return entry.profile if entry is not None else None


def _arm_of(case: Case, control: StandingControl) -> Arm | None:
    current, profile = control.service.status.current, _profile(case)
    name = current.arm if current is not None else None
    return (
        next((fit.arm for fit in profile.arms if fit.arm.name == name), None) if profile is not None else None
    )


def _serving(workload: Workload, since_s: float) -> dict[str, float]:
    """The serving pods by name, each with the time (Unix time, s) from which it counts."""
    return {
        pod.name: max(since_s, pod.created.timestamp() if pod.created is not None else since_s)
        for pod in workload.serving
    }


def _pods(case: Case, control: StandingControl) -> str:
    """The cost: how many pods run the other arm."""
    theirs = control.workload.desired if control.workload is not None else 0
    return f"{theirs} of {counted(case.workload.desired + theirs, 'pod')} {'runs' if theirs == 1 else 'run'} the other arm"


def _with_speedup(
    status: ControlStatus,
    found: MeasuredSpeedup,
    time: datetime,
    before: ControlStatus | None,
    cost: str,
    *,
    whole: bool,
) -> ControlStatus:
    """The status with a measured speedup; one outside the bounds of the first `whole` one begins anew."""
    known = Estimate(found.speedup, *found.bounds(CONFIDENCE))
    said = (
        f"{spoken(status.arm)} is {ratio_text(known)} against {spoken(status.against)}, measured side by side at {figure(found.rps)} rps "
        f"per replica in the last {CONTROL_WINDOWS} windows, from {counted(round(found.requests), 'request')}; control {status.service}: {cost}"
    )
    first = (before.first_lower, before.first_upper) if before is not None else (None, None)
    since = before.since_time if before is not None else None
    low, high = known.lower, known.upper
    moved = (
        since is not None and None not in {*first, low, high} and (high < first[0] or low > first[1])  # type: ignore[operator]
    )
    if moved:
        said = f"{said}; before it was {figure(first[0] or 0.0)} to {figure(first[1] or 0.0)}"
    if moved or (since is None and whole):
        since, first = time, (low, high)
    return status.replace(
        **bounded("speedup", known),
        time=time,
        since_time=since,
        first_lower=first[0],
        first_upper=first[1],
        message=said,
    )
