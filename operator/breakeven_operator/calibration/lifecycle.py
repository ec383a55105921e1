"""The life of a CalibrationRun: one start of an arm after the other on one Job each, then the fit; a pure function per cycle.

    Pending ──> Starting ──> Measuring ──> Fitting ──> Succeeded
        └───────────┴────────────┴────────────┴──────> Failed, Superseded

Everything that has to survive the operator stands in the run's status before anything is done about it; whatever Job
is not the present arm's is deleted in every cycle, and all of them when the run ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pydantic import ValidationError

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.phrases import counted, spoken
from breakeven.points.point import Point
from breakeven.readers.reading import is_yaml, read_text
from breakeven_operator.actions import Action, Create, Delete, DoneFit, EmitEvent, WriteStatus
from breakeven_operator.calibration import podcopy
from breakeven_operator.calibration.arm_trials import Trials
from breakeven_operator.calibration.jobs import job_name
from breakeven_operator.calibration.podcopy import NotCopyableError
from breakeven_operator.calibration.run_plan import make_plan
from breakeven_operator.calibration.sending import named_files, text_of
from breakeven_operator.calibration.transition import (
    OF_DRIVERS,
    RunView,
    Transition,
    conditions_of,
    human_time,
    job_ref,
    measured_of,
    stored,
)
from breakeven_operator.calibration.trial_state import held_back
from breakeven_operator.calibration.upgrade_gate import UpgradeGate, admit_gate
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import JOBS, RUNS, Ref
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources.calibrationrun import (
    ArmPhase,
    ArmStatus,
    CalibrationPlan,
    CalibrationRunStatus,
    ImportedArm,
    RunPhase,
    StoredPoint,
    Trigger,
    read_run,
)
from breakeven_operator.resources.speculativeservice import SpeculativeService

_SIDE_BY_SIDE = "side by side, each in two starts"
# Whether all arms but the last start twice.
_WAYS = {
    True: "in turns, all but the last in two starts",
    False: "one after the other, because loads or budget have no room for two starts",
}
_SERVICE_COMES = timedelta(minutes=5)


def advance(view: RunView, now: datetime, fitted: DoneFit | None = None) -> tuple[Action, ...]:
    """Actions of this cycle for one unfinished run; `fitted` is a fit that it asked for in order to settle its next arm.

    Raises:
        InputError: its service cannot be read.
    """
    try:
        run = read_run(view.run)
    except InputError as problem:
        return _unreadable(view, problem, now)
    return _advanced(Transition(view, run, now), fitted)


def _advanced(transition: Transition, fitted: DoneFit | None) -> tuple[Action, ...]:
    run, view = transition.run, transition.view
    if run.status.ended or run.metadata.deletion_timestamp is not None:
        # The Jobs go with the run; deleting them frees the GPUs at once.
        return tuple(Delete(job_ref(job)) for job in view.jobs)
    if view.service is None:
        return _without_service(transition)
    service = SpeculativeService.read(
        view.service, f"SpeculativeService {run.metadata.namespace}/{run.spec.service_ref.name}"
    )
    if view.duplicate_of is not None:
        return transition.finish(
            RunPhase.SUPERSEDED,
            ClusterReason.SUPERSEDED,
            f"run {view.duplicate_of} measures this service already",
        )
    if run.spec.gate is not None:
        return _gate(transition, service, run.spec.gate)
    if run.status.plan is None:
        return admit(transition, service)
    return _calibrated(transition, run.status.plan, service, fitted)


def _calibrated(
    transition: Transition, plan: CalibrationPlan, service: SpeculativeService, fitted: DoneFit | None
) -> tuple[Action, ...]:
    """The next step of a run that measures arms, unless its target is another one by now."""
    view = transition.view
    change = _change_of_target(view, plan, service.spec.target_ref.kind)
    if change is not None:
        reason = ClusterReason.TARGET_NOT_FOUND if view.target is None else ClusterReason.FINGERPRINT_CHANGED
        return transition.finish(RunPhase.SUPERSEDED, reason, change)
    return Trials(transition, plan, service.spec, fitted).go()


def refused(view: RunView, write: RefusedWrite, now: datetime) -> tuple[Action, ...]:
    """The state of a run while the API server refuses one of its writes: it stays where it was, and fails in the end.

    Announcements before the refused write are taken back with it: a Job that was never made is no attempt.

    Raises:
        InputError: the run cannot be read.
    """
    transition = Transition(view, read_run(view.run), now)
    event = EmitEvent(transition.ref, str(write.reason), write.sentence, warning=True, throttled=True)
    if isinstance(write.action, WriteStatus):
        return (event,)
    plan = transition.run.status.plan
    if plan is not None and plan.pods_at_once and (late := _arm_without_job(transition, write)):
        # A quota of Jobs may hold fewer of them than there are places: the arms that have theirs go on.
        statuses = transition.run.status.arm_statuses
        arms = tuple(held_back(one) if one.arm == late else one for one in statuses)
        return (*transition.write({"arm_statuses": arms}), event)
    if plan is not None and (now - write.since).total_seconds() > plan.pending_deadline_seconds:
        return transition.finish(RunPhase.FAILED, ClusterReason.WRITE_REFUSED, write.sentence)
    return (*transition.write({"reason": str(write.reason), "message": write.sentence[:1024]}), event)


def _arm_without_job(transition: Transition, write: RefusedWrite) -> str | None:
    """The arm whose Job is refused while others of the run are measured; None if none is."""
    if not isinstance(write.action, Create) or write.action.resource != JOBS:
        return None
    run, refused_name = transition.run, write.action.body["metadata"]["name"]
    if run.spec.gate is not None:
        # Neither engine is of use without the other one.
        return None
    there = {job["metadata"]["name"] for job in transition.view.jobs}
    left = {job_name(run.metadata.name, one.arm): one.arm for one in run.status.arm_statuses if not one.over}
    return left.get(refused_name) if there & left.keys() - {refused_name} else None


def _unreadable(view: RunView, problem: InputError, now: datetime) -> tuple[Action, ...]:
    """The end of a run whose spec or status a person has changed to what no operator writes, with its Jobs.

    Left as it is, it would be in the way of every other run of its service for ever.
    """
    meta, found = view.run["metadata"], view.run.get("status") or {}
    reason, message = str(ClusterReason.CALIBRATION_FAILED), f"it cannot be read: {problem}"[:1024]
    over = CalibrationRunStatus(phase=RunPhase.FAILED, reason=reason, message=message, finished_time=now)
    over = over.replace(conditions=conditions_of(over, (), now))
    # The rest stays as it is: without it a part that a person owns would break the schema, and the write with it.
    kept = {key: part for key, part in found.items() if key not in OF_DRIVERS}
    ref = Ref(RUNS, meta["namespace"], meta["name"], meta["uid"])
    return (
        WriteStatus(ref, {**kept, **over.to_json_object()}),
        *(Delete(job_ref(job)) for job in view.jobs),
        EmitEvent(ref, reason, message, warning=True),
    )


def _without_service(transition: Transition) -> tuple[Action, ...]:
    """The end of a run whose service is gone. A run that was made by hand has no owner that takes it along.

    A service that is applied together with the run comes within minutes. The run's Jobs go at once, and free the GPUs.
    """
    run = transition.run
    created = run.metadata.creation_timestamp
    message = f"there is no SpeculativeService {run.spec.service_ref.name} in this namespace"
    if created is None or transition.now - created < _SERVICE_COMES:
        said = f"{message}; without it the run ends {_SERVICE_COMES.seconds // 60} minutes after it was made"
        phase = run.status.phase or RunPhase.PENDING
        return (
            *transition.write(
                {"phase": phase, "reason": str(ClusterReason.CALIBRATION_DEFERRED), "message": said}
            ),
            *(Delete(job_ref(job)) for job in transition.view.jobs),
        )
    return transition.finish(RunPhase.SUPERSEDED, ClusterReason.SUPERSEDED, message)


def _change_of_target(view: RunView, plan: CalibrationPlan, kind: str) -> str | None:
    """How the target differs from what the run began to measure; None while it does not differ.

    The template is compared by itself. While somebody rolls the target no pod of the new template serves, so its fingerprint
    is unknown. The next arm's pod would be a copy of the new template already.
    """
    if view.target is None:
        # The cycle read every target, so the target is gone: nobody waits for these figures, and others want the GPU.
        return f"{kind} {plan.target} is gone; everything is measured again when it serves again"
    if plan.template_hash is not None:
        try:
            found = podcopy.content_hash(view.target.engine)
        except podcopy.NotCopyableError as refusal:
            return f"the target changed during the run: {refusal.message}"
        if found != plan.template_hash:
            return (
                f"the target's pod template changed during the run ({plan.template_hash} became {found}): arms of two"
                " templates cannot be compared, so all arms are measured again"
            )
    if view.identity is not None and not view.identity.has(plan.fingerprint):
        return (
            f"the target changed during the run ({plan.fingerprint} became {view.identity.fingerprint}): what was measured no"
            " longer counts"
        )
    return None


def _gate(transition: Transition, service: SpeculativeService, images: Sequence[str]) -> tuple[Action, ...]:
    """The next step of a gate. What changes of its target beside the image ends it, because both pods are copies."""
    run, view = transition.run, transition.view
    if run.status.plan is None:
        if (waits := _waits(view, service)) is not None:
            return _deferred(transition, waits)
        if view.files_problem is not None:
            return transition.finish(RunPhase.FAILED, ClusterReason.INPUT_REFUSED, view.files_problem)
        try:
            return admit_gate(transition, service)
        except NotCopyableError as refusal:
            return transition.finish(RunPhase.FAILED, refusal.reason, refusal.message)
    change = _change_of_gate(transition, service, run.status.plan, images)
    if change is not None:
        return transition.finish(RunPhase.SUPERSEDED, ClusterReason.SUPERSEDED, change)
    return UpgradeGate(transition, run.status.plan, view.service).go()


def _change_of_gate(
    transition: Transition, service: SpeculativeService, plan: CalibrationPlan, images: Sequence[str]
) -> str | None:
    """How the target differs from what a gate copies; None if it does not, but for its image.

    A service's own gate is about the image that the target runs.
    """
    target = transition.view.target
    if target is None or target.engine is None:
        return f"{service.spec.target_ref.kind} {plan.target} is gone"
    image = target.engine.container.get("image")
    if transition.run.spec.trigger is Trigger.FINGERPRINT_CHANGED and image not in images:
        return f"the target runs {image} by now"
    try:
        found = podcopy.content_hash(target.with_image(images[0]).engine)
    except NotCopyableError as refusal:
        return f"the target changed during the run: {refusal.message}"
    if found != plan.template_hash:
        return "the target's pod template changed during the run, not in its image alone"
    return None


def _deferred(transition: Transition, message: str) -> tuple[Action, ...]:
    word = str(ClusterReason.CALIBRATION_DEFERRED)
    return transition.write({"phase": RunPhase.PENDING, "reason": word, "message": message})


def files_read(view: RunView) -> Mapping[str, Collection[str]]:
    """The files that `admit` reads now, keys by the name of their ConfigMap, of a run that begins in this cycle.

    Raises:
        InputError: the run or its service cannot be read.
    """
    run, service = view.run, view.service
    if service is None or (run.get("status") or {}).get("plan") is not None or view.duplicate_of is not None:
        return {}
    wanted = named_files(run, service)
    if not wanted or _waits(view, SpeculativeService.read(service, "the service")) is not None:
        return {}
    return wanted


def admit(transition: Transition, service: SpeculativeService) -> tuple[Action, ...]:
    """Fix the run's measurements, unless the run has to wait or cannot be done at all."""
    waits = _waits(transition.view, service)
    if waits is not None:
        return _deferred(transition, waits)
    imports = transition.run.spec.import_from
    if transition.view.files_problem is not None:
        return transition.finish(RunPhase.FAILED, ClusterReason.INPUT_REFUSED, transition.view.files_problem)
    try:
        plan = make_plan(transition.view, transition.run, service)
        imported = read_imports(transition.view, plan, imports) if imports else None
    except NotCopyableError as refusal:
        return transition.finish(RunPhase.FAILED, refusal.reason, refusal.message)
    names = ", ".join(spoken(arm.arm) for arm in plan.arms if not arm.second_start)
    if imported is None:
        statuses = tuple(ArmStatus(arm=arm.arm, phase=ArmPhase.WAITING) for arm in plan.arms)
        most = "at most " if plan.load_choice == "Auto" else ""
        message = (
            f"arms {names} {_SIDE_BY_SIDE if plan.pods_at_once else _WAYS[plan.in_turns]}; {most}{plan.loads} loads each; at most {plan.budget.max_gpu_seconds} GPU-seconds"
            f" and {human_time(plan.budget.max_duration_seconds)}"
        )
    else:
        plan = plan.replace(**_lengths(imported))
        statuses = tuple(
            _arm_status(arm.arm, [point for point in imported if point.arm == arm.arm]) for arm in plan.arms
        )
        message = f"arms {names}; {counted(len(imported), 'point')} imported"
    # Imported points stand in the status before the plan that rests on them, so that the files are never read again.
    points = {"points": [point.to_json_object() for point in imported or ()]}
    return (
        *(() if imported is None else (WriteStatus(transition.ref, points, manager=MANAGER),)),
        *transition.write(
            {
                "phase": RunPhase.STARTING,
                "reason": str(ClusterReason.CALIBRATION_RUNNING),
                "message": message[:1024],
                "plan": plan,
                "started_time": transition.now,
                "arm_statuses": statuses,
            }
        ),
        EmitEvent(transition.ref, str(ClusterReason.CALIBRATION_RUNNING), message),
    )


def _waits(view: RunView, service: SpeculativeService) -> str | None:
    if service.spec.paused:
        return "spec.paused is true"
    if view.target is None:
        target = service.spec.target_ref
        return f"there is no {target.kind} {target.name} in this namespace"
    if len(view.target.gpu_classes) > 1:
        return f"pods run on {' and '.join(view.target.gpu_classes)} (TargetRefused): a run begins once they share a GPU class"
    if not view.target.identifiable:
        return "no pod serves with the target's present template yet: neither image nor GPU class is known"
    if not view.may_start:
        return "as many calibrations as are allowed at a time are under way"
    return None


MANAGER = "breakeven-import"
"""Field manager of imported points, as each arm's driver has its own."""
_TEXT = "imported results"
_MOST_POINTS = 1000
# A megabyte of YAML takes two seconds, a hundred times as long as JSON, and the cycle waits for it.
_MOST_YAML = 1 << 20


def _lengths(points: Iterable[StoredPoint]) -> dict[str, int]:
    """Mean lengths as a plan has them, of the points that have them."""
    known = {
        name: [value for point in points if (value := getattr(point, name)) is not None]
        for name in ("prompt_tokens", "output_tokens")
    }
    return {name: max(1, round(sum(values) / len(values))) for name, values in known.items() if values}


def read_imports(view: RunView, plan: CalibrationPlan, imports: Iterable[ImportedArm]) -> list[StoredPoint]:
    """Read every file that a run imports: measurements of other load generators, fitted and judged like any other.

    Raises:
        NotCopyableError: a ConfigMap or key is not there, or a file cannot stand for its arm; says which and why.
    """
    found: list[StoredPoint] = []
    yaml_size = 0
    for one in imports:
        index = 0
        for key in one.config_map.keys:
            yaml_size += _yaml_size(view, one, key)
            if yaml_size > _MOST_YAML:
                raise _refused("more than 1 MiB of YAML in all; expected JSON, or fewer reports")
            points = _points(view, plan, one, key)
            if len(found) + len(points) > _MOST_POINTS:
                raise _refused(f"{len(found) + len(points)} points; expected at most {_MOST_POINTS}")
            try:
                found += (stored(one.arm, place, point, None) for place, point in enumerate(points, index))
            except ValidationError as error:
                field = ".".join(str(part) for part in error.errors()[0]["loc"])
                raise _refused(f"{one.arm}: {field} does not fit a CalibrationRun") from None
            index += len(points)
    return found


def _yaml_size(view: RunView, one: ImportedArm, key: str) -> int:
    """Characters of a file that is YAML; 0 of any other, and of one that is not there."""
    data = (view.config_maps.get(one.config_map.name) or {}).get("data") or {}
    text = str(data.get(key) or "")
    return len(text) if is_yaml(text) else 0


def _points(view: RunView, plan: CalibrationPlan, one: ImportedArm, key: str) -> list[Point]:
    name = one.config_map.name
    if name not in view.config_maps:
        raise _refused(
            f"ConfigMap {name} may not be read: grant the operator `get` on configmaps (chart: rbac)"
        )
    where = f"ConfigMap {name}, key {key}"
    planned = next(arm for arm in plan.arms if arm.arm == one.arm)
    arm = Arm(planned.method, planned.k, planned.candidate)
    text = text_of(view.config_maps, name, key, "importFrom")
    try:
        points = read_text(text, where, arm, _MOST_POINTS)
    except InputError as error:
        raise _refused(str(error)) from None
    for point in points:
        if (point.method, point.k) != (arm.method, arm.k) or point.schedule is not None:
            raise _refused(
                f"{point.origin}: arm {point.arm.name}; expected {one.arm} ({arm.method}, {arm.k})"
            )
        _check_setting(point, plan)
    return [replace(point, candidate=arm.candidate, sweep=None, text_source=_TEXT) for point in points]


def _check_setting(point: Point, plan: CalibrationPlan) -> None:
    """Refuse a point that names another GPU or model; most files name neither."""
    if point.gpu is not None and point.gpu != plan.gpu_product:
        raise _refused(f"{point.origin}: gpu {point.gpu[:64]!r}; expected {plan.gpu_product}")
    served = {plan.model, plan.served_model_name} - {None}
    if point.model is not None and served and point.model not in served:
        expected = " or ".join(sorted(str(name) for name in served))
        raise _refused(f"{point.origin}: model {point.model[:64]!r}; expected {expected}")


def _arm_status(arm: str, points: list[StoredPoint]) -> ArmStatus:
    usable = sum(point.usable for point in measured_of(points))
    phase, reason = ArmPhase.DONE, ClusterReason.ARM_MEASURED
    message = f"{usable} usable points imported"
    if not usable:
        phase, reason = ArmPhase.FAILED, ClusterReason.INPUT_REFUSED
        message = f"no usable point among {len(points)} imported"
    return ArmStatus(arm=arm, phase=phase, reason=str(reason), message=message)


def _refused(message: str) -> NotCopyableError:
    return NotCopyableError(ClusterReason.INPUT_REFUSED, f"importFrom: {message}")
