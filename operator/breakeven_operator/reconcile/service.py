"""One service, one cycle: from what is wanted and what is seen to an ActionPlan. Pure; called again after a crash it agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from breakeven.arm import Arm
from breakeven.estimate import Estimate
from breakeven_operator.actions import Action, ActionPlan, Create, EmitEvent, WriteAnnotation, WriteStatus
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import RUNS, SERVICES, Ref
from breakeven_operator.ports import MeanLengths
from breakeven_operator.reconcile.active_profile import (
    Calibrated,
    calibrated,
)
from breakeven_operator.reconcile.annotation_owner import hand_back, note_writers, taken_over
from breakeven_operator.reconcile.barred_arms import barred
from breakeven_operator.reconcile.case import Case
from breakeven_operator.reconcile.case_reading import context_of, lengths_of, read_case
from breakeven_operator.reconcile.decide import Choice
from breakeven_operator.reconcile.doubts import take_account
from breakeven_operator.reconcile.events import events, facts
from breakeven_operator.reconcile.judge import blocked, judge
from breakeven_operator.reconcile.leaving import LEAVING
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.observation import CycleLimits, ServiceObservation
from breakeven_operator.reconcile.rollout import ExpectedSpeedup, begin, forget_target, watch
from breakeven_operator.reconcile.scaling import fleet_need
from breakeven_operator.reconcile.status_diff import Worth, worth_writing
from breakeven_operator.reconcile.status_report import CycleFacts, report
from breakeven_operator.reconcile.steps import RolloutContext, RolloutStep, ended_roll
from breakeven_operator.reconcile.target import Refusal, refuse_rolls, refuse_target
from breakeven_operator.reconcile.verdict import HOLD, SWITCH, Verdict
from breakeven_operator.reconcile.verification import RollEvidence, settled, so_far, verify
from breakeven_operator.refused_writes import RefusedWrite, of_annotation
from breakeven_operator.resources import SpeculativeService, SpeculativeServiceStatus
from breakeven_operator.resources.memorystatus import LONGEST_VALUE, MemoryStatus
from breakeven_operator.resources.rolloutstatus import HistoryResult, RolloutPhase
from breakeven_operator.resources.servicestatus import ServiceWorkings
from breakeven_operator.workloads.running_arm import same_value
from breakeven_operator.workloads.workload import Workload

RESUME_ANNOTATION = "breakeven.dev/resume"


@dataclass(frozen=True, slots=True)
class ServiceOutcome:
    """A plan, and the status it leads to (also when that is not worth a write).

    Attributes:
        plan: what to do.
        status: as published to metrics.
        verdict: of this cycle.
        lengths: mean prompt and output tokens of the target's recent requests; None if not known.
        unwritten: whether the status has moved, and waits for the written one to be old enough.
        otherwise: the status to go on from if the API server refuses the annotation that the plan writes; None: it writes
            none.
    """

    plan: ActionPlan
    status: SpeculativeServiceStatus
    verdict: Verdict
    lengths: MeanLengths | None = None
    unwritten: bool = False
    otherwise: SpeculativeServiceStatus | None = None


def reconcile(
    service: SpeculativeService, observation: ServiceObservation, limits: CycleLimits, now: datetime
) -> ServiceOutcome:
    """Decide about one service.

    Args:
        service: spec, status and annotations as the API server holds them.
        observation: what surrounds it.
        limits: the operator's own settings.
        now: time of the observation.
    """
    workload = observation.workload
    refusal = refuse_target(service.spec, workload, observation.managed_by, observation.target_problem)
    if refusal is not None or workload is None or workload.engine is None or workload.identity is None:
        return _refused(service, observation, workload, refusal, limits, now)

    case, evidence = read_case(service, observation, workload, now)
    step = _go_on(case.service, case.context, evidence)
    if step.write is not None and (waits := of_annotation(observation.failures, now, step.write)):
        step = step.held(waits)
    case = _with_need(case.after(step))
    cannot_roll = refuse_rolls(case.spec, workload, observation.claims)
    verdict, choice = judge(case, step, observation.later)
    window_s = case.spec.metrics_source.window_seconds
    case = case.remembering(take_account(case, choice, settled=settled(case.context, window_s)))
    step = replace(step, memory=case.memory)
    if verdict.action == SWITCH and verdict.arm is not None and case.running.arm is not None:
        begun = _begun(case, step, evidence, verdict, choice)
        held = blocked(case, verdict, choice, cannot_roll) or _held_outside(
            verdict, verdict.arm, limits, of_annotation(observation.failures, now, begun.write)
        )
        step, verdict = (begun, verdict) if held is None else (step, held)
    memory = note_writers(
        _of_target(_with_tokens(step.memory, case.calibrated), workload),
        workload,
        writing=step.write is not None,
    )
    cycle = CycleFacts(
        service=case.service,
        workload=workload,
        running=case.running,
        calibrated=case.calibrated,
        live=case.live,
        step=replace(step, memory=memory),
        choice=choice,
        verdict=verdict,
        cannot_roll=cannot_roll,
        now=now,
        need=case.need,
        objectives=case.objectives,
        failures=_still_wanted(observation.failures, step, case.calibrated, now),
    )
    outcome = _outcome(cycle, observation.written, limits)
    if step.write is None:
        return outcome
    if step.otherwise is None:
        return replace(outcome, otherwise=outcome.status)
    kept = replace(step.otherwise, memory=_with_tokens(step.otherwise.memory, case.calibrated))
    return replace(outcome, otherwise=report(replace(cycle, step=kept)))


def _with_need(case: Case) -> Case:
    """The case with the replicas that its load needs."""
    need = fleet_need(
        case.spec,
        case.profile,
        case.workload,
        case.running,
        case.live,
        case.memory,
        case.engine_limits.running,
    )
    return replace(case, need=need)


def _begun(
    case: Case, step: RolloutStep, evidence: RollEvidence, verdict: Verdict, choice: Choice
) -> RolloutStep:
    """The step that begins a change of arm."""
    running, wanted, rollout = case.running.arm, verdict.arm, case.context.rollout
    assert running is not None and wanted is not None  # noqa: PT018, S101 - no change without both
    started = begin(
        replace(case.context, rollout=None if rollout is None else so_far(rollout, evidence)),
        running,
        wanted,
        case.spec.candidates.speculative_config(wanted),
        str(verdict.reason),
        _prediction(choice, case.live),
        case.service.metadata.uid,
    )
    memory = started.memory
    if isinstance(verdict.reason, ClusterReason) and verdict.reason in LEAVING:
        name = case.calibrated.profile_name
        memory = barred(memory, running.name, verdict.reason, verdict.message, name, case.now)
    return replace(_joined(step, started), memory=memory, otherwise=step)


def _held_outside(
    verdict: Verdict, arm: Arm, limits: CycleLimits, waits: RefusedWrite | None
) -> Verdict | None:
    """Why a roll waits for what is not the service's: the fleet's places, then the API server; None: it does not."""
    if not limits.may_roll:
        message = (
            f"{arm} should run ({verdict.reason}), but other services are being rolled; this one is next"
        )
        return Verdict(HOLD, arm, ClusterReason.ROLL_QUEUED, message)
    if waits is not None:
        message = f"{arm} should run ({verdict.reason}), but {waits.sentence}"
        return Verdict(HOLD, arm, ClusterReason.WRITE_REFUSED, message)
    return None


def conflicted(
    service: SpeculativeService,
    outcome: ServiceOutcome,
    workload: Workload,
    managers: tuple[str, ...],
    now: datetime,
) -> ActionPlan:
    """The API server refused the annotation because others own it: remember it, say it, wait for a person.

    Args:
        service: as it was read.
        outcome: the decision that asked for the annotation. Its figures stand, and so do the results of this cycle.
        workload: the target.
        managers: who owns the annotation.
        now: time of the observation.
    """
    shown, kept = outcome.status, outcome.otherwise
    assert kept is not None  # noqa: S101 - the plan writes an annotation
    context = context_of(service.with_status(kept), workload, None, now)
    step = taken_over(context, ", ".join(managers), "owns the annotation")
    memory = step.memory.replace(written_value=workload.value)
    changed = shown.replace(
        workings=ServiceWorkings(memory=memory, display=shown.display),
        rollout=None,
        history=step.history(kept.history),
    )
    ref = reference(service)
    return ActionPlan(
        subject=ref,
        actions=(
            WriteStatus(ref, changed.to_json_object()),
            *(EmitEvent(ref, str(e.reason), e.message, e.warning) for e in step.events),
        ),
        facts={"reason": str(ClusterReason.TAKEN_OVER), "managers": list(managers)},
    )


def _still_wanted(
    failures: Sequence[RefusedWrite], step: RolloutStep, state: Calibrated, now: datetime
) -> tuple[RefusedWrite, ...]:
    """Without a write that may be tried again now and that this cycle does not ask for any more."""

    def wanted(one: RefusedWrite) -> bool:
        match one.action:
            case WriteAnnotation():
                return step.write is not None
            case Create(resource) if resource == RUNS:
                return state.create is not None
            case _:
                return True

    return tuple(one for one in failures if now < one.until or wanted(one))


def reference(service: SpeculativeService) -> Ref:
    """The service's own address."""
    meta = service.metadata
    return Ref(SERVICES, meta.namespace, meta.name, meta.uid)


def _go_on(service: SpeculativeService, context: RolloutContext, evidence: RollEvidence) -> RolloutStep:
    """Whatever is under way, before anything new is thought of."""
    seen = service.status.target
    before = context.memory.target_uid or (seen.uid if seen is not None else None)
    if before not in {None, context.workload.ref.uid}:
        return forget_target(context)
    resume = service.metadata.annotations.get(RESUME_ANNOTATION, "")[:LONGEST_VALUE]
    handed = hand_back(context, resume, paused=service.spec.paused)
    if handed is not None:
        if handed.busy:
            return handed
        context = replace(context, memory=handed.memory)
        step = _joined(handed, watch(context))
    else:
        step = watch(context)
    rolling = step.rollout is not None and step.rollout.phase is RolloutPhase.ROLLING
    if step.write is not None or (step.busy and not rolling):
        return step
    judged = verify(replace(context, memory=step.memory, rollout=step.rollout), evidence)
    return _joined(step, judged) if judged is not None else step


def _prediction(choice: Choice, live: Live) -> ExpectedSpeedup:
    figures, speedup = live.figures, Estimate()
    comparison = choice.explained.against_running if choice.explained is not None else None
    if comparison is not None and comparison.speedup is not None:
        speedup = Estimate.of(comparison.speedup, comparison.speedup_ci)
    if figures is None:
        return ExpectedSpeedup(speedup)
    return ExpectedSpeedup(speedup, figures.rps, figures.latency_s)


def _joined(first: RolloutStep, second: RolloutStep) -> RolloutStep:
    """Two steps of one cycle: the later one decides, nothing that was said is lost."""
    return replace(
        second,
        ended=(*first.ended, *second.ended),
        events=(*first.events, *second.events),
        write=second.write or first.write,
    )


def _with_tokens(memory: MemoryStatus, state: Calibrated) -> MemoryStatus:
    return memory.replace(recalibrate=state.recalibrate)


def _of_target(memory: MemoryStatus, workload: Workload) -> MemoryStatus:
    """The memory as that of this very target."""
    return memory.replace(target_uid=workload.ref.uid)


def _refused(
    service: SpeculativeService,
    observation: ServiceObservation,
    workload: Workload | None,
    refusal: Refusal | None,
    limits: CycleLimits,
    now: datetime,
) -> ServiceOutcome:
    """A target that cannot be looked at: say why; a calibration that runs is not ours to judge here.

    A calibration that ended because the target is gone is asked for again at once: what it was asked is still open, and
    the new run waits until the target is back.
    """
    assert refusal is not None  # noqa: S101 - without a refusal there is a workload with a container
    state = calibrated(service, None, observation.profiles, observation.runs, None, now)
    verdict = Verdict(HOLD, None, refusal.reason, refusal.message)
    step = _while_refused(service, observation, workload, now)
    cycle = CycleFacts(
        service=service,
        workload=workload,
        running=None,
        calibrated=state if refusal.reason is ClusterReason.TARGET_NOT_FOUND else replace(state, create=None),
        live=None,
        step=step,
        choice=Choice(explained=None, memory=step.memory),
        verdict=verdict,
        cannot_roll=refusal,
        now=now,
        failures=tuple(observation.failures),
    )
    return _outcome(cycle, observation.written, limits)


def _while_refused(
    service: SpeculativeService,
    observation: ServiceObservation,
    workload: Workload | None,
    now: datetime,
) -> RolloutStep:
    """The state of a change under way while its target cannot be read.

    A target that is gone takes it along. One that another service has is that one's. Of any other the change goes on to its
    end, or to its deadline: new pods on another GPU class are no reason to leave half of a roll for ever.
    """
    memory, rollout = service.status.memory or MemoryStatus(), service.status.rollout
    if rollout is None or observation.managed_by is not None:
        return RolloutStep(rollout, memory)
    if workload is None:
        entry = ended_roll(rollout, HistoryResult.SUPERSEDED, "the target is gone", now)
        return RolloutStep(None, memory, ended=(entry,))
    same = memory.target_uid in {None, workload.ref.uid}
    unwritten = rollout.phase is RolloutPhase.INTENDED and not same_value(workload.value, rollout.value)
    if not same or unwritten or rollout.phase is RolloutPhase.CONFIRMING:
        return RolloutStep(rollout, memory)
    return watch(context_of(service, workload, None, now))


def _outcome(cycle: CycleFacts, holds: Mapping[str, Any], limits: CycleLimits) -> ServiceOutcome:
    """Order matters: what must survive a crash is written before what it announces."""
    service, step, verdict = cycle.service, cycle.step, cycle.verdict
    status = report(cycle)
    ref = reference(service)
    old = service.status
    written = old.decision.time if old.decision is not None else None
    forced = step.write is not None or bool(step.ended) or bool(cycle.calibrated.ended)
    document = status.to_json_object()
    worth = Worth.NOW
    if not forced:
        worth = worth_writing(holds, document, written, cycle.now, limits.status_refresh_s)
    actions: list[Action] = []
    if cycle.calibrated.create is not None:
        # Named after its cause: created twice it is one. The status that counts it must not come first.
        actions.append(cycle.calibrated.create)
    if worth is Worth.NOW:
        # Status from an object that has changed meanwhile could undo a newer intent: the write is conditional.
        actions.append(WriteStatus(ref, document, service.metadata.resource_version or None))
    if step.write is not None:
        actions.append(step.write)
    actions.extend(
        EmitEvent(ref, str(e.reason), e.message, e.warning, e.throttled) for e in events(cycle, old)
    )
    return ServiceOutcome(
        plan=ActionPlan(subject=ref, actions=tuple(actions), facts=facts(cycle, status)),
        status=status,
        verdict=verdict,
        lengths=lengths_of(cycle.live),
        unwritten=worth is Worth.LATER,
    )
