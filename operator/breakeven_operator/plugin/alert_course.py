"""Alert rules of the chart whose conditions hold by a service's own status: since when, and when the alert fires. Pure.

A page asks no Prometheus. Silences, other thresholds and rules over hours of samples (BreakevenHolding, the two of error budgets)
are known to Prometheus and Alertmanager alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from breakeven.arm import NO_SPECULATION
from breakeven.errors import InputError
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.plugin.service_view import ServiceView
from breakeven_operator.resources import SpeculativeService, SpeculativeServiceStatus
from breakeven_operator.resources.updatepolicy import Mode

FRESH = timedelta(seconds=600)
"""Age above which figures carry no alert about a gain."""

NEAR = 0.9
"""Share of the break-even's lower bound from which the load is near it."""

BUSY_RPS = 1.0
"""Load per replica beyond which requests are not few, and a hold for that reason is one of pods that do not last."""

SUSPICION = frozenset({"ModelDisagrees", "RollDisproved"})
DRIFT = frozenset({"AcceptanceDrifted", "LengthsDrifted"})
OUTDATED = frozenset({"ProfileExpired", "FingerprintChanged", "CandidatesChanged", "ProfileUnreadable"})
TAKEN_OVER = frozenset({"TakenOver", "RevertedTwice"})
ANSWERS = frozenset({"AnswersDiffer", "AnswersBroken"})
UPGRADES = frozenset({"Slower", "AcceptanceLost", "CacheLost", "AnswersDiffer", "Refused", "DoesNotStart"})


@dataclass(frozen=True, slots=True)
class AlertState:
    """An alert whose condition is known to hold since a time; it fires when it has held for as long as the rule asks."""

    name: str
    since: datetime
    fires: datetime

    def said(self, now: datetime) -> str:
        """The alert in a sentence."""
        if self.fires <= now:
            return f"{self.name} holds since {self.since:%H:%M:%S} UTC: the chart's rule fires."
        return f"{self.name} holds since {self.since:%H:%M:%S} UTC: the chart's rule fires at {self.fires:%H:%M:%S} UTC unless it ends."


def alert_states(service: SpeculativeService, now: datetime) -> Iterator[AlertState]:
    """The alerts whose conditions hold by the status of a service."""
    for name, (lasting, since) in RULES.items():
        begin = since(service, now)
        if begin is not None:
            yield AlertState(name, begin, begin + lasting)


def alerts_of(view: ServiceView, now: datetime) -> Sequence[str]:
    """Sentences about the alerts of a service as kubectl prints it; none of a status that this version cannot read."""
    created = view.created.isoformat() if view.created is not None else None
    meta = {
        "namespace": view.namespace,
        "name": view.name,
        "generation": view.generation,
        "creationTimestamp": created,
    }
    try:
        service = SpeculativeService.read(
            {"metadata": meta, "spec": view.spec, "status": view.status}, f"{view.namespace}/{view.name}"
        )
    except InputError:
        return ()
    return tuple(one.said(now) for one in alert_states(service, now))


def _false(
    status: SpeculativeServiceStatus, types: Iterable[str], reasons: frozenset[str]
) -> datetime | None:
    """Since when the first of these conditions is False with such a reason."""
    for one in status.conditions:
        if one.type in types and one.status == "False" and one.reason in reasons:
            return one.last_transition_time
    return None


def _gain(service: SpeculativeService, now: datetime) -> bool:
    """Whether there are fresh figures of a speculative arm that runs, and not as a control."""
    status = service.status
    decision, current = status.decision, status.current
    if decision is None or current is None or decision.evidence_time is None:
        return False
    if decision.reason == ClusterReason.CONTROL:
        return False
    runs = current.arm not in {None, NO_SPECULATION.name} and current.arm == decision.compared_arm
    return runs and now - decision.evidence_time < FRESH


def _unprofitable(service: SpeculativeService, now: datetime) -> datetime | None:
    decision, profitable = service.status.decision, service.status.condition("Profitable")
    if not _gain(service, now) or decision is None:
        return None
    load, edge, c2 = decision.load_rps, decision.break_even_rps, decision.c2_ratio
    measured, upper = None, decision.speedup_upper
    if decision.observed_latency_seconds and decision.predicted_latency_seconds:
        moved = decision.predicted_latency_seconds / decision.observed_latency_seconds
        measured = decision.speedup * moved if decision.speedup is not None else None
        upper = None if upper is None else min(upper, upper * moved)
    beyond = None not in {load, edge, c2} and load > edge and c2 > 1.0  # type: ignore[operator]
    loses = decision.speedup == 0 or (upper is not None and upper < 1.0)
    if not (beyond or loses) or (measured is not None and measured >= 1.0):
        return None
    # The condition is Unknown while the bounds hold both: the decision is the oldest time that is known then.
    turned = profitable is not None and profitable.status == "False"
    return profitable.last_transition_time if turned and profitable is not None else decision.time


def _near(service: SpeculativeService, now: datetime) -> datetime | None:
    decision = service.status.decision
    if not _gain(service, now) or decision is None:
        return None
    load, edge = decision.load_rps, decision.break_even_rps
    lower, c2 = decision.break_even_lower_rps, decision.c2_ratio
    if load is None or edge is None or lower is None or c2 is None:
        return None
    return decision.time if c2 > 1.0 and load <= edge and load > NEAR * lower else None


def _unavailable(service: SpeculativeService, now: datetime) -> datetime | None:
    status = service.status
    reason = status.decision.reason if status.decision is not None else None
    gone = {str(ClusterReason.TARGET_NOT_FOUND), str(ClusterReason.TARGET_UNREADABLE)}
    if service.spec.update_policy.mode is Mode.DISABLED or service.spec.paused or reason in gone:
        return None
    if _held_young(status):
        return _false(status, ("MetricsAvailable",), frozenset({str(ClusterReason.TOO_FEW_REQUESTS)}))
    newest = status.decision.evidence_time if status.decision is not None else None
    begin = newest + FRESH if newest is not None else service.metadata.creation_timestamp
    return begin if begin is not None and begin <= now else None


def _held_young(status: SpeculativeServiceStatus) -> bool:
    """Whether a speculative arm is kept at a load because most of its pods have been watched for too short a time."""
    decision, current = status.decision, status.current
    if decision is None or current is None or decision.reason != ClusterReason.TOO_FEW_REQUESTS:
        return False
    return current.arm not in {None, NO_SPECULATION.name} and (decision.load_rps or 0.0) > BUSY_RPS


def _too_small(service: SpeculativeService, _: datetime) -> datetime | None:
    need, target, decision = service.status.capacity, service.status.target, service.status.decision
    if need is None or target is None or decision is None or not need.scaled_by or service.status.undecided:
        return None
    wanted, asked = need.recommended_replicas, target.replicas
    return decision.time if wanted is not None and asked is not None and wanted > asked else None


def _answers(service: SpeculativeService, _: datetime) -> datetime | None:
    state = service.status.calibration
    if state is None or not any(one.word in ANSWERS for one in state.answers):
        return None
    return state.profile_time


def _upgraded(service: SpeculativeService, _: datetime) -> datetime | None:
    state = service.status.calibration
    gate = state.gate if state is not None else None
    return gate.time if gate is not None and gate.word in UPGRADES else None


def _failed(service: SpeculativeService, _: datetime) -> datetime | None:
    state = service.status.calibration
    return state.last_run_time if state is not None and state.failures else None


def _outdated(service: SpeculativeService, _: datetime) -> datetime | None:
    condition = service.status.condition("Calibrated")
    return condition.last_transition_time if condition is not None and condition.reason in OUTDATED else None


def _stuck(service: SpeculativeService, now: datetime) -> datetime | None:
    roll = service.status.rollout
    if roll is None or roll.finished_time is not None or roll.deadline_time is None:
        return None
    return roll.deadline_time if roll.deadline_time < now else None


def _undone(service: SpeculativeService, _: datetime) -> datetime | None:
    status = service.status
    undone = status.memory is not None and status.memory.failures > 0
    return status.history[0].time if undone and status.history else None


def _barred(service: SpeculativeService, _: datetime) -> datetime | None:
    memory = service.status.memory
    return min((one.since_time for one in memory.barred), default=None) if memory is not None else None


def _of_conditions(
    types: Iterable[str], reasons: frozenset[str]
) -> Callable[[SpeculativeService, datetime], datetime | None]:
    return lambda service, _: _false(service.status, types, reasons)


RULES: dict[str, tuple[timedelta, Callable[[SpeculativeService, datetime], datetime | None]]] = {
    "SpeculationUnprofitable": (timedelta(minutes=10), _unprofitable),
    "SpeculationBreakEvenNear": (timedelta(minutes=15), _near),
    "SpeculationMetricsUnavailable": (timedelta(minutes=15), _unavailable),
    "BreakevenFleetTooSmall": (timedelta(minutes=15), _too_small),
    "BreakevenModelDisagrees": (timedelta(minutes=15), _of_conditions(("ModelAgrees",), SUSPICION)),
    "BreakevenTextDrifted": (
        timedelta(hours=3),
        _of_conditions(("AcceptanceAsCalibrated", "LengthsAsCalibrated"), DRIFT),
    ),
    "BreakevenAnswersDiffer": (timedelta(minutes=5), _answers),
    "BreakevenUpgradeLost": (timedelta(minutes=5), _upgraded),
    "BreakevenCalibrationFailed": (timedelta(minutes=5), _failed),
    "BreakevenProfileOutdated": (timedelta(hours=2), _outdated),
    "BreakevenRollStuck": (timedelta(minutes=15), _stuck),
    "BreakevenRollUndone": (timedelta(0), _undone),
    "BreakevenArmFails": (timedelta(0), _barred),
    "BreakevenTakenOver": (timedelta(minutes=15), _of_conditions(("Ready",), TAKEN_OVER)),
    "BreakevenWriteRefused": (timedelta(minutes=10), _of_conditions(("Ready",), frozenset({"WriteRefused"}))),
    "BreakevenInternalError": (
        timedelta(minutes=2),
        _of_conditions(("Ready",), frozenset({"InternalError"})),
    ),
}
"""Alerts that a status shows: how long a condition has to hold, and since when it does."""
