"""The beginning of a run: what it waits for, the files it reads, and its plan with the first state of each arm."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from breakeven.phrases import counted, spoken
from breakeven_operator.actions import Action, EmitEvent, WriteStatus
from breakeven_operator.calibration.display import human_time
from breakeven_operator.calibration.importing import MANAGER, Imported, read_imports
from breakeven_operator.calibration.podcopy import NotCopyableError
from breakeven_operator.calibration.run_plan import make_plan
from breakeven_operator.calibration.run_view import RunView
from breakeven_operator.calibration.sending import named_files
from breakeven_operator.calibration.transition import Transition
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.calibrationrun import ArmPhase, ArmStatus, RunPhase
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
        reason = ClusterReason.IMPORT_REFUSED if imports else ClusterReason.WORKLOAD_INVALID
        return transition.finish(RunPhase.FAILED, reason, transition.view.files_problem)
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
                "reason": str(ClusterReason.CALIBRATION_STARTED),
                "message": message[:1024],
                "plan": plan,
                "started_time": transition.now,
                "arm_statuses": statuses,
            }
        ),
        EmitEvent(transition.ref, str(ClusterReason.CALIBRATION_STARTED), message),
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
        return f"pods run on {' and '.join(view.target.gpu_classes)} (MixedGpuClasses): a run begins once they share a GPU class"
    if not view.target.identifiable:
        return "no pod serves with the target's present template yet: neither image nor GPU class is known"
    if not view.may_start:
        return "as many calibrations as are allowed at a time are under way"
    return None
