"""From the facts of a cycle to the status that it leads to and the actions that bring it about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from breakeven_operator.actions import Action, ActionPlan, Create, EmitEvent, WriteAnnotation, WriteStatus
from breakeven_operator.kinds import RUNS, SERVICES, Ref
from breakeven_operator.ports import MeanLengths
from breakeven_operator.reconcile.calibration_state import Calibrated
from breakeven_operator.reconcile.cycle_facts import CycleFacts
from breakeven_operator.reconcile.events import events, facts
from breakeven_operator.reconcile.observation import CycleLimits
from breakeven_operator.reconcile.status_diff import Worth, worth_writing
from breakeven_operator.reconcile.status_report import report
from breakeven_operator.reconcile.steps import RolloutStep
from breakeven_operator.reconcile.verdict import Verdict
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources import SpeculativeService, SpeculativeServiceStatus


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


def still_wanted(
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


def outcome_of(cycle: CycleFacts, holds: Mapping[str, Any], limits: CycleLimits) -> ServiceOutcome:
    """Order matters: what must survive a crash is written before what it announces."""
    service, step, verdict = cycle.service, cycle.step, cycle.verdict
    status = report(cycle, limits.gpu_price_per_hour)
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
        EmitEvent(ref, str(e.reason), e.message, e.warning, e.throttled, e.about) for e in events(cycle, old)
    )
    return ServiceOutcome(
        plan=ActionPlan(subject=ref, actions=tuple(actions), facts=facts(cycle, status, document)),
        status=status,
        verdict=verdict,
        lengths=cycle.live.lengths if cycle.live is not None else None,
        unwritten=worth is Worth.LATER,
        otherwise=_without_write(cycle, status, limits.gpu_price_per_hour),
    )


def _without_write(
    cycle: CycleFacts, status: SpeculativeServiceStatus, gpu_price_per_hour: float | None
) -> SpeculativeServiceStatus | None:
    """The status to go on from if the annotation that the step writes is refused; None if it writes none."""
    step = cycle.step
    if step.write is None:
        return None
    if step.otherwise is None:
        return status
    memory = step.otherwise.memory.replace(recalibrate=cycle.calibrated.recalibrate)
    return report(replace(cycle, step=replace(step.otherwise, memory=memory)), gpu_price_per_hour)
