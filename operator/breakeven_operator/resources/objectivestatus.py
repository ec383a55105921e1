"""Latencies of a service's users against its objectives (part of a SpeculativeService's status)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from breakeven_operator.resources.base import Instant, Number, StatusModel, Word
from breakeven_operator.resources.figures import FigureGauge, ItsLower, ItsUpperOrOpen, Renewal, ends_of, row


class ObjectiveFinding(StrEnum):
    """Verdict of the measured quantile on an objective, its bounds considered."""

    KEPT = "Kept"
    MISSED = "Missed"
    UNCERTAIN = "Uncertain"
    UNMEASURED = "Unmeasured"


def _promised(name: str, text: str, ends: tuple[str, ...] = ()) -> FigureGauge:
    """A gauge of figures with an objective.

    Requests and missed ones are counts of the last window, published at every cycle: summed over an hour both count a
    request equally often, so that their ratio holds for the hour, whichever pods came and went. A status of an earlier cycle would
    be counted again and again.
    """
    return FigureGauge(name, text, {"figure": "figure"}, ends=ends, only_with="limit_seconds", fresh=True)


def _quantile(quantile: str, name: str) -> FigureGauge:
    return FigureGauge(
        "breakeven_latency_quantile_seconds",
        "Measured quantile over the last window, by figure (e2e, ttft, tpot), of services with an objective; its bounds are edges of "
        "vLLM's histogram.",
        {"figure": "figure"},
        fixed={"quantile": quantile},
        ends=ends_of(name),
        fresh=True,
    )


class ObjectiveStatus(StatusModel):
    """One figure of vLLM's histograms over the last window, and its objective where spec.slo has one."""

    figure: Annotated[
        Word,
        Field(
            description="e2e: whole requests. ttft: time to first token. tpot: time per output token, as a mean of each request."
        ),
    ]
    finding: ObjectiveFinding | None = row(
        "Kept or Missed: the bounds of the measured quantile lie on one side of the limit. Uncertain: on both. "
        "Unmeasured: there is no such quantile now. Absent without an objective.",
        Renewal.AT_ONCE,
    )
    since_time: Instant | None = row("Since when it has been found so.", Renewal.AT_ONCE)
    limit_seconds: Number | None = row(
        "What the objective allows.",
        Renewal.AT_ONCE,
        _promised("breakeven_objective_seconds", "Limit of spec.slo that 95 % of requests shall keep."),
    )
    target_percent: int | None = row("Share of requests that shall keep it.", ge=0, le=100)
    attainment_percent: Number | None = row(
        "Share of requests that kept it, interpolated between two edges of the histogram.",
        _promised(
            "breakeven_objective_attainment_ratio",
            "Share of the last window's requests within the limit.",
            ends_of("attainment_percent"),
        ),
    )
    attainment_lower_percent: Number | None = row(
        "Its lower bound: sampling, and no request between the edges kept it."
    )
    attainment_upper_percent: Number | None = row(
        "Its upper bound: sampling, and each request between the edges kept it."
    )
    requests: int | None = row(
        "Requests in the histogram.",
        _promised(
            "breakeven_objective_requests", "Requests of the last window that were held against the limit."
        ),
        ge=0,
    )
    missed_requests: int | None = row(
        "Requests that surely took longer than the limit.",
        _promised("breakeven_objective_missed_requests", "Requests of the window that surely took longer."),
        ge=0,
    )
    p50_seconds: Number | None = row(
        "Median; half of the requests took no longer.", _quantile("0.5", "p50_seconds")
    )
    p50_lower_seconds: ItsLower = None
    p50_upper_seconds: ItsUpperOrOpen = None
    p95_seconds: Number | None = row("95th percentile.", _quantile("0.95", "p95_seconds"))
    p95_lower_seconds: ItsLower = None
    p95_upper_seconds: ItsUpperOrOpen = None
    p99_seconds: Number | None = row("99th percentile.", _quantile("0.99", "p99_seconds"))
    p99_lower_seconds: ItsLower = None
    p99_upper_seconds: ItsUpperOrOpen = None
    predicted_p95_seconds: Number | None = row(
        "95th percentile that the profile predicts for the running arm at the present load; absent where none was calibrated.",
        _promised(
            "breakeven_objective_predicted_seconds",
            "95th percentile that the profile predicts for the running arm at the present load.",
            ends_of("predicted_p95_seconds"),
        ),
    )
    predicted_p95_lower_seconds: ItsLower = None
    predicted_p95_upper_seconds: ItsUpperOrOpen = None
