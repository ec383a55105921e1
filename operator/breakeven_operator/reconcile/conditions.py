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
_ORDER = (READY, METRICS, CALIBRATED, PROFITABLE, PROGRESSING)


@dataclass(frozen=True, slots=True)
class Aspect:
    """What a condition says this cycle; `holds` None: unknown."""

    type: str
    holds: bool | None
    reason: str
    message: str


def merge(
    old: Iterable[Condition], aspects: Iterable[Aspect], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """New conditions in their usual order; the time of transition moves only with the status."""
    before = {condition.type: condition for condition in old}
    words = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}
    merged = {}
    for aspect in aspects:
        status = words[aspect.holds]
        earlier = before.get(aspect.type)
        kept = earlier is not None and earlier.status is status
        merged[aspect.type] = Condition(
            type=aspect.type,
            status=status,
            reason=aspect.reason,
            message=aspect.message[:4096],
            last_transition_time=earlier.last_transition_time if kept and earlier else now,
            observed_generation=generation,
        )
    return tuple(merged[type_] for type_ in _ORDER if type_ in merged)
