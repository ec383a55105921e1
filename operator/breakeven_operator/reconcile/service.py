"""One service, one cycle: from what is wanted and what is seen to an ActionPlan. Pure; called again after a crash it agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from breakeven.arm import Arm
from breakeven.estimate import Estimate
from breakeven.serving.plausibility import EngineLimits, engine_limits
from breakeven_operator.actions import Action, ActionPlan, Create, EmitEvent, WriteAnnotation, WriteStatus
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import RUNS, SERVICES, Ref
from breakeven_operator.ports import MeanLengths
from breakeven_operator.reconcile.active_profile import (
    Calibrated,
    awaiting,
    calibrated,
    with_measured_schedules,
)
from breakeven_operator.reconcile.annotation_owner import hand_back, note_writers, taken_over
from breakeven_operator.reconcile.arrival_metrics import arrivals_of
from breakeven_operator.reconcile.barred_arms import barred, still_barred
from breakeven_operator.reconcile.carried import with_carried
from breakeven_operator.reconcile.decide import Choice
from breakeven_operator.reconcile.doubts import doubt_of, rules_of, take_account
from breakeven_operator.reconcile.events import events, facts
from breakeven_operator.reconcile.judge import blocked, judge
from breakeven_operator.reconcile.latency_metrics import latencies_of
from breakeven_operator.reconcile.leaving import LEAVING
from breakeven_operator.reconcile.live_metrics import Live, read_service
from breakeven_operator.reconcile.objectives import Objectives, measured
from breakeven_operator.reconcile.observation import CycleLimits, ServiceObservation
from breakeven_operator.reconcile.past_metrics import LoadOwner, past_of
from breakeven_operator.reconcile.rollout import ExpectedSpeedup, begin, forget_target, watch
from breakeven_operator.reconcile.scaling import fleet_need
from breakeven_operator.reconcile.status_diff import Worth, worth_writing
from breakeven_operator.reconcile.status_report import CycleFacts, report
from breakeven_operator.reconcile.steps import RolloutContext, RolloutStep, ended_roll
from breakeven_operator.reconcile.target import Refusal, refuse_rolls, refuse_target
from breakeven_operator.reconcile.verdict import HOLD, SWITCH, Verdict
from breakeven_operator.reconcile.verification import RollEvidence, settled, so_far, verify
from breakeven_operator.refused_writes import RefusedWrite, of_annotation, of_creation
from breakeven_operator.resources import SpeculativeService, SpeculativeServiceStatus
from breakeven_operator.resources.memorystatus import LONGEST_VALUE, MemoryStatus
from breakeven_operator.resources.rolloutstatus import HistoryResult, RolloutPhase
from breakeven_operator.resources.servicestatus import ServiceWorkings
from breakeven_operator.resources.updatepolicy import Mode
from breakeven_operator.workloads.running_arm import running_arm, same_value
from breakeven_operator.workloads.workload import Workload

RESUME_ANNOTATION = "breakeven.dev/resume"


@dataclass(frozen=True, slots=True)
class ServiceOutcome:
    """A plan, and the status it leads to (also when that is not worth a write).

    Attributes:
        plan: what to do.
        status: as published to metrics.
        verdict: of this cycle.
        lengths: mean prompt and output tokens of the target's recent requests; None when not known.
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

    state = calibrated(
        service,
        workload.proven_identity,
        observation.profiles,
        observation.runs,
        workload.startup_s,
        now,
        lambda entry: doubt_of(service.status.memory or MemoryStatus(), entry, rules_of(service.spec), now),
        of_creation(observation.failures, RUNS, now),
    )
    state = awaiting(state, workload)
    service = with_measured_schedules(service, state.entry, observation.profiles)
    running = running_arm(workload, service.spec.candidates)
    can = engine_limits(workload.engine.words, running.arm, service.spec.candidates.arms())
    model_name = service.spec.metrics_source.served_model_name or workload.identity.served_model or ""
    live = _live(service, observation, workload, model_name, can, now)
    objectives = _objectives(service, observation, workload, model_name, live, now)
    # A roll is measured with the laws as they were measured: what a saturated arm was seen to carry bends their slopes.
    measured_entry = state.entry
    state = with_carried(state, running.arm, live)
    context = _context(service, workload, state.status.startup_seconds, now)
    context = replace(context, memory=still_barred(context.memory, state.profile_name))
    evidence = RollEvidence(
        observation.roll.latencies if observation.roll is not None else None,
        service.metadata.namespace,
        model_name,
        measured_entry,
        _lengths(live),
        service.spec.metrics_source.window_seconds,
        observation.roll.failures if observation.roll is not None else None,
    )
    step = _go_on(service, context, evidence)
    if step.write is not None and (waits := of_annotation(observation.failures, now, step.write)):
        step = step.held(waits)
    context = replace(context, memory=step.memory, rollout=step.rollout)
    cannot_roll = refuse_rolls(service.spec, workload, observation.claims)
    need = fleet_need(service.spec, state.profile, workload, running, live, context.memory, can.running)
    verdict, choice = judge(service, context, state, live, running, step, need, objectives, observation.later)
    memory = take_account(
        choice.memory,
        service.spec,
        state.profile,
        state.profile_name,
        running.measured_instead or running.arm,
        choice,
        live,
        now,
        settled=settled(context, service.spec.metrics_source.window_seconds),
    )
    context = replace(context, memory=memory)
    if verdict.action == SWITCH and verdict.arm is not None and running.arm is not None:
        value = service.spec.candidates.speculative_config(verdict.arm)
        write = WriteAnnotation(workload.ref, value, workload.generation)
        held = blocked(
            service, context, state, live, running.arm, verdict, cannot_roll, choice
        ) or _held_outside(verdict, verdict.arm, limits, of_annotation(observation.failures, now, write))
        if held is None:
            measured_so_far = so_far(context.rollout, evidence) if context.rollout is not None else None
            started = begin(
                replace(context, rollout=measured_so_far),
                running.arm,
                verdict.arm,
                value,
                str(verdict.reason),
                _prediction(choice, live),
                service.metadata.uid,
            )
            step = replace(_joined(step, started), otherwise=replace(step, memory=memory))
            memory = started.memory
            if isinstance(verdict.reason, ClusterReason) and verdict.reason in LEAVING:
                memory = barred(
                    memory, running.arm.name, verdict.reason, verdict.message, state.profile_name, now
                )
        else:
            verdict = held
    cycle = CycleFacts(
        service=service,
        workload=workload,
        running=running,
        calibrated=state,
        live=live,
        step=replace(
            step,
            memory=note_writers(
                _of_target(_with_tokens(memory, state), workload),
                workload,
                writing=step.write is not None,
            ),
        ),
        choice=choice,
        verdict=verdict,
        cannot_roll=cannot_roll,
        now=now,
        need=need,
        objectives=objectives,
        failures=_still_wanted(observation.failures, step, state, now),
    )
    outcome = _outcome(cycle, observation.written, limits)
    if step.write is None:
        return outcome
    if step.otherwise is None:
        return replace(outcome, otherwise=outcome.status)
    kept = replace(step.otherwise, memory=_with_tokens(step.otherwise.memory, state))
    return replace(outcome, otherwise=report(replace(cycle, step=kept)))


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
    shown: SpeculativeServiceStatus,
    workload: Workload,
    managers: tuple[str, ...],
    now: datetime,
) -> ActionPlan:
    """The API server refused the annotation because others own it: remember it, say it, wait for a person.

    Args:
        service: as it was read; nothing was changed, so its memory stands.
        shown: the status that announced the change; its figures stand.
        workload: the target.
        managers: who owns the annotation.
        now: time of the observation.
    """
    status = service.status
    step = taken_over(_context(service, workload, None, now), ", ".join(managers), "owns the annotation")
    memory = step.memory.replace(written_value=workload.value)
    changed = shown.replace(
        workings=ServiceWorkings(memory=memory, display=shown.display),
        rollout=None,
        history=step.history(status.history),
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


def _context(
    service: SpeculativeService, workload: Workload, startup_s: float | None, now: datetime
) -> RolloutContext:
    return RolloutContext(
        policy=service.spec.update_policy,
        workload=workload,
        memory=(service.status.memory or MemoryStatus()),
        rollout=service.status.rollout,
        may_write=service.spec.update_policy.mode is Mode.ROLLING_UPDATE and not service.spec.paused,
        startup_s=startup_s,
        place_s=service.spec.place_deadline_seconds,
        now=now,
    )


def _live(
    service: SpeculativeService,
    observation: ServiceObservation,
    workload: Workload,
    model_name: str,
    can: EngineLimits,
    now: datetime,
) -> Live:
    source, namespace = service.spec.metrics_source, service.metadata.namespace
    live = read_service(
        observation.fleet,
        namespace,
        workload.serving,
        known_pods=observation.known_pods,
        model_name=model_name,
        window_s=source.window_seconds,
        staleness_s=source.staleness_seconds,
        min_requests=source.min_requests,
        limits=can,
        now=now,
    )
    figures = live.figures
    if figures is not None:
        pods = {pod.name for pod in workload.serving}
        arrivals = arrivals_of(observation.arrivals, namespace, pods, model_name, figures.latency_s)
        live = replace(live, figures=replace(figures, arrivals=arrivals))
    key = LoadOwner(namespace, workload.ref.name, model_name)
    past = past_of(observation.past, key, service.spec.update_policy)
    if past.awaited and live.usable:
        # A past that cannot be read is no reason to hold. One that comes within seconds is: an arm that the night alone
        # speaks for would be entered by every restart.
        return replace(live, reason=ClusterReason.METRICS_MISSING, message=past.problem)
    return replace(live, past=past)


def _objectives(
    service: SpeculativeService,
    observation: ServiceObservation,
    workload: Workload,
    model_name: str,
    live: Live,
    now: datetime,
) -> Objectives | None:
    source = service.spec.metrics_source
    latencies = latencies_of(
        observation.latencies, service.metadata.namespace, workload.serving, model_name, live
    )
    return measured(service.spec.slo, latencies, service.status.objectives, source.window_seconds, now)


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
    return watch(_context(service, workload, None, now))


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
        lengths=_lengths(cycle.live),
        unwritten=worth is Worth.LATER,
    )


def _lengths(live: Live | None) -> MeanLengths | None:
    """What a calibration without a workload of its own sends: lengths as the target sees them, from enough requests."""
    figures = live.figures if live is not None and live.usable else None
    if figures is None or figures.prompt_tokens is None or figures.output_tokens is None:
        return None
    return MeanLengths(figures.prompt_tokens, figures.output_tokens)
