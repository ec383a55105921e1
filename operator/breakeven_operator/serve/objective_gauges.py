"""What users wait and what they were promised, as series.

The requests and the missed ones are counts of the last window, published at every cycle: summed over an hour both count each
request alike often, so that their ratio is the hour's, whichever pods came and went.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.objectivestatus import ObjectiveStatus
from breakeven_operator.serve.service_gauges import LabelledValue, ServiceGauge, one_value

_QUANTILES = {"0.5": "p50", "0.95": "p95", "0.99": "p99"}


def _each(
    samples: Callable[[ObjectiveStatus], Iterator[LabelledValue]], *, promised: bool = True
) -> Callable[[SpeculativeService, datetime], Iterator[LabelledValue]]:
    """Samples of every figure; of those with an objective alone where only they have any."""

    def found(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
        # A status of an earlier cycle would be counted again and again.
        for one in () if service.status.undecided else service.status.objectives:
            if one.limit_seconds is not None or not promised:
                yield from samples(one)

    return found


def _bounds(
    labels: tuple[str, ...], estimate: float | None, lower: float | None, upper: float | None
) -> Iterator[LabelledValue]:
    for bound, value in (("estimate", estimate), ("lower", lower), ("upper", upper)):
        yield from one_value(value, *labels, bound)


def _quantiles(one: ObjectiveStatus) -> Iterator[LabelledValue]:
    for quantile, name in _QUANTILES.items():
        ends = (getattr(one, f"{name}_{part}seconds") for part in ("", "lower_", "upper_"))
        yield from _bounds((one.figure, quantile), *ends)


def _predicted(one: ObjectiveStatus) -> Iterator[LabelledValue]:
    return _bounds(
        (one.figure,),
        one.predicted_p95_seconds,
        one.predicted_p95_lower_seconds,
        one.predicted_p95_upper_seconds,
    )


def _attainment(one: ObjectiveStatus) -> Iterator[LabelledValue]:
    percents = (one.attainment_percent, one.attainment_lower_percent, one.attainment_upper_percent)
    return _bounds((one.figure,), *(None if value is None else value / 100.0 for value in percents))


OBJECTIVE_GAUGES: tuple[ServiceGauge, ...] = (
    ServiceGauge(
        "breakeven_latency_quantile_seconds",
        "Measured quantile over the last window, by figure (e2e, ttft, tpot), of services with an objective; its bounds are edges of "
        "vLLM's histogram.",
        _each(_quantiles, promised=False),
        ("figure", "quantile", "bound"),
    ),
    ServiceGauge(
        "breakeven_objective_seconds",
        "Limit of spec.slo that 95 % of requests shall keep.",
        _each(lambda one: one_value(one.limit_seconds, one.figure)),
        ("figure",),
    ),
    ServiceGauge(
        "breakeven_objective_predicted_seconds",
        "95th percentile that the profile predicts for the running arm at the present load.",
        _each(_predicted),
        ("figure", "bound"),
    ),
    ServiceGauge(
        "breakeven_objective_attainment_ratio",
        "Share of the last window's requests within the limit.",
        _each(_attainment),
        ("figure", "bound"),
    ),
    ServiceGauge(
        "breakeven_objective_requests",
        "Requests of the last window that were held against the limit.",
        _each(lambda one: one_value(one.requests, one.figure)),
        ("figure",),
    ),
    ServiceGauge(
        "breakeven_objective_missed_requests",
        "Those of them that surely took longer.",
        _each(lambda one: one_value(one.missed_requests, one.figure)),
        ("figure",),
    ),
)
