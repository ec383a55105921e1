"""State of a service's calibration: the profile in force, the account of its runs, and the run that is due."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeAlias

from breakeven.phrases import counted, figure, percent
from breakeven_operator.actions import Create
from breakeven_operator.calibration.upgrade_gate import gate_images
from breakeven_operator.case import FirstAnswer, ServiceObservation
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import (
    RECALIBRATE_ANNOTATION,
    RUNS,
    SERVICE_LABEL,
    SERVICES,
    new_object,
    owner_reference,
)
from breakeven_operator.observing.past_metrics import AWAITED
from breakeven_operator.refused_writes import RefusedWrite, of_creation
from breakeven_operator.resources import CalibrationRun, SpeculativeService
from breakeven_operator.resources.calibrationrun import AnswersInForce, RunPhase, Trigger
from breakeven_operator.resources.candidates import Candidates
from breakeven_operator.resources.memorystatus import LONGEST_VALUE
from breakeven_operator.resources.servicestatus import CalibrationStatus, GateStatus
from breakeven_operator.resources.updatepolicy import Mode
from breakeven_operator.step import Calibrated, ProfileEntry
from breakeven_operator.workloads.fingerprint import Identity


def calibrated(
    service: SpeculativeService,
    observation: ServiceObservation,
    identity: Identity | None,
    startup_s: float | None,
    now: datetime,
    doubt: Callable[[ProfileEntry], tuple[Trigger | None, bool]] | None = None,
) -> Calibrated:
    """Find the profile in force, account for runs that ended, and ask for a new run when one is due.

    Without an identity (no pod serves yet) no profile is in force. `startup_s` is the start of the target's own pods, and
    `doubt` gives the reason of live traffic to measure a profile again, and whether the profile was tested without any.
    """
    profiles, runs = observation.profiles, observation.runs
    refused = of_creation(observation.failures, RUNS, now)
    status, ended = account_of(service, runs)
    if startup_s is not None and startup_s > (status.startup_seconds or 0.0):
        status = status.replace(startup_seconds=startup_s)
    run = unfinished(runs)
    again = to_measure_again(service, ended)
    asked = service.metadata.annotations.get(RECALIBRATE_ANNOTATION, "")[:LONGEST_VALUE] or None
    seen = service.status.memory.recalibrate if service.status.memory else None
    (entry, word, said, trigger), dispelled = find_in_force(
        service, identity, profiles, status.failures, now, doubt
    )
    if asked and asked != seen:
        trigger = Trigger.REQUESTED
    elif trigger is Trigger.INITIAL and identity is None:
        trigger = None
    said = f"{said}{failure_words(status)}{gate_words(status, identity)}"
    former = former_of(profiles, identity) if entry is None else None
    state = Calibrated(entry, word, said, run, None, None, status, seen, ended, former)
    if run is not None:
        stuck = _stuck(run) or ClusterReason.CALIBRATION_RUNNING
        state = _noting(state, f"{run.metadata.name} is {phase_words(run)}", stuck)
    elif again is not None:
        # The same for the changed target; it waits until that serves. Named after the run it follows.
        once_more = _run(service, f"{again.metadata.uid}/again", again.spec.to_json_object())
        state = _asking(state, once_more, again.spec.trigger, refused)
    elif (gate := _due_gate(service, observation, identity, trigger, status)) is not None:
        state = _asking(state, gate, trigger, refused)
    elif trigger is not None and (
        held := held_back(service, trigger, identity)
        or too_soon(status, trigger, entry, observation.timing.calibration_interval_seconds, now)
    ):
        state = _noting(state, held, failure_of(status))
    elif trigger is Trigger.INITIAL and (waits := _spared(state, observation.first)) is not None:
        state = waits
    elif trigger is not None:
        create = requested_run(service, trigger, identity, asked, status)
        uids = frozenset(one.uid for one in profiles)
        state = _asking(state, replace(create, known_profiles=uids), trigger, refused)
    status = status.replace(
        run=run.metadata.name if run else _name(state.create) if state.create else status.run,
        profile=state.profile_name,
        profile_time=entry.created if entry else None,
        fingerprint=entry.fingerprint if entry else None,
        answers=answers_in_force(service.spec.candidates, entry),
        doubts=0 if dispelled else status.doubts + (state.trigger in DOUBTS),
        gate=_gate_of_now(status, observation, identity),
        **progress_of(run),
    )
    # A run that is under way answers the request, unless it is a gate.
    handled = state.trigger is Trigger.REQUESTED or (run is not None and run.spec.gate is None)
    return replace(state, status=status, recalibrate=asked if asked and handled else seen)


def _noting(state: Calibrated, said: str, reason: ClusterReason | None) -> Calibrated:
    """The state with the end of its message, and without a profile in force with the word for it."""
    word = state.reason if reason is None or state.entry is not None else reason
    return replace(state, message=f"{state.message}; {said}", reason=word)


def _asking(
    state: Calibrated, create: Create, trigger: Trigger | None, refused: RefusedWrite | None
) -> Calibrated:
    """The state with a run to create and its announcement; no run if the API server has refused the last attempt."""
    if refused is not None:
        return _noting(state, refused.sentence, ClusterReason.WRITE_REFUSED)
    asking = replace(state, create=create, trigger=trigger)
    return _noting(asking, f"run {_name(create)} is created", ClusterReason.CALIBRATION_RUNNING)


def _name(create: Create) -> str:
    return str(create.body["metadata"]["name"])


_MAX_PAUSE_FACTOR = 16
# Triggers by which live traffic contradicts the profile in force.
DOUBTS = frozenset(
    {Trigger.MODEL_DISAGREES, Trigger.ROLL_DISPROVED, Trigger.ACCEPTANCE_DRIFTED, Trigger.LENGTHS_DRIFTED}
)


def _due_gate(
    service: SpeculativeService,
    observation: ServiceObservation,
    identity: Identity | None,
    trigger: Trigger | None,
    status: CalibrationStatus,
) -> Create | None:
    """The gate of a new image, in place of a calibration; None if the service asks for none, or this image had its gate.

    A target that differs in more than its image has none: the profile before says nothing of such an engine.
    """
    asks = service.spec.calibration.new_image == "Gate" and trigger is Trigger.FINGERPRINT_CHANGED
    if not asks or identity is None or held_back(service, Trigger.FINGERPRINT_CHANGED, identity):
        return None
    images = gate_images(observation.workload, observation.profiles)
    if images is None or _gate_of_now(status, observation, identity) is not None:
        return None
    spec = {
        "serviceRef": {"name": service.metadata.name},
        "trigger": str(trigger),
        "gate": list(images),
    }
    return _run(service, f"gate/{images[0]}/{identity.fingerprint}/{status.run or ''}", spec)


def _gate_of_now(
    status: CalibrationStatus, observation: ServiceObservation, identity: Identity | None
) -> GateStatus | None:
    """The gate that the image of now had; None of another image, which is gone. A gate that was refused at once knows no fingerprint."""
    gate, workload = status.gate, observation.workload
    if gate is None or identity is None or workload is None or workload.engine is None:
        return gate
    if gate.fingerprint is None:
        return gate if gate.image == workload.engine.container.get("image") else None
    return gate if identity.has(gate.fingerprint) else None


def gate_words(status: CalibrationStatus, identity: Identity | None) -> str:
    """What a gate found about the image that serves now, as the middle of a sentence; empty without one."""
    gate = status.gate
    if gate is None or identity is None or gate.fingerprint != identity.fingerprint:
        return ""
    return f"; gate {gate.run}: {gate.word}: {gate.message[:_LONGEST_SAYING]}"


def _spared(state: Calibrated, first: FirstAnswer | None) -> Calibrated | None:
    """A first calibration that waits for the past, or that the past speaks against; None if it may begin."""
    if first == AWAITED:
        return _noting(state, "no run starts before its past is read", ClusterReason.CALIBRATION_RUNNING)
    if first is not None and first.pays_nothing:
        said = f"no run starts, because every candidate ran and pays at no load; a new {RECALIBRATE_ANNOTATION} starts one"
        return _noting(state, said, ClusterReason.CALIBRATION_PAYS_NOTHING)
    return None


def held_back(service: SpeculativeService, trigger: Trigger, identity: Identity | None) -> str | None:
    """Why a run that is due is not created, whenever the last one was."""
    if service.spec.control_of is not None:
        return f"a control is not calibrated: the profiles of {service.spec.control_of} count"
    if service.spec.paused:
        return "no run starts while paused"
    if identity is None or identity.gpu_product is None:
        return "no run starts before a serving pod tells the GPU class"
    if trigger is not Trigger.REQUESTED and service.spec.update_policy.mode is Mode.DISABLED:
        return "mode Disabled measures on request only"
    return None


def too_soon(
    status: CalibrationStatus,
    trigger: Trigger,
    entry: ProfileEntry | None,
    interval_s: float,
    now: datetime,
) -> str | None:
    """When a run that is due may begin; None if it may now.

    A profile that is doubted as soon as it is in force will hardly be mended by the next one: each such run in a row
    doubles the pause, as each failure does.
    """
    if trigger is Trigger.REQUESTED:
        return None
    doubts = status.doubts if trigger in DOUBTS else 0
    measured = entry.created if entry is not None and trigger in DOUBTS else None
    last = max((time for time in (status.last_run_time, measured) if time is not None), default=None)
    if last is None:
        return None
    if status.gate is not None and status.gate.time == last:
        # A gate that was lost has measured no arms.
        return None
    factor = min(2 ** (status.failures + doubts), _MAX_PAUSE_FACTOR)
    next_time = last + timedelta(seconds=interval_s * factor)
    # The first failure already waits the interval; a first success never ran before, so nothing waits for it.
    if now >= next_time:
        return None
    # A time, not a time left: a message that changes every second would never be written, or always.
    failed = f" ({status.failures} failed in a row)" if status.failures else ""
    return f"the next run starts at {next_time:%Y-%m-%dT%H:%M:%SZ}{failed}; a new {RECALIBRATE_ANNOTATION} does not wait"


def requested_run(
    service: SpeculativeService,
    trigger: Trigger,
    identity: Identity | None,
    asked: str | None,
    status: CalibrationStatus,
) -> Create:
    """A run named by a hash of service, trigger and fingerprint: a cycle that is repeated after a crash makes it once.

    The run before it is part of that: a name that was used up by a superseded run would never be made again.
    """
    token = asked if trigger is Trigger.REQUESTED else ""
    seed = f"{trigger}/{identity.fingerprint if identity else ''}/{token}/{status.run or ''}"
    spec = {"serviceRef": {"name": service.metadata.name}, "trigger": str(trigger)}
    return _run(service, seed, spec)


def _run(service: SpeculativeService, seed: str, spec: Mapping[str, object]) -> Create:
    meta = service.metadata
    seed = f"{meta.uid}/{seed}"
    name = f"{meta.name}-{hashlib.sha256(seed.encode()).hexdigest()[:5]}"
    owner = owner_reference(SERVICES, meta.name, meta.uid)
    return Create(RUNS, new_object(RUNS, name, meta.namespace, {SERVICE_LABEL: meta.name}, owner, spec=spec))


_LONGEST_SAYING = 500
# A run that ended for these has not answered what it was asked.
_OPEN = frozenset({str(ClusterReason.FINGERPRINT_CHANGED), str(ClusterReason.TARGET_NOT_FOUND)})
# Reasons why a calibration's pod waits, which a person may mend.
_STUCK = frozenset(
    {
        ClusterReason.IMAGE_PULL_FAILED,
        ClusterReason.ENGINE_NOT_STARTING,
        ClusterReason.VOLUME_NOT_SHAREABLE,
        ClusterReason.UNSCHEDULABLE,
        ClusterReason.QUOTA_EXCEEDED,
        ClusterReason.ADMISSION_DENIED,
    }
)
# Triggers that mode Disabled still follows.
_ASKED_FOR = frozenset({Trigger.MANUAL, Trigger.REQUESTED, Trigger.SCHEDULE})


def account_of(
    service: SpeculativeService, runs: Iterable[CalibrationRun]
) -> tuple[CalibrationStatus, tuple[CalibrationRun, ...]]:
    """Count runs that ended; a run is marked as finished only after the status that counts it is written."""
    status = service.status.calibration or CalibrationStatus()
    before = status.last_run_time
    # Several may have ended since, and each of them counts.
    ended = tuple(sorted((run for run in runs if run.status.ended), key=_end_of))
    for run in ended:
        finished = run.status.finished_time
        if finished is None or (before is not None and finished <= before):
            continue
        spent = (status.total_gpu_seconds or 0.0) + (run.status.gpu_seconds_used or 0.0)
        if run.status.phase is RunPhase.SUPERSEDED:
            if run.status.reason in _OPEN and run.status.gpu_seconds_used:
                # It held its GPUs all the same; the run that measures once more waits for no time.
                status = status.replace(last_run_time=finished, total_gpu_seconds=spent)
            continue
        if run.spec.gate is not None:
            # It has measured no arms, so that it neither failed nor succeeded to.
            status = status.replace(
                last_run_time=finished, total_gpu_seconds=spent, gate=_gate_of(run, status)
            )
            continue
        status = status.replace(
            last_run_time=finished,
            failures=0 if run.status.phase is RunPhase.SUCCEEDED else status.failures + 1,
            total_gpu_seconds=spent,
            last_run=run.metadata.name,
            last_reason=run.status.reason,
            last_message=run.status.message,
        )
    return status, ended


def _end_of(run: CalibrationRun) -> tuple[float, str]:
    finished = run.status.finished_time
    return finished.timestamp() if finished is not None else 0.0, run.metadata.name


def _gate_of(run: CalibrationRun, status: CalibrationStatus) -> GateStatus | None:
    """The outcome of a gate that the service asked for; a person's own leaves it as it was."""
    found = run.status
    if run.spec.trigger is not Trigger.FINGERPRINT_CHANGED or run.spec.gate is None or found.reason is None:
        return status.gate
    return GateStatus(
        run=run.metadata.name,
        fingerprint=found.plan.fingerprint if found.plan is not None else None,
        image=run.spec.gate[-1],
        word=found.reason,
        message=(found.message or "").removeprefix(f"{found.reason}: "),
        time=found.finished_time,
    )


def to_measure_again(service: SpeculativeService, ended: Iterable[CalibrationRun]) -> CalibrationRun | None:
    """A run that ended because its target changed or was gone, and whose question is still open.

    It is seen as long as it is not marked as finished, which follows the creation of the next one.
    """
    changed = [run for run in ended if run.status.reason in _OPEN]
    if service.spec.update_policy.mode is Mode.DISABLED:
        changed = [run for run in changed if run.spec.trigger in _ASKED_FOR]
    return changed[-1] if changed else None


def failure_of(status: CalibrationStatus) -> ClusterReason | None:
    """The word for which the last run failed; None if it did not."""
    if not status.failures:
        return None
    return ClusterReason.named(status.last_reason) or ClusterReason.CALIBRATION_FAILED


def failure_words(status: CalibrationStatus) -> str:
    """The failure of the last run as the middle of a sentence; empty if it did not fail."""
    reason = failure_of(status)
    if reason is None or status.last_run is None:
        return ""
    said = (status.last_message or reason.meaning).rstrip(".")
    return f"; run {status.last_run} failed: {reason}: {said[:_LONGEST_SAYING]}"


def unfinished(runs: Iterable[CalibrationRun]) -> CalibrationRun | None:
    """The run that is under way; None if all have ended."""
    return next((run for run in runs if not run.status.ended), None)


def progress_of(run: CalibrationRun | None) -> dict[str, object]:
    """Points, GPU-seconds of the unfinished run; nothing of a finished one."""
    if run is None or run.status.plan is None or run.spec.gate is not None:
        return {"points_done": None, "points_planned": None, "gpu_seconds_used": None}
    return {
        "points_done": len(run.status.points),
        "points_planned": run.status.planned_points,
        "gpu_seconds_used": run.status.gpu_seconds_used,
    }


def phase_words(run: CalibrationRun) -> str:
    """Phase of an unfinished run, with what keeps its pod from coming and how far it is, as the end of a sentence."""
    words = str(run.status.phase or RunPhase.PENDING).lower()
    if (stuck := _stuck(run)) is not None:
        words += f" ({stuck}: {run.status.message or stuck.meaning})"
    display = run.status.display
    if display is not None and display.points:
        words += f", {display.points} points"
    if display is not None and display.left:
        words += f", {display.left} left"
    return words


def _stuck(run: CalibrationRun) -> ClusterReason | None:
    """The word for what keeps an unfinished run's pod from coming; None if nothing does."""
    return ClusterReason.named(run.status.reason) if run.status.reason in _STUCK else None


InForce: TypeAlias = tuple[ProfileEntry | None, ClusterReason, str, Trigger | None]
"""The profile in force, why it is or none is, in a word and a sentence, and what to measure for; None for nothing."""


def find_in_force(
    service: SpeculativeService,
    identity: Identity | None,
    profiles: Sequence[ProfileEntry],
    failures: int,
    now: datetime,
    doubt: Callable[[ProfileEntry], tuple[Trigger | None, bool]] | None,
) -> tuple[InForce, bool]:
    """The newest profile of what the target is now, unless it has expired or cannot be read; and whether all doubt of it is gone.

    `failures` are runs in a row that have failed.
    """
    newest = sorted(profiles, key=lambda entry: (entry.created, entry.name), reverse=True)
    own = [entry for entry in newest if identity is not None and identity.has(entry.fingerprint)]
    if not own:
        return _none_fits(newest, identity, failures), False
    entry = own[0]
    if entry.profile is None:
        problem = f"{entry.name}: {entry.problem}"
        return (None, ClusterReason.PROFILE_UNREADABLE, problem, Trigger.PROFILE_UNREADABLE), False
    age_s = (now - entry.created).total_seconds()
    limit_s = service.spec.calibration.profile_max_age_seconds
    if age_s > limit_s:
        old = f"{entry.name} is {age_s / 86400:.1f} days old (allowed: {figure(limit_s / 86400)})"
        return (None, ClusterReason.PROFILE_EXPIRED, old, Trigger.PROFILE_EXPIRED), False
    # An arm with another drafter was not measured, whatever the old one was measured to do under its name.
    measured = entry.arms - service.spec.candidates.replaced(entry.drafters)
    missing = sorted({arm.name for arm in service.spec.candidates.arms()} - measured)
    if missing:
        lacks = f"{entry.name} is in force without {', '.join(missing)}, not yet measured"
        return (entry, ClusterReason.CANDIDATES_CHANGED, lacks, Trigger.CANDIDATES_CHANGED), False
    trigger, dispelled = doubt(entry) if doubt is not None else (None, False)
    again = f"; to be measured again ({trigger})" if trigger else ""
    message = f"{_summary(entry)}{_later(service, entry)}{again}"
    return (entry, ClusterReason.PROFILE_IN_FORCE, message, trigger), dispelled


def _none_fits(newest: Sequence[ProfileEntry], identity: Identity | None, failures: int) -> InForce:
    """The word for a target that none of the profiles (newest first) was measured on."""
    if not newest:
        message = "no calibration has succeeded yet" if failures else "the arms were never measured"
        return (None, ClusterReason.NO_PROFILE, message, Trigger.INITIAL)
    if identity is None:
        return (None, ClusterReason.NO_POD_SERVES, "no serving pod tells which profile counts", None)
    if identity.gpu_product is None:
        message = "the nodes of the pods carry no GPU product label, so no profile counts for them: label the nodes (GPU Feature Discovery)"
        return (None, ClusterReason.GPU_CLASS_UNKNOWN, message, None)
    message = (
        f"{newest[0].name} was measured on {newest[0].fingerprint}, the target is {identity.fingerprint} "
        "(image, model, arguments, GPU class or parallelism differ)"
    )
    return (None, ClusterReason.FINGERPRINT_CHANGED, message, Trigger.FINGERPRINT_CHANGED)


def _later(service: SpeculativeService, entry: ProfileEntry) -> str:
    """Schedules that the profile in force lacks; because its other arms stand, they are not measured again."""
    wanted = [arm.name for arm in service.spec.candidates.measurable_arms() if arm.scheduled]
    missing = [name for name in wanted if name not in entry.arms]
    return f"; {', '.join(missing)} is measured with the next calibration" if missing else ""


def _summary(entry: ProfileEntry) -> str:
    """`chat-p1: 3 arms, 21 points, worst residual 4.1 %, measured on NVIDIA-A100-SXM4-80GB, without ...`."""
    fits = [fit for fit in entry.profile.arms if fit.points] if entry.profile is not None else []
    worst = max((fit.max_relative_error or 0.0 for fit in fits), default=0.0)
    points = sum(fit.points for fit in fits)
    failed = ", ".join(f"{name} ({reason})" for name, reason in entry.failed.items())
    return (
        f"{entry.name}: {counted(len(fits), 'arm')}, {counted(points, 'point')}, worst residual {percent(worst)}, measured on "
        f"{entry.gpu_product}{f', without {failed}' if failed else ''}"
    )


def former_of(profiles: Sequence[ProfileEntry], identity: Identity | None) -> ProfileEntry | None:
    """The newest profile of what the target was before it changed; None without one of its model and GPU class.

    Other flags, another version of the engine or an old age move its figures by less than an overload costs.
    """
    if identity is None:
        return None
    alike = (
        one
        for one in profiles
        if one.profile is not None
        and identity.gpu_product in {None, one.gpu_product}
        and one.model in {None, identity.model}
    )
    return max(alike, key=lambda entry: (entry.created, entry.name), default=None)


def answers_in_force(candidates: Candidates, entry: ProfileEntry | None) -> tuple[AnswersInForce, ...]:
    """Words about the answers of each arm that was tested with the drafter that it has now, for the status."""
    if entry is None or entry.profile is None:
        return ()
    replaced = candidates.replaced(entry.drafters)
    return tuple(
        AnswersInForce(arm=fit.arm.name, word=fit.answers)
        for fit in entry.profile.arms
        if fit.answers is not None and fit.arm.name not in replaced
    )
