"""Messages of a cycle: events about changes, and the canonical log line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from breakeven.planning.wording import figures_text
from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import QUIET, ClusterReason
from breakeven_operator.packed import whole
from breakeven_operator.reconcile.conditions import METRICS, OBJECTIVES, READY
from breakeven_operator.reconcile.cycle_facts import CycleFacts
from breakeven_operator.reconcile.doubt_aspects import doubt_aspects
from breakeven_operator.reconcile.metrics_aspect import metrics_aspect
from breakeven_operator.reconcile.objectives import objectives_message
from breakeven_operator.reconcile.paying import pays_now, with_measured
from breakeven_operator.reconcile.steps import Event
from breakeven_operator.reconcile.verdict import HOLD
from breakeven_operator.resources import SpeculativeServiceStatus
from breakeven_operator.resources.decisionstatus import Basis, DecisionStatus
from breakeven_operator.resources.figures import LOGGED, status_fields


def events(cycle: CycleFacts, old: SpeculativeServiceStatus) -> tuple[Event, ...]:
    """Events of changes: a change of arm, a verdict whose reason differs from the last one written, a flip of PAYS."""
    said = list(cycle.step.events)
    verdict = cycle.verdict
    before = old.decision.reason if old.decision is not None else None
    if str(verdict.reason) != before and verdict.reason not in {event.reason for event in said}:
        warning = (
            verdict.action == HOLD
            and isinstance(verdict.reason, ClusterReason)
            and verdict.reason not in QUIET
        )
        said.append(Event(verdict.reason, verdict.message, warning, throttled=True, about=_about(cycle)))
    elif (flip := _flip(cycle, old)) is not None:
        said.append(flip)
    for aspect in doubt_aspects(cycle):
        condition = old.condition(aspect.type)
        told = condition is not None and (condition.status, condition.reason) == ("False", aspect.reason)
        if aspect.holds is False and not told and aspect.reason not in {str(event.reason) for event in said}:
            said.append(Event(_WORDS[aspect.reason], aspect.message, warning=True))
    if (gone := _clients_give_up(cycle, old)) is not None:
        said.append(gone)
    if (breach := _breach(cycle, old)) is not None and breach.reason not in {event.reason for event in said}:
        said.append(breach)
    if (refused := _refused(cycle, old)) is not None and refused.reason not in {
        event.reason for event in said
    }:
        said.append(refused)
    if cycle.calibrated.create is not None and verdict.reason is not ClusterReason.CALIBRATION_REQUESTED:
        said.append(Event(ClusterReason.CALIBRATION_REQUESTED, cycle.calibrated.message))
    return tuple(said)


def _about(cycle: CycleFacts) -> str:
    """The roll or the run that a verdict may tell of; empty without one."""
    rollout, run = cycle.step.rollout, cycle.calibrated.run
    return rollout.id if rollout is not None else run.metadata.name if run is not None else ""


def _flip(cycle: CycleFacts, old: SpeculativeServiceStatus) -> Event | None:
    """Speculation pays and last did not, or the other way round; bounds that hold both answers neither make nor undo one."""
    decision, comparison = cycle.verdict.decision, cycle.verdict.against_none
    now, before = pays_now(cycle.verdict), old.memory.pays if old.memory is not None else None
    if cycle.verdict.basis is not Basis.MEASURED:
        return None
    if decision is None or comparison is None or now is None or before is None or now is before:
        return None
    words = {True: "Yes", False: "No"}
    message = f"PAYS was {words[before]} and is {words[now]}: {with_measured(figures_text(decision), cycle.verdict)}"
    return Event(ClusterReason.PAYS_CHANGED, message, throttled=True)


def _refused(cycle: CycleFacts, old: SpeculativeServiceStatus) -> Event | None:
    """The API server began to refuse a write."""
    ready = old.condition(READY)
    if cycle.refused is None or (ready is not None and ready.reason == cycle.refused.reason):
        return None
    return Event(cycle.refused.reason, cycle.refused.sentence, warning=True, throttled=True)


def _clients_give_up(cycle: CycleFacts, old: SpeculativeServiceStatus) -> Event | None:
    """Clients began to give up, which the status did not say before."""
    if cycle.live is None:
        return None
    aspect, before = metrics_aspect(cycle.live), old.condition(METRICS)
    if aspect.reason != ClusterReason.CLIENTS_GIVE_UP or (
        before is not None and before.reason == aspect.reason
    ):
        return None
    return Event(ClusterReason.CLIENTS_GIVE_UP, aspect.message, warning=True, throttled=True)


_WORDS = {str(reason): reason for reason in ClusterReason}


def _breach(cycle: CycleFacts, old: SpeculativeServiceStatus) -> Event | None:
    """Users began or ceased to wait longer than is promised."""
    objectives, before = cycle.objectives, old.condition(OBJECTIVES)
    if objectives is None or objectives.holds is None:
        return None
    was_missed = before is not None and before.reason == Reason.SLO_VIOLATED
    if objectives.holds is not was_missed:
        return None
    message = objectives_message(objectives, objectives.figures)
    return Event(objectives.reason, message, not objectives.holds, throttled=True)


_LOGGED = tuple(row.json_path for row in status_fields(DecisionStatus) if LOGGED in row.marks(str))


def facts(
    cycle: CycleFacts, status: SpeculativeServiceStatus, document: Mapping[str, Any]
) -> dict[str, object]:
    """The canonical log line of the cycle: what was seen, decided and done; `document` is the status as JSON."""
    decision = whole(document).get("decision", {})
    return {
        "action": cycle.verdict.action,
        "reason": str(cycle.verdict.reason),
        "message": cycle.verdict.message,
        "arm": cycle.verdict.arm.name if cycle.verdict.arm is not None else None,
        "runningArm": status.current.arm if status.current is not None else None,
        "mode": str(cycle.service.spec.update_policy.mode),
        "metrics": str(cycle.live.reason) if cycle.live is not None else None,
        "calibrated": str(cycle.calibrated.reason),
        "doubts": [aspect.reason for aspect in doubt_aspects(cycle) if aspect.holds is False],
        "objectives": str(cycle.objectives.reason) if cycle.objectives is not None else None,
        "rollout": str(status.rollout.phase) if status.rollout is not None else None,
        **{key: decision[key] for key in _LOGGED if key in decision},
    }
