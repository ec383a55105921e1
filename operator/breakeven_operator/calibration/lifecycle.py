"""The life of a CalibrationRun: one arm after the other on one Job each, then the fit; a pure function per cycle.

    Pending ──> Starting ──> Measuring ──> Fitting ──> Succeeded
        └───────────┴────────────┴────────────┴──────> Failed, Superseded

Everything that has to survive the operator stands in the run's status before anything is done about it; whatever Job
is not the present arm's is deleted in every cycle, and all of them when the run ends.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from breakeven.errors import InputError
from breakeven_operator.actions import Action, Delete, DoneFit, EmitEvent, WriteStatus
from breakeven_operator.calibration import podcopy
from breakeven_operator.calibration.arm_trials import Trials
from breakeven_operator.calibration.run_beginning import admit
from breakeven_operator.calibration.run_view import RunView
from breakeven_operator.calibration.transition import Transition, job_ref
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import RUNS, Ref
from breakeven_operator.reconcile.conditions import Aspect, merge
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources.calibrationrun import (
    CalibrationPlan,
    CalibrationRunStatus,
    RunPhase,
    read_run,
)
from breakeven_operator.resources.speculativeservice import SpeculativeService

_SERVICE_COMES = timedelta(minutes=5)


def advance(view: RunView, now: datetime, fitted: DoneFit | None = None) -> tuple[Action, ...]:
    """Actions of this cycle for one unfinished run.

    Args:
        view: the run and its surroundings.
        now: time of the observation.
        fitted: a fit that this run asked for in order to settle its next arm.

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
    ended = run.status.phase is not None and run.status.phase.final
    if ended or run.metadata.deletion_timestamp is not None:
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
    if run.status.plan is None:
        return admit(transition, service)
    change = _change_of_target(view, run.status.plan, service.spec.target_ref.kind)
    if change is not None:
        reason = ClusterReason.TARGET_NOT_FOUND if view.target is None else ClusterReason.FINGERPRINT_CHANGED
        return transition.finish(RunPhase.SUPERSEDED, reason, change)
    return Trials(transition, run.status.plan, service.spec, fitted).go()


def refused(view: RunView, write: RefusedWrite, now: datetime) -> tuple[Action, ...]:
    """The state of a run while the API server refuses one of its writes: it stays where it was, and fails in the end.

    Announcements before the refused write are taken back with it: a Job that was never made is no attempt.

    Raises:
        InputError: the run cannot be read.
    """
    transition = Transition(view, read_run(view.run), now)
    if isinstance(write.action, WriteStatus):
        event = EmitEvent(transition.ref, str(write.reason), write.sentence, warning=True, throttled=True)
        return (event,)
    plan = transition.run.status.plan
    if plan is not None and (now - write.since).total_seconds() > plan.pending_deadline_seconds:
        return transition.finish(RunPhase.FAILED, ClusterReason.WRITE_REFUSED, write.sentence)
    return (
        *transition.write({"reason": str(write.reason), "message": write.sentence[:1024]}),
        EmitEvent(transition.ref, str(write.reason), write.sentence, warning=True, throttled=True),
    )


def _unreadable(view: RunView, problem: InputError, now: datetime) -> tuple[Action, ...]:
    """The end of a run whose spec or status a person has changed to what no operator writes, with its Jobs.

    Left as it is, it would be in the way of every other run of its service for ever.
    """
    meta, found = view.run["metadata"], view.run.get("status") or {}
    reason, message = str(ClusterReason.CALIBRATION_FAILED), f"it cannot be read: {problem}"[:1024]
    aspects = (Aspect("Complete", True, reason, message), Aspect("Succeeded", False, reason, message))
    over = CalibrationRunStatus(
        phase=RunPhase.FAILED,
        reason=reason,
        message=message,
        finished_time=now,
        conditions=merge((), aspects, now),
    )
    # The rest stays as it is: without it a part that a person owns would break the schema, and the write with it.
    kept = {key: part for key, part in found.items() if key not in {"points", "answers"}}
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
    """How the target differs from the one that the run began to measure; None while it does not differ.

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
