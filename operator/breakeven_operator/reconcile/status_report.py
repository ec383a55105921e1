"""The status of a service: what was seen, what was decided and why, in the shape that people and restarts read."""

from __future__ import annotations

from datetime import UTC, datetime

from breakeven_operator.reconcile.conditions import merge
from breakeven_operator.reconcile.cycle_aspects import aspects_of
from breakeven_operator.reconcile.cycle_facts import CycleFacts
from breakeven_operator.reconcile.model_report import model_status
from breakeven_operator.reconcile.objectives import with_predictions
from breakeven_operator.reconcile.paying import pays_now, with_measured, with_overload
from breakeven_operator.reconcile.scaling import capacity_status
from breakeven_operator.reconcile.service_display import columns_of
from breakeven_operator.reconcile.target_report import current_status, target_status
from breakeven_operator.reconcile.worth import inflight_time, worth_of
from breakeven_operator.resources import SpeculativeServiceStatus
from breakeven_operator.resources.decisionstatus import Basis, DecisionFacts, DecisionStatus
from breakeven_operator.resources.figures import read_figures
from breakeven_operator.resources.servicestatus import ServiceWorkings


def report(cycle: CycleFacts, gpu_price_per_hour: float | None) -> SpeculativeServiceStatus:
    """The whole status of this cycle.

    Args:
        cycle: what the cycle found.
        gpu_price_per_hour: None: the status says no money.
    """
    service, old, step = cycle.service, cycle.service.status, cycle.step
    need = cycle.case.need if cycle.case is not None else None
    current = current_status(cycle)
    decision = _decision(cycle)
    memory = step.memory
    profile = cycle.calibrated.profile_name
    if old.calibration is not None and profile is not None and old.calibration.profile not in {None, profile}:
        # Acceptance seen before belongs to the profile before.
        memory = memory.replace(seen=())
    paying = pays_now(cycle.verdict)
    if paying is not None and cycle.verdict.basis is Basis.MEASURED:
        memory = memory.replace(pays=paying)
    status = SpeculativeServiceStatus(
        observed_generation=service.metadata.generation,
        target=target_status(cycle),
        current=current,
        decision=decision,
        rollout=step.rollout,
        capacity=capacity_status(need) if need is not None else None,
        model=model_status(
            service.spec,
            cycle.calibrated.entry,
            cycle.verdict,
            cycle.live,
            memory,
            cycle.now,
        ),
        objectives=with_predictions(cycle.objectives, cycle.verdict.running),
        calibration=cycle.calibrated.status,
        history=step.history(old.history),
        workings=ServiceWorkings(memory=memory, display=columns_of(cycle, current)),
    )
    status = _with_worth(status, cycle, gpu_price_per_hour)
    conditions = merge(old.conditions, aspects_of(cycle, status), cycle.now)
    return status.replace(conditions=conditions)


def _with_worth(
    status: SpeculativeServiceStatus, cycle: CycleFacts, gpu_price_per_hour: float | None
) -> SpeculativeServiceStatus:
    """The status with what speculation has been worth up to this window."""
    memory = cycle.step.memory if status.memory is None else status.memory
    figures = cycle.live.figures if cycle.live is not None else None
    passed = inflight_time(status, memory.inflight_time, figures, cycle.now)
    workings = ServiceWorkings(memory=memory.replace(inflight_time=passed), display=status.display)
    status = status.replace(workings=workings)
    return status.replace(savings=worth_of(status, gpu_price_per_hour))


def _decision(cycle: CycleFacts) -> DecisionStatus:
    case, verdict = cycle.case, cycle.verdict
    decision = verdict.decision
    figures = case.live.figures if case is not None else None
    running = case.running.arm if case is not None else None
    past = len(case.live.past.rates.rps) if case is not None else 0
    return DecisionStatus(
        time=cycle.now,
        action=verdict.action,
        arm=verdict.arm.name if verdict.arm is not None else None,
        running_arm=running.name if running is not None else None,
        reason=str(verdict.reason),
        message=with_measured(with_overload(verdict), verdict)[:1024],
        profile=cycle.calibrated.profile_name,
        basis=verdict.basis if decision is not None else None,
        held_until=(
            datetime.fromtimestamp(decision.until_s, UTC)
            if decision is not None and decision.until_s is not None and verdict.reason == decision.reason
            else None
        ),
        **read_figures(DecisionStatus, DecisionFacts(cycle.now, figures, decision, past)),
    )
