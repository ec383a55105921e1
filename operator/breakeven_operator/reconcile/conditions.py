"""Conditions: one aspect each, one reason word each, a sentence with the figures that decided.

Ready says that the spec is valid and the operator able to act; it does not move with load, metrics or gain. An Argo CD
that calls an application unhealthy during every roll is the price of folding run-time health into it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from breakeven_operator.resources.meta import Condition, ConditionStatus

READY = "Ready"
METRICS = "MetricsAvailable"
CALIBRATED = "Calibrated"
PROFITABLE = "Profitable"
PROGRESSING = "Progressing"
MODEL = "ModelAgrees"
ACCEPTANCE = "AcceptanceAsCalibrated"
LENGTHS = "LengthsAsCalibrated"
OBJECTIVES = "ObjectivesKept"
_STATUS = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}


@dataclass(frozen=True, slots=True)
class Aspect:
    """State of a condition in this cycle; `holds` is None if it is unknown."""

    type: str
    holds: bool | None
    reason: str
    message: str


def merge(old: Iterable[Condition], aspects: Iterable[Aspect], now: datetime) -> tuple[Condition, ...]:
    """The conditions of a status after `aspects` were looked at.

    A condition of which no aspect speaks stays as it was. The time of transition moves only with the status. Types keep
    their order; new ones come last, in the order of `aspects`.
    """
    before = {condition.type: condition for condition in old}
    said = {aspect.type: _said(aspect, before.get(aspect.type), now) for aspect in aspects}
    return tuple((before | said).values())


def _said(aspect: Aspect, earlier: Condition | None, now: datetime) -> Condition:
    status = _STATUS[aspect.holds]
    return Condition(
        type=aspect.type,
        status=status,
        reason=aspect.reason,
        message=aspect.message[:4096],
        last_transition_time=(
            earlier.last_transition_time if earlier is not None and earlier.status is status else now
        ),
    )
