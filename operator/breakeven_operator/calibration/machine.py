"""The life of a CalibrationRun: one arm after the other on one Job each, then the fit; a pure function per cycle.

    Pending ──> Starting ──> Measuring ──> Fitting ──> Succeeded
        └───────────┴────────────┴────────────┴──────> Failed, Superseded

Everything that has to survive the operator stands in the run's status before anything is done about it; whatever Job
is not the present arm's is deleted in every cycle, and all of them when the run ends.
"""

from __future__ import annotations

from datetime import datetime

from breakeven_operator.calibration import podcopy
from breakeven_operator.calibration.planning import make_plan
from breakeven_operator.calibration.trials import Trials
from breakeven_operator.calibration.turn import Turn, job_ref
from breakeven_operator.plan import Action, Delete, EmitEvent
from breakeven_operator.ports import RunView
from breakeven_operator.reasons import ClusterReason
from breakeven_operator.resources.calibrationrun import ArmPhase, ArmStatus, CalibrationRun, Phase
from breakeven_operator.resources.speculativeservice import SpeculativeService


def advance(view: RunView, now: datetime) -> tuple[Action, ...]:
    """What to do about one unfinished run this cycle.

    Raises:
        InputError: the run or its service cannot be read.
    """
    run = read_run(view)
    jobs = tuple(Delete(job_ref(job)) for job in view.jobs)
    if run.status.phase is not None and run.status.phase.final:
        return jobs
    if view.service is None or run.metadata.deletion_timestamp is not None:
        # The run goes with its service and the Jobs go with the run; deleting them frees the GPUs at once.
        return jobs
    service = SpeculativeService.read(
        view.service, f"SpeculativeService {run.metadata.namespace}/{run.spec.service_ref.name}"
    )
    turn = Turn(view, run, now)
    if view.duplicate_of is not None:
        return turn.finish(
            Phase.SUPERSEDED, ClusterReason.CALIBRATION_SUPERSEDED, f"{view.duplicate_of} does the same"
        )
    if run.status.plan is None:
        return _admit(turn, service)
    if view.fingerprint is not None and view.fingerprint != run.status.plan.fingerprint:
        return turn.finish(
            Phase.SUPERSEDED,
            ClusterReason.CALIBRATION_SUPERSEDED,
            f"the target changed during the run ({run.status.plan.fingerprint} became {view.fingerprint}): what was"
            " measured no longer counts",
        )
    return Trials(turn, run.status.plan).go()


def read_run(view: RunView) -> CalibrationRun:
    """Parse the run.

    Raises:
        InputError: it cannot be read.
    """
    meta = view.run["metadata"]
    return CalibrationRun.read(view.run, f"CalibrationRun {meta['namespace']}/{meta['name']}")


def _admit(turn: Turn, service: SpeculativeService) -> tuple[Action, ...]:
    """Fix what is measured, unless the run has to wait or cannot be done at all."""
    waits = (
        "spec.paused is true" if service.spec.paused else "another calibration is under way or has just ended"
    )
    if service.spec.paused or not turn.view.may_start:
        return turn.write(
            {"phase": Phase.PENDING, "reason": str(ClusterReason.CALIBRATION_DEFERRED), "message": waits}
        )
    try:
        plan = make_plan(turn.view, turn.run, service)
    except podcopy.NotCopyableError as refusal:
        return turn.finish(Phase.FAILED, refusal.reason, refusal.message)
    names = ", ".join(arm.arm for arm in plan.arms)
    message = f"arms {names}; {plan.loads} loads each; at most {plan.budget.max_gpu_seconds} GPU-seconds"
    return (
        *turn.write(
            {
                "phase": Phase.STARTING,
                "reason": str(ClusterReason.CALIBRATION_STARTED),
                "message": message[:1024],
                "plan": plan,
                "started_time": turn.now,
                "arm_statuses": tuple(ArmStatus(arm=arm.arm, phase=ArmPhase.WAITING) for arm in plan.arms),
            }
        ),
        EmitEvent(turn.ref, str(ClusterReason.CALIBRATION_STARTED), message),
    )
