"""What state a service is in, as series: the words that alerts are about, and what runs out or repeats itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from breakeven_operator.resources import SpeculativeService
from breakeven_operator.serve.service_gauges import LabelledValue, ServiceGauge, one_value


def _conditions(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
    for one in service.status.conditions:
        yield from one_value(1.0, one.type, str(one.status), one.reason)


def _decision(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
    decision = service.status.decision
    if decision is not None and decision.action is not None and decision.reason is not None:
        yield from one_value(1.0, decision.action, decision.reason)


def _deadline(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
    rollout = service.status.rollout
    # Once all pods run the new arm only measuring is left, which the deadline is not about.
    if rollout is not None and rollout.finished_time is None and rollout.deadline_time is not None:
        yield from one_value(rollout.deadline_time.timestamp())


def _undone(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
    memory = service.status.memory
    return one_value(float(memory.failures) if memory is not None else None)


def _barred(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
    memory = service.status.memory
    for one in memory.barred if memory is not None else ():
        yield from one_value(1.0, one.arm, one.reason)


def _calibrations_failed(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
    calibration = service.status.calibration
    return one_value(float(calibration.failures) if calibration is not None else None)


STATE_GAUGES: tuple[ServiceGauge, ...] = (
    ServiceGauge(
        "breakeven_condition_info",
        "1 for each condition of the status, with its status and reason word.",
        _conditions,
        ("condition", "status", "reason"),
    ),
    ServiceGauge(
        "breakeven_decision_info",
        "1 for what the last decision did (Stay, Switch, Hold, Recommend), and why.",
        _decision,
        ("action", "reason"),
    ),
    ServiceGauge(
        "breakeven_rollout_deadline_timestamp_seconds",
        "When a roll is undone unless all pods run the new arm; absent when none is under way.",
        _deadline,
    ),
    ServiceGauge("breakeven_rolls_undone", "Rolls that were undone in a row.", _undone),
    ServiceGauge(
        "breakeven_barred_arm_info",
        "1 for each arm that is not entered any more, because requests failed on it or its engines crashed.",
        _barred,
        ("arm", "reason"),
    ),
    ServiceGauge("breakeven_calibrations_failed", "Calibrations that failed in a row.", _calibrations_failed),
)
