"""Objectives held against what users see: measured quantiles with their bounds, whatever the model says.

An objective is kept or missed if the bounds of the measured quantile lie on one side of its limit. They hold the width of
a bucket, so a limit between two edges of vLLM's histogram may stay uncertain for ever; one on an edge does not.
A finding counts once it has stood for longer than a window: two windows that share no request then say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from breakeven.estimate import Estimate
from breakeven.phrases import between, figure, latency_text
from breakeven.planning.evaluation import ArmEvaluation
from breakeven_operator.case import Latencies, Objectives
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.observing.latency_metrics import E2E, TPOT, TTFT
from breakeven_operator.observing.questions import SLO_QUANTILE, objectives_of
from breakeven_operator.resources.figures import bounded
from breakeven_operator.resources.meta import OBJECTIVES, Aspect
from breakeven_operator.resources.servicestatus import ObjectiveFinding, ObjectiveStatus
from breakeven_operator.resources.speculativeservice import ServiceLevel

_SHOWN = {"p50": 0.5, "p95": SLO_QUANTILE, "p99": 0.99}
# How a prediction calls them.
_PREDICTED = {E2E: "latency", TTFT: "ttft", TPOT: "tpot"}
_NAMES = {E2E: "E2E", TTFT: "TTFT", TPOT: "TPOT"}


def measured(
    slo: ServiceLevel,
    latencies: Latencies | None,
    before: Sequence[ObjectiveStatus],
    window_s: float,
    now: datetime,
) -> Objectives | None:
    """Hold the objectives against the measured latencies, counted over `window_s`; None without objectives.

    Nobody asks for latencies of a target that cannot be looked at.
    """
    limits = objectives_of(slo)
    if not limits or latencies is None:
        return None
    old = {one.figure: one for one in before}
    figures = tuple(
        _figure(figure, limits.get(figure), latencies, old.get(figure), now) for figure in (E2E, TTFT, TPOT)
    )
    settled = frozenset(
        one.figure
        for one in figures
        if one.finding in {ObjectiveFinding.KEPT, ObjectiveFinding.MISSED}
        and one.since_time is not None
        and now - one.since_time >= timedelta(seconds=window_s)
    )
    return Objectives(figures, latencies, settled)


def _figure(
    figure: str, limit_s: float | None, latencies: Latencies, old: ObjectiveStatus | None, now: datetime
) -> ObjectiveStatus:
    histogram = latencies.histograms.get(figure)
    fields: dict[str, object] = {}
    p95 = Estimate()
    if histogram is not None and histogram.requests > 0.0:
        for name, share in _SHOWN.items():
            fields |= bounded(f"{name}_seconds", histogram.quantile(share))
        p95 = histogram.quantile(SLO_QUANTILE)
        fields["requests"] = round(histogram.requests)
    if limit_s is None:
        return ObjectiveStatus(figure=figure, **fields)
    finding = _finding(p95, limit_s)
    same = old is not None and old.finding is finding and old.limit_seconds == limit_s
    fields |= {
        "finding": finding,
        "since_time": old.since_time if old is not None and same else now,
        "limit_seconds": limit_s,
        "target_percent": round(100 * SLO_QUANTILE),
    }
    if histogram is not None and histogram.requests > 0.0:
        fields |= bounded("attainment_percent", histogram.within(limit_s).times(100.0))
        fields["missed_requests"] = round(histogram.missed(limit_s))
    return ObjectiveStatus(figure=figure, **fields)


def _finding(p95: Estimate, limit_s: float) -> ObjectiveFinding:
    if p95.lower is None:
        return ObjectiveFinding.UNMEASURED
    if p95.lower >= limit_s:
        return ObjectiveFinding.MISSED
    kept = p95.upper is not None and p95.upper <= limit_s
    return ObjectiveFinding.KEPT if kept else ObjectiveFinding.UNCERTAIN


def with_predictions(
    objectives: Objectives | None, running: ArmEvaluation | None
) -> tuple[ObjectiveStatus, ...]:
    """The figures beside what the profile predicts for the running arm; a mean is no quantile and is left out."""
    if objectives is None:
        return ()
    promised = running.promised if running is not None else None
    found = []
    for one in objectives.figures:
        field = _PREDICTED[one.figure]
        bounds = Estimate()
        if promised is not None and one.finding is not None and f"{field}_s" not in promised.means:
            bounds = Estimate.of(getattr(promised, f"{field}_s"), getattr(promised, f"{field}_ci_s"))
        found.append(one.replace(**bounded("predicted_p95_seconds", bounds)))
    return tuple(found)


def objectives_aspect(
    objectives: Objectives | None, figures: Sequence[ObjectiveStatus], *, asked_before: bool
) -> Aspect | None:
    """Whether users get what is promised; None for a service that never promised anything."""
    if objectives is not None:
        message = objectives_message(objectives, figures)
        return Aspect(OBJECTIVES, objectives.holds, str(objectives.reason), message)
    if not asked_before:
        return None
    said = "no objective is held against measurements now: spec.slo sets none, or there is no target"
    return Aspect(OBJECTIVES, None, str(ClusterReason.OBJECTIVE_UNCERTAIN), said)


def objectives_message(objectives: Objectives, figures: Sequence[ObjectiveStatus]) -> str:
    """Measurement of each objective beside its prediction, the worst first."""
    if objectives.latencies.reason is not ClusterReason.METRICS_AVAILABLE:
        return objectives.latencies.message
    asked = [one for one in figures if one.finding is not None]
    worst = (ObjectiveFinding.MISSED, ObjectiveFinding.UNCERTAIN, ObjectiveFinding.UNMEASURED)
    asked.sort(key=lambda one: worst.index(one.finding) if one.finding in worst else len(worst))
    return "; ".join(map(_sentence, asked))


def _sentence(one: ObjectiveStatus) -> str:
    name, limit = _NAMES[one.figure], _time(one.limit_seconds)
    if one.finding is ObjectiveFinding.UNMEASURED:
        return f"{name} p95 shall be at most {limit} and is not measured"
    said = f"{name} p95 is {_time(one.p95_seconds)}{_between(one.p95_lower_seconds, one.p95_upper_seconds)}"
    kept = f"{figure(one.attainment_percent)} %" if one.attainment_percent is not None else "?"
    said += f" and shall be at most {limit}: {kept} of {one.requests} requests kept it, {one.target_percent} % should"
    if one.predicted_p95_seconds is None:
        return said
    bounds = _between(one.predicted_p95_lower_seconds, one.predicted_p95_upper_seconds)
    return f"{said} (predicted: {_time(one.predicted_p95_seconds)}{bounds})"


def _between(lower_s: float | None, upper_s: float | None) -> str:
    return "" if lower_s is None else f" ({between(lower_s, upper_s, latency_text)})"


def _time(seconds: float | None) -> str:
    return "beyond the histogram" if seconds is None else latency_text(seconds)
