"""One service, one cycle: from what is wanted and what is seen to an ActionPlan. Pure; called again after a crash it agrees."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from breakeven.arm import ADAPTIVE, NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.estimate import Estimate
from breakeven.profile import Conditions
from breakeven.profile.credit import credited
from breakeven.serving.counted_window import Load
from breakeven.serving.growths import engine_limits
from breakeven.tiers import Schedule
from breakeven_operator.calibration.active_profile import calibrated
from breakeven_operator.case import (
    HOLD,
    NOT_ASKED,
    SWITCH,
    Case,
    CycleFacts,
    Live,
    SeriesOwner,
    ServiceObservation,
    Verdict,
)
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.judging.doubts import Account, doubt_of, take_account
from breakeven_operator.judging.gates import held, proposed, refuse_owners_arm, took_proposal
from breakeven_operator.judging.judge import judge
from breakeven_operator.judging.scaling import with_capacity
from breakeven_operator.judging.standing_control import measured_control, with_evidence
from breakeven_operator.observing.fleet_query import workload_of
from breakeven_operator.observing.latency_metrics import latencies_of, prompts_of
from breakeven_operator.observing.live_metrics import WatchedPods, read_service
from breakeven_operator.observing.objectives import measured
from breakeven_operator.observing.past_metrics import past_of
from breakeven_operator.observing.roll_metrics import with_arrivals
from breakeven_operator.outcome.action_plan import ServiceOutcome, outcome_of, still_wanted
from breakeven_operator.refused_writes import of_annotation
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.candidates import MeasuredCandidates
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.targetstatus import HistoryResult, Rollout, RolloutPhase
from breakeven_operator.resources.updatepolicy import Mode
from breakeven_operator.rolls.annotation_owner import note_writers
from breakeven_operator.rolls.barred_arms import BARRING, barred, exceeded, still_barred
from breakeven_operator.rolls.roll_evidence import so_far
from breakeven_operator.rolls.rollout import begin, watch
from breakeven_operator.rolls.under_way import go_on
from breakeven_operator.step import Calibrated, ProfileEntry, RolloutContext, RolloutStep, ended_roll
from breakeven_operator.workloads.running_arm import running_arm, same_value
from breakeven_operator.workloads.target import Refusal, refuse_rolls, refuse_target
from breakeven_operator.workloads.workload import Workload


def reconcile(service: SpeculativeService, observation: ServiceObservation, now: datetime) -> ServiceOutcome:
    """Decide about one service."""
    workload = observation.workload
    refusal = refusal_of(service, observation)
    if refusal is not None or workload is None or workload.engine is None or workload.identity is None:
        return refused(service, observation, refusal, now)

    seen = read_case(service, observation, workload, now)
    step = go_on(seen, observation)
    if step.write is not None and (waits := of_annotation(observation.failures, now, step.write)):
        step = step.held(waits)
    # A roll is measured without live corrections: the rate that a saturated arm was seen to serve bends the slopes of the laws.
    case = replace(seen.after(step), calibrated=with_carried(seen.calibrated, seen.running.arm, seen.live))
    cannot_roll = refuse_rolls(
        case.spec, workload, observation.claims, takes_proposals=observation.takes_proposals
    )
    proposes = service.spec.update_policy.mode is Mode.NEXT_ROLLOUT
    before = service.status.memory if proposes else None
    if cannot_roll is None and proposes:
        cannot_roll = refuse_owners_arm(workload, before)
    case = replace(with_capacity(case), cannot_roll=cannot_roll, may_roll=observation.may_roll)
    verdict, memory = judge(case, step, observation)
    case = case.remembering(memory)
    case = case.remembering(take_account(case, verdict.decision))
    account = Account.of(case.spec, observation.timing).about(case.memory, case.calibrated.profile_name, now)
    verdict = replace(verdict, windows=len(account.windows))
    step = replace(step, memory=case.memory)
    if verdict.action == SWITCH and verdict.arm is not None and case.running.arm is not None:
        begun = roll_begun(case, step, verdict, seen)
        case = replace(case, waits=of_annotation(observation.failures, now, begun.write))
        refused_by = held(case, verdict)
        if refused_by is not None and refused_by.reason is ClusterReason.AWAITS_ROLLOUT:
            step = replace(step, memory=after_leaving(case, verdict, step.memory))
        step, verdict = (begun, verdict) if refused_by is None else (step, refused_by)
    memory = step.memory.replace(recalibrate=case.calibrated.recalibrate, target_uid=workload.ref.uid)
    memory = note_writers(memory, workload, writing=step.write is not None)
    if took_proposal(workload):
        # The API server names as owner whoever rolled, and a later mode RollingUpdate takes over what the policy wrote.
        memory = memory.replace(force_next=True, written_value=workload.value)
    elif proposes:
        memory = memory.replace(written_value=before.written_value if before is not None else None)
    cycle = CycleFacts(
        service=case.service,
        workload=workload,
        calibrated=case.calibrated,
        step=replace(step, memory=memory),
        verdict=verdict,
        cannot_roll=cannot_roll,
        now=now,
        timing=observation.timing,
        case=case,
        # A write more makes a generation more, and a roll counts them.
        proposal=proposed(case, verdict) if step.rollout is None else None,
        failures=still_wanted(observation.failures, step, case.calibrated, now),
    )
    return outcome_of(cycle, observation)


def read_case(
    service: SpeculativeService, observation: ServiceObservation, workload: Workload, now: datetime
) -> Case:
    """The case before anything is decided about it."""
    known, account = service.status.memory, Account.of(service.spec, observation.timing)
    state = calibrated(
        service,
        observation,
        workload.proven_identity,
        workload.startup_s,
        now,
        (lambda entry: doubt_of(known, entry, account, now)) if known is not None else None,
    )
    trouble = workload.trouble
    if trouble is not None and not workload.identifiable:
        # No pod serves: the word is what keeps pods from coming.
        state = replace(state, reason=trouble.reason, message=f"{state.message}; {trouble.message}")
    service = with_measured_candidates(service, state.entry, observation.profiles)
    spec = service.spec
    engine, identity = workload.engine, workload.identity
    running = running_arm(workload, spec.candidates)
    can = engine_limits(engine.words if engine is not None else (), running.arm, spec.candidates.arms())
    served = identity.served_model if identity is not None else None
    model_name = spec.metrics_source.served_model_name or served or ""
    watched = WatchedPods(
        service.metadata.namespace,
        model_name,
        workload.serving,
        spec.metrics_source,
        can,
        now,
        observation.known_pods,
        keep_names=workload.pods_kind.keeps_names,
    )
    live = _present(service, observation, workload, watched)
    unheard = [one.name for one in spec.update_policy.guards if one.query not in observation.guards]
    if unheard:
        live = replace(
            live, message=f"{live.message}; no value, so no protection, by guard {', '.join(unheard)}"
        )
    context = RolloutContext.of(service, workload, state.status.startup_seconds, observation.timing, now)
    memory = still_barred(context.memory, state.profile_name)
    if state.profile_name not in {None, memory.profile}:
        # Lessons about another profile do not count.
        memory = memory.replace(evidence=())
    if observation.control is not None:
        memory = with_evidence(memory, observation.control.service, state.profile_name)
    context = replace(context, memory=memory)
    window_s = spec.metrics_source.window_seconds
    measured_latencies = latencies_of(observation.latencies, watched, live)
    objectives = measured(spec.slo, measured_latencies, service.status.objectives, window_s, now)
    case = Case(
        service,
        context,
        state,
        running,
        live,
        can,
        objectives,
        first=observation.first if state.entry is None else None,
        prompts=prompts_of(observation.prompts, watched, live) if observation.prompts is not None else (),
        breach=exceeded(spec.update_policy.guards, observation.guards),
        model_name=model_name,
        roll=observation.roll or NOT_ASKED,
    )
    if observation.control is None:
        return case
    return replace(case, control=measured_control(case, observation.control))


def _present(
    service: SpeculativeService,
    observation: ServiceObservation,
    workload: Workload,
    watched: WatchedPods,
) -> Live:
    live = read_service(observation.fleet, watched)
    namespace, model_name, figures = watched.namespace, watched.model_name, live.figures
    if figures is not None:
        pods = {pod.name for pod in watched.serving}
        memory = service.status.memory
        rolled = memory.last_switch_time if memory is not None else None
        since_s = rolled.timestamp() if rolled is not None else None
        figures = with_arrivals(figures, observation.arrivals, namespace, pods, model_name, since_s)
        live = replace(live, figures=figures)
    # Series have the workload that the grammar of their pod's name says; of a kind that names no pods it is its makers' workload.
    grammar = "" if workload.kind.pod_name else workload_of(next((pod.name for pod in watched.serving), ""))
    key = SeriesOwner(namespace, grammar or workload.title, model_name)
    past, problem, awaited = past_of(observation.past, key, service.spec.update_policy)
    if awaited and live.usable:
        # A past that cannot be read is no reason to hold. One that comes within seconds is: an arm that the night alone
        # speaks for would be entered by every restart.
        return replace(live, reason=ClusterReason.METRICS_MISSING, message=problem)
    return replace(live, past=past, past_problem=problem)


def refusal_of(service: SpeculativeService, observation: ServiceObservation) -> Refusal | None:
    """Why the target cannot be looked at; None if it can."""
    refusal = refuse_target(
        service.spec, observation.workload, observation.managed_by, observation.target_problem
    )
    if refusal is not None and refusal.reason is ClusterReason.GPU_CLASS_UNKNOWN and observation.profiles:
        # A label that was lost is no reason to stay on an arm that loses by the profile of before.
        return None
    return refusal


def refused(
    service: SpeculativeService,
    observation: ServiceObservation,
    refusal: Refusal | None,
    now: datetime,
) -> ServiceOutcome:
    """A target that cannot be looked at: say why; a calibration that runs is not ours to judge here.

    A calibration that ended because the target is gone is asked for again at once: what it was asked is still open, and
    the new run waits until the target is back.
    """
    assert refusal is not None  # noqa: S101 - without a refusal there is a workload with a container
    state = calibrated(service, observation, None, None, now)
    cycle = CycleFacts(
        service=service,
        workload=observation.workload,
        calibrated=state if refusal.reason is ClusterReason.TARGET_NOT_FOUND else replace(state, create=None),
        step=_while_refused(service, observation, refusal, now),
        verdict=Verdict(HOLD, None, refusal.reason, refusal.message),
        cannot_roll=refusal,
        now=now,
        timing=observation.timing,
        failures=tuple(observation.failures),
    )
    return outcome_of(cycle, observation)


def _while_refused(
    service: SpeculativeService, observation: ServiceObservation, refusal: Refusal, now: datetime
) -> RolloutStep:
    """The state of a change under way while its target cannot be read.

    A change ends with its target, and stays if another service has the target. Any other change goes on to its end, or to its
    deadline: new pods on another GPU class are no reason to leave half of a roll for ever. A change that is made
    stays, and is not measured on a target that hands caches on or runs on several classes.
    """
    memory, rollout = service.status.memory or MemoryStatus(), service.status.rollout
    workload = observation.workload
    if rollout is None or observation.managed_by is not None:
        return RolloutStep(rollout, memory)
    if workload is None:
        entry = ended_roll(rollout, HistoryResult.SUPERSEDED, "the target is gone", now)
        return RolloutStep(None, memory, ended=(entry,))
    same = memory.target_uid in {None, workload.ref.uid}
    unwritten = rollout.phase is RolloutPhase.INTENDED and not same_value(workload.value, rollout.value)
    confirming = rollout.phase is RolloutPhase.CONFIRMING
    if confirming and refusal.reason is ClusterReason.TARGET_REFUSED:
        message = f"{rollout.change} was not measured: {refusal.message}"
        entry = ended_roll(rollout, HistoryResult.UNMEASURED, message, now)
        return RolloutStep(None, memory, ended=(entry,))
    if not same or unwritten or confirming:
        return RolloutStep(rollout, memory)
    return watch(RolloutContext.of(service, workload, None, observation.timing, now))


def roll_begun(case: Case, step: RolloutStep, verdict: Verdict, seen: Case) -> RolloutStep:
    """The step that begins a change of arm; what was `seen` measures the change before."""
    running, wanted, rollout = case.running.arm, verdict.arm, case.context.rollout
    assert running is not None and wanted is not None  # noqa: PT018, S101 - no change without both
    figures = case.live.figures
    change = Rollout(
        id="",
        from_arm=running.name,
        to_arm=wanted.name,
        value=case.spec.candidates.speculative_config(wanted),
        reason=str(verdict.reason),
        load_rps=figures.rps if figures is not None else None,
    )
    context = replace(case.context, rollout=None if rollout is None else so_far(rollout, seen))
    started = begin(context, change, _promised(verdict))
    memory = after_leaving(case, verdict, started.memory)
    return replace(step.then(started), memory=memory, otherwise=step)


def after_leaving(case: Case, verdict: Verdict, memory: MemoryStatus) -> MemoryStatus:
    """The memory with the running arm barred, if that is left because it crashes or fails requests."""
    running = case.running.arm
    if running is None or not isinstance(verdict.reason, ClusterReason) or verdict.reason not in BARRING:
        return memory
    name = case.calibrated.profile_name
    return barred(memory, running.name, verdict.reason, verdict.message, name, case.now)


def _promised(verdict: Verdict) -> Estimate:
    """Speedup over the running arm at this load; an empty one if it is not known."""
    comparison = verdict.decision.against_running if verdict.decision is not None else None
    if comparison is None or comparison.speedup is None:
        return Estimate()
    return comparison.known


def with_carried(state: Calibrated, running: Arm | None, live: Live) -> Calibrated:
    """Where the running arm is in a steady state at a rate beyond its profile's saturation, believe the measurement.

    Every figure of a cycle comes from the profile that is returned; the stored profile stays as it is.
    """
    figures, entry = live.figures, state.entry
    if running is None or entry is None or entry.profile is None or not live.usable or figures is None:
        return state
    if not carries(figures) or figures.latency_s is None:
        return state
    conditions = Conditions(
        # E of a schedule is a mix over its tiers: it converts nothing. No speculation has none, and so the decision's own curve.
        None
        if figures.tokens_per_step is None or running.scheduled or running == NO_SPECULATION
        else min(max(figures.tokens_per_step, 1.0), running.k + 1.0),
        figures.prompt_tokens,
        figures.output_tokens,
        dispersion=figures.dispersion_or_poisson,
    )
    try:
        profile = credited(entry.profile, running, figures.rps, figures.latency_s, conditions)
    except BreakevenError:
        # The measurements do not cover this arm or these lengths; the decision says so.
        return state
    return replace(state, entry=replace(entry, profile=profile))


def carries(figures: Load) -> bool:
    """Whether what is asked for is answered: no standing queue, and in-flight does not grow by more than chance.

    What is in flight at the window's begin and at its end are two counts; two standard deviations of their difference
    are chance.
    """
    if figures.saturated or not figures.latency_s or not figures.rps > 0 or figures.inflight is None:
        return False
    grown = figures.rps * figures.replicas * figures.window_s - figures.requests
    return grown <= 2.0 * math.sqrt(2.0 * figures.inflight * figures.replicas)


def with_measured_candidates(
    service: SpeculativeService,
    in_force: ProfileEntry | None,
    profiles: Iterable[ProfileEntry],
) -> SpeculativeService:
    """The service with the schedules and drafters that were measured for it.

    Without a profile in force the newest one still tells what its pods run.
    """
    newest = sorted(profiles, key=lambda entry: (entry.created, entry.name), reverse=True)
    entry = in_force or next(iter(newest), None)
    if entry is None:
        return service
    candidates = service.spec.candidates
    fits = entry.profile.arms if entry.profile is not None else ()
    schedules = {
        method.name: Schedule.parse(fit.schedule, f"schedule of {fit.arm}")
        for fit in fits
        if fit.schedule not in {None, ADAPTIVE} and (method := candidates.method_of(fit.arm)) is not None
    }
    drafters = {
        name: (
            entry.drafters.get(name, own),
            *(one.drafters[name] for one in newest if name in one.drafters),
        )
        for name, own in candidates.drafters().items()
    }
    return service.with_candidates(MeasuredCandidates.of(candidates, schedules, drafters))
