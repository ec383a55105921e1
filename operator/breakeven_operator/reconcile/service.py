"""One service, one cycle: from what is wanted and what is seen to an ActionPlan. Pure; called again after a crash it agrees."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from breakeven.estimate import Estimate
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.action_plan import ServiceOutcome, outcome_of, still_wanted
from breakeven_operator.reconcile.active_profile import calibrated
from breakeven_operator.reconcile.annotation_owner import note_writers
from breakeven_operator.reconcile.barred_arms import barred
from breakeven_operator.reconcile.case import Case
from breakeven_operator.reconcile.case_reading import read_case
from breakeven_operator.reconcile.cycle_facts import CycleFacts
from breakeven_operator.reconcile.doubts import findings_of, rules_of, take_account
from breakeven_operator.reconcile.gates import DueRoll, held
from breakeven_operator.reconcile.judge import judge
from breakeven_operator.reconcile.leaving import BARRING
from breakeven_operator.reconcile.observation import CycleLimits, ServiceObservation
from breakeven_operator.reconcile.roll_evidence import RollEvidence, so_far
from breakeven_operator.reconcile.rollout import ArmChange, begin, watch
from breakeven_operator.reconcile.scaling import fleet_need
from breakeven_operator.reconcile.steps import RolloutContext, RolloutStep, ended_roll
from breakeven_operator.reconcile.target import Refusal, refuse_rolls, refuse_target
from breakeven_operator.reconcile.under_way import go_on
from breakeven_operator.reconcile.verdict import HOLD, Verdict
from breakeven_operator.refused_writes import of_annotation
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.rolloutstatus import HistoryResult, RolloutPhase
from breakeven_operator.workloads.running_arm import same_value
from breakeven_operator.workloads.workload import Workload


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
    refusal = refusal_of(service, observation)
    if refusal is not None or workload is None or workload.engine is None or workload.identity is None:
        return refused(service, observation, workload, refusal, limits, now)

    case, evidence = read_case(service, observation, workload, now)
    step = go_on(case.service, case.context, evidence, observation)
    if step.write is not None and (waits := of_annotation(observation.failures, now, step.write)):
        step = step.held(waits)
    case = case.after(step)
    need = fleet_need(
        case.spec, case.profile, case.context, case.running, case.live, case.engine_limits.running
    )
    case = replace(case, need=need)
    cannot_roll = refuse_rolls(case.spec, workload, observation.claims)
    verdict, memory = judge(case, step, observation)
    case = case.remembering(memory)
    case = case.remembering(take_account(case, verdict.decision, settled=case.settled))
    findings = findings_of(
        case.memory, case.calibrated.profile_name, rules_of(case.spec, observation.timing), now
    )
    verdict = replace(verdict, windows=len(findings.windows))
    step = replace(step, memory=case.memory)
    if verdict.switches and verdict.arm is not None and case.running.arm is not None:
        begun = roll_begun(case, step, evidence, verdict)
        waits = of_annotation(observation.failures, now, begun.write)
        refused_by = held(DueRoll(case, verdict, verdict.arm, cannot_roll, limits.may_roll, waits))
        step, verdict = (begun, verdict) if refused_by is None else (step, refused_by)
    recalibrate = case.calibrated.recalibrate
    memory = step.memory.replace(recalibrate=recalibrate, target_uid=workload.ref.uid)
    memory = note_writers(memory, workload, writing=step.write is not None)
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
        failures=still_wanted(observation.failures, step, case.calibrated, now),
    )
    return outcome_of(cycle, observation.written, limits)


# A service whose target cannot be looked at: the reason in its status, and the state of a change that was under way.


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
    state = calibrated(service, observation, None, None, now)
    verdict = Verdict(HOLD, None, refusal.reason, refusal.message)
    step = _while_refused(service, observation, workload, refusal, now)
    cycle = CycleFacts(
        service=service,
        workload=workload,
        calibrated=state if refusal.reason is ClusterReason.TARGET_NOT_FOUND else replace(state, create=None),
        step=step,
        verdict=verdict,
        cannot_roll=refusal,
        now=now,
        timing=observation.timing,
        failures=tuple(observation.failures),
    )
    return outcome_of(cycle, observation.written, limits)


def _while_refused(
    service: SpeculativeService,
    observation: ServiceObservation,
    workload: Workload | None,
    refusal: Refusal,
    now: datetime,
) -> RolloutStep:
    """The state of a change under way while its target cannot be read.

    A target that is gone takes it along. One that another service has is that one's. Of any other the change goes on to its
    end, or to its deadline: new pods on another GPU class are no reason to leave half of a roll for ever. A change that is made
    stays, and is not measured on a target that hands caches on or runs on several classes.
    """
    memory, rollout = service.status.memory or MemoryStatus(), service.status.rollout
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


# The step that begins a change of arm: its promise, and the arm that is barred if it is left for a fault.


def roll_begun(case: Case, step: RolloutStep, evidence: RollEvidence, verdict: Verdict) -> RolloutStep:
    """The step that begins a change of arm."""
    running, wanted, rollout = case.running.arm, verdict.arm, case.context.rollout
    assert running is not None and wanted is not None  # noqa: PT018, S101 - no change without both
    figures = case.live.figures
    change = ArmChange(
        running,
        wanted,
        case.spec.candidates.speculative_config(wanted),
        str(verdict.reason),
        _promised(verdict),
        figures.rps if figures is not None else None,
        figures.latency_s if figures is not None else None,
    )
    context = replace(case.context, rollout=None if rollout is None else so_far(rollout, evidence))
    started = begin(context, change, case.service.metadata.uid)
    memory = started.memory
    if isinstance(verdict.reason, ClusterReason) and verdict.reason in BARRING:
        name = case.calibrated.profile_name
        memory = barred(memory, running.name, verdict.reason, verdict.message, name, case.now)
    return replace(step.then(started), memory=memory, otherwise=step)


def _promised(verdict: Verdict) -> Estimate:
    """Speedup over the running arm at this load; an empty one if it is not known."""
    comparison = verdict.decision.against_running if verdict.decision is not None else None
    if comparison is None or comparison.speedup is None:
        return Estimate()
    return Estimate.of(comparison.speedup, comparison.speedup_ci)
