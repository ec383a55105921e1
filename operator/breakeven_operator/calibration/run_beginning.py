"""The beginning of a run: what it waits for, the files it reads, and its plan with the first state of each arm."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from pydantic import ValidationError

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.phrases import counted, spoken
from breakeven.points.point import Point
from breakeven.readers.reading import is_yaml, read_text
from breakeven_operator.actions import Action, EmitEvent, WriteStatus
from breakeven_operator.calibration.display import human_time
from breakeven_operator.calibration.measurements import MIN_POINTS, measured_of, stored
from breakeven_operator.calibration.podcopy import NotCopyableError
from breakeven_operator.calibration.run_plan import make_plan
from breakeven_operator.calibration.run_view import RunView
from breakeven_operator.calibration.sending import named_files, text_of
from breakeven_operator.calibration.transition import Transition
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.calibrationrun import (
    ArmPhase,
    ArmStatus,
    CalibrationPlan,
    ImportedArm,
    RunPhase,
    StoredPoint,
)
from breakeven_operator.resources.calibrationspec import LoadChoice
from breakeven_operator.resources.speculativeservice import SpeculativeService


def files_read(view: RunView) -> Mapping[str, Collection[str]]:
    """The files that `admit` reads now, keys by the name of their ConfigMap: those of a run that begins in this cycle.

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
        return transition.write(
            {"phase": RunPhase.PENDING, "reason": str(ClusterReason.CALIBRATION_DEFERRED), "message": waits}
        )
    imports = transition.run.spec.import_from
    if transition.view.files_problem is not None:
        return transition.finish(RunPhase.FAILED, ClusterReason.INPUT_REFUSED, transition.view.files_problem)
    try:
        plan = make_plan(transition.view, transition.run, service)
        imported = read_imports(transition.view, plan, imports) if imports else None
    except NotCopyableError as refusal:
        return transition.finish(RunPhase.FAILED, refusal.reason, refusal.message)
    names = ", ".join(spoken(arm.arm) for arm in plan.arms)
    if imported is None:
        statuses = tuple(ArmStatus(arm=arm.arm, phase=ArmPhase.WAITING) for arm in plan.arms)
        most = "at most " if plan.load_choice is LoadChoice.AUTO else ""
        message = (
            f"arms {names}; {most}{plan.loads} loads each; at most {plan.budget.max_gpu_seconds} GPU-seconds"
            f" and {human_time(plan.budget.max_duration_seconds)}"
        )
    else:
        plan = plan.replace(**imported.lengths())
        statuses, message = imported.arms, f"arms {names}; {counted(len(imported.points), 'point')} imported"
    return (
        *_durable(transition, imported),
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


def _durable(transition: Transition, imported: Imported | None) -> tuple[Action, ...]:
    """Imported points stand in the status before the plan that rests on them, so that the files are never read again."""
    if imported is None:
        return ()
    points = [point.to_json_object() for point in imported.points]
    return (WriteStatus(transition.ref, {"points": points}, manager=MANAGER),)


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


# Measurements of other load generators as the points of a run: nothing starts, and the fit is judged like any other.


MANAGER = "breakeven-import"
"""Field manager of imported points, as each arm's driver has its own."""
_TEXT = "imported results"
_MOST_POINTS = 1000
# A megabyte of YAML takes two seconds, a hundred times as long as JSON, and the cycle waits for it.
_MOST_YAML = 1 << 20


class Imported(NamedTuple):
    """The points and arms that a run imports.

    Attributes:
        points: of all arms, as the run's status holds them.
        arms: result of each arm.
    """

    points: tuple[StoredPoint, ...]
    arms: tuple[ArmStatus, ...]

    def lengths(self) -> dict[str, int]:
        """Mean lengths as a plan has them, of the points that say them."""
        columns = ("prompt_tokens", "output_tokens")
        known = {
            name: [value for point in self.points if (value := getattr(point, name)) is not None]
            for name in columns
        }
        return {name: max(1, round(sum(values) / len(values))) for name, values in known.items() if values}


def read_imports(view: RunView, plan: CalibrationPlan, imports: Iterable[ImportedArm]) -> Imported:
    """Read every file that a run imports.

    Args:
        view: with the ConfigMaps.
        plan: of the run; its arms are those that are imported.
        imports: which files are of which arm.

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
    arms = tuple(
        _arm_status(arm.arm, [point for point in found if point.arm == arm.arm]) for arm in plan.arms
    )
    return Imported(tuple(found), arms)


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
    if usable >= MIN_POINTS:
        message = f"{usable} usable points imported"
        return ArmStatus(
            arm=arm, phase=ArmPhase.DONE, reason=str(ClusterReason.ARM_MEASURED), message=message
        )
    message = f"only {usable} of {len(points)} imported points are usable, {MIN_POINTS} are needed"
    return ArmStatus(arm=arm, phase=ArmPhase.FAILED, reason=str(ClusterReason.INPUT_REFUSED), message=message)


def _refused(message: str) -> NotCopyableError:
    return NotCopyableError(ClusterReason.INPUT_REFUSED, f"importFrom: {message}")
