"""One service, one cycle: from what is wanted and what is seen to an ActionPlan. Pure; called again after a crash it agrees."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from breakeven_operator.reconcile.action_plan import ServiceOutcome, outcome_of, still_wanted
from breakeven_operator.reconcile.annotation_owner import note_writers
from breakeven_operator.reconcile.case_reading import read_case
from breakeven_operator.reconcile.cycle_facts import CycleFacts
from breakeven_operator.reconcile.doubts import findings_of, rules_of, take_account
from breakeven_operator.reconcile.gates import DueRoll, held
from breakeven_operator.reconcile.judge import judge
from breakeven_operator.reconcile.observation import CycleLimits, ServiceObservation
from breakeven_operator.reconcile.refused_target import refusal_of, refused
from breakeven_operator.reconcile.roll_beginning import roll_begun
from breakeven_operator.reconcile.scaling import fleet_need
from breakeven_operator.reconcile.target import refuse_rolls
from breakeven_operator.reconcile.under_way import go_on
from breakeven_operator.refused_writes import of_annotation
from breakeven_operator.resources import SpeculativeService


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
