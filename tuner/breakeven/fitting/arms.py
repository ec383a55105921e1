"""Fit one arm: its rows in, the line through them with bounds and diagnostics out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.fitting import diagnostics
from breakeven.fitting.observations import (
    SAME_OUTPUT,
    SAME_PROMPT,
    LeftOut,
    Observation,
    ceiling_rps,
    observe,
    of_commonest_length,
)
from breakeven.fitting.solve import Solution, solve
from breakeven.fitting.uncertainty import (
    bounds,
    inverse_bounds,
    law_fit,
    law_fit_of_loads,
    replicate_noise,
)
from breakeven.laws.acceptance_numbers import survival_per_step
from breakeven.methods import LOOKUP_METHODS
from breakeven.points.point import LEAST_S, Point, multiplied
from breakeven.profile.fits import (
    Acceptance,
    ArmFit,
    Bend,
    Bounds,
    Excluded,
    LawFit,
    Lengths,
    MeasuredRange,
    Measurement,
)
from breakeven.profile.step_form import LARGEST_MISS
from breakeven.profile.student_t import t_quantile
from breakeven.reasons import Reason

_FEWEST_ROWS = 3
"""Rows from which their scatter tells an error of E."""

_OF_LATENCY = ("mean_latency_s", "p50_latency_s", "p95_latency_s", "p99_latency_s")
_OF_DECODING = ("tpot_mean_s", "tpot_p50_s", "tpot_p95_s", "tpot_p99_s")

_CEILING = (Reason.SATURATED_POINT, Reason.PREEMPTING)


def fit_arm(arm: Arm, points: Sequence[Point], ramp_share: float, confidence: float) -> ArmFit:
    """Fit the rows of one arm; never raises for what the data cannot tell, the result says so.

    Args:
        arm: the arm.
        points: its rows, at least one.
        ramp_share: rho of short closed-loop runs, from `observations.ramp_share_of`.
        confidence: two-sided level of all bounds.
    """
    return fit_observed(arm, *observe(points, ramp_share), ramp_share, confidence)


def fit_observed(
    arm: Arm, steady: list[Observation], rejected: list[LeftOut], ramp_share: float, confidence: float
) -> ArmFit:
    """Fit an arm whose rows were judged already, as `fit_arm`.

    Args:
        arm: the arm.
        steady: its usable rows.
        rejected: its other rows.
        ramp_share: rho of short closed-loop runs.
        confidence: two-sided level of all bounds.
    """
    used, elsewhere, excluded, solution, fit, left_out, bend, believable, reason = _checked(
        arm, steady, rejected
    )
    ceiling = _ceiling_rps(used, excluded, ramp_share)
    c1_ci, c2_ci = _bounds(fit, confidence)
    saturation, saturation_ci = _saturation(fit, ceiling, _carried_rps(used), confidence)
    return ArmFit(
        method=arm.method,
        k=arm.k,
        candidate=arm.candidate,
        c1_s=fit.c1_s if fit else None,
        c1_ci_s=c1_ci,
        c2_s=fit.c2_s if fit else None,
        c2_ci_s=c2_ci,
        saturation_rps=saturation,
        saturation_ci_rps=saturation_ci,
        points=len(used),
        excluded=tuple(
            Excluded(point.origin.row, reason.value, point.origin.source, point.origin.line)
            for point, reason in sorted(
                excluded, key=lambda out: (out.point.origin.source, out.point.origin.row)
            )
        ),
        max_relative_error=fit.max_relative_error if fit else None,
        r2=diagnostics.r_squared(diagnostics.latencies(used), solution.fitted)
        if solution is not None
        else None,
        loo_error=left_out,
        measured_range=_range(used),
        believable=believable,
        reason=reason.value,
        basis="points" if bend is not None else "arm",
        bend=bend,
        fit=fit if fit is not None and fit.c1_s > 0 and fit.c2_s > 0 else None,
        ttft=_side_law(used, attrgetter("ttft_mean_s")),
        tpot=_side_law(used, attrgetter("tpot_mean_s")),
        quantiles=_quantiles(used, "p{}_latency_s"),
        ttft_quantiles=_quantiles(used, "ttft_p{}_s"),
        tpot_quantiles=_quantiles(used, "tpot_p{}_s"),
        acceptance=_acceptance(arm, used, confidence),
        lengths=lengths_of(used),
        measured_saturation_rps=ceiling,
        measurements=tuple(_measurement(one, mixed=arm.adaptive) for one in used),
        other_lengths=tuple(_elsewhere(one) for one in elsewhere),
        kv_requests=_kv_requests(used),
        schedule=[*(one.point for one in steady), *(one.point for one in rejected)][0].schedule,
        prefix_hit_ratio=_hit_ratio(used),
    )


def over_starts(fit: ArmFit, sd: float, confidence: float) -> ArmFit:
    """The fit with bounds that hold over starts of the engine.

    Args:
        fit: of the rows, whose bounds hold for the starts that were measured.
        sd: standard deviation (ln) of their mean around that of all starts.
        confidence: two-sided level of all bounds.
    """
    if fit.fit is None or not sd:
        return fit
    law = fit.fit.raised(sd)
    c1_ci, c2_ci = _bounds(law, confidence)

    of_law = fit.saturation_rps is not None and math.isclose(fit.saturation_rps * law.c2_s, 1.0)
    more = t_quantile(confidence, law.dof) * sd
    carried_ci = _raised_bounds(fit.saturation_rps, fit.saturation_ci_rps, more)

    def raised(of: LawFit | None) -> LawFit | None:
        return None if of is None else of.raised(sd)

    def each(of: Mapping[str, LawFit]) -> dict[str, LawFit]:
        return {share: one.raised(sd) for share, one in of.items()}

    return replace(
        fit,
        fit=law,
        c1_ci_s=c1_ci,
        c2_ci_s=c2_ci,
        saturation_ci_rps=inverse_bounds(c2_ci) if of_law else carried_ci,
        ttft=raised(fit.ttft),
        tpot=raised(fit.tpot),
        quantiles=each(fit.quantiles),
        ttft_quantiles=each(fit.ttft_quantiles),
        tpot_quantiles=each(fit.tpot_quantiles),
    )


def _raised_bounds(value: float | None, ends: Bounds | None, more: float) -> Bounds | None:
    """Bounds whose half-widths (ln) hold another one, independent of them."""
    if value is None or ends is None:
        return ends
    low, high = ends
    return (
        low if not low else value * math.exp(-math.hypot(math.log(value / low), more)),
        high if high is None else value * math.exp(math.hypot(math.log(high / value), more)),
    )


def is_believable(arm: Arm, points: Sequence[Point], ramp_share: float) -> bool:
    """Whether the line through these rows is believed; arguments as in `fit_arm`."""
    return _checked(arm, *observe(points, ramp_share)).believable


class _Checked(NamedTuple):
    used: list[Observation]
    elsewhere: list[Observation]
    excluded: list[LeftOut]
    solution: Solution | None
    fit: LawFit | None
    left_out: float | None
    bend: Bend | None
    believable: bool
    reason: Reason


def _checked(arm: Arm, steady: list[Observation], rejected: list[LeftOut]) -> _Checked:
    """The line of an arm's rows, and whether it is believed."""
    used, other_lengths = of_one_length(steady)
    excluded = [*rejected, *(LeftOut(one.point, Reason.OTHER_LENGTHS) for one in other_lengths)]
    # Near the border of two tiers of a schedule, a good point is off the line of all others.
    bad = set() if arm.scheduled else set(diagnostics.outliers(used))
    excluded += [LeftOut(used[i].point, Reason.OUTLIER) for i in sorted(bad)]
    used = [one for i, one in enumerate(used) if i not in bad]
    solution = diagnostics.fit_law(used)
    fit = _fit_of_loads(solution, used) if solution is not None else None
    errors = diagnostics.left_out_errors(used)
    left_out = float(np.mean(errors)) if errors else None
    bends = diagnostics.interpolated if arm.scheduled else diagnostics.bend
    bend = bends(used, solution) if solution is not None else None
    return _Checked(
        used,
        other_lengths,
        excluded,
        solution,
        fit,
        left_out,
        bend,
        *diagnostics.verdict(used, fit, left_out, bend),
    )


def _fit_of_loads(solution: Solution, used: Sequence[Observation]) -> LawFit:
    imposed = [not one.point.closed for one in used]
    return law_fit_of_loads(solution, diagnostics.design(used), imposed, replicate_noise(used))


def of_one_length(used: list[Observation]) -> tuple[list[Observation], list[Observation]]:
    """Keep the rows of the commonest lengths: a law holds for one mix of lengths."""
    kept = of_commonest_length(used, lambda one: one.point.output_tokens, SAME_OUTPUT)
    kept = of_commonest_length(kept, lambda one: one.point.prompt_tokens, SAME_PROMPT)
    return kept, [one for one in used if one not in kept]


def _bounds(fit: LawFit | None, confidence: float) -> tuple[Bounds | None, Bounds | None]:
    """Bounds of C1 and C2."""
    if fit is None:
        return None, None
    return (
        bounds(fit.c1_s, fit.covariance[0][0], fit.dof, confidence),
        bounds(fit.c2_s, fit.covariance[1][1], fit.dof, confidence),
    )


def _saturation(
    fit: LawFit | None, ceiling: float | None, carried: float, confidence: float
) -> tuple[float | None, Bounds | None]:
    """Saturation (1/s) and its bounds: 1/C2, or the measured ceiling below it; never less than what was carried.

    A measured ceiling is as uncertain as any measured point.
    """
    if fit is None or not fit.c2_s > 0:
        return ceiling, None
    law = 1.0 / fit.c2_s
    found = inverse_bounds(_bounds(fit, confidence)[1])
    if ceiling is not None and ceiling < law and found is not None:
        # A bound that is farther off says nothing, and is no number that a profile takes.
        error = math.exp(min(t_quantile(confidence, fit.dof) * fit.noise, LARGEST_MISS))
        found = (ceiling / error, ceiling * error)
    saturation = max(law if ceiling is None else min(law, ceiling), carried)
    if found is not None:
        low, high = found
        # The rate that one row carried is as uncertain as the row: it raises the estimate, not the lower bound.
        found = (low, None if high is None else max(high, saturation))
    return saturation, found


def _carried_rps(used: Sequence[Observation]) -> float:
    return max((one.carried_rps for one in used), default=0.0)


def _ceiling_rps(used: Sequence[Observation], excluded: Sequence[LeftOut], ramp_share: float) -> float | None:
    """Highest answered rate, once at least one row shows that more was asked for than could be answered."""
    ceilings = [
        rate
        for point, reason in excluded
        if reason in _CEILING and (rate := ceiling_rps(point, ramp_share)) is not None
    ]
    if not ceilings:
        return None
    return max([*ceilings, _carried_rps(used)])


def _side_law(used: Sequence[Observation], figure: Callable[[Point], float | None]) -> LawFit | None:
    """Fit the law a + b*n to another figure of the same rows, with the mean's n."""
    rows = [(one, value) for one in used if (value := figure(one.point)) is not None]
    if len({round(one.others, 9) for one, _ in rows}) < 2:
        return None
    solution: Solution = solve(
        diagnostics.design([one for one, _ in rows]), np.array([value for _, value in rows])
    )
    fit = law_fit(solution)
    return fit if fit.c1_s >= LEAST_S else None


def _quantiles(used: Sequence[Observation], column: str) -> dict[str, LawFit]:
    """Fit each quantile that was measured; `column` holds the place of the percentage."""
    laws = {
        share: _side_law(used, attrgetter(column.format(percent)))
        for share, percent in (("0.5", 50), ("0.95", 95), ("0.99", 99))
    }
    return {share: law for share, law in laws.items() if law is not None}


def _acceptance(arm: Arm, used: Sequence[Observation], confidence: float) -> Acceptance | None:
    """E and survival over all rows, weighted by requests; the scatter between rows is their sampling error."""
    if arm.k == 0:
        return None
    rows = [one.point for one in used]
    survival = _weighted_survival(arm, rows)
    mean = _mean_acceptance(rows)
    bounds_of_e: Bounds | None = None
    scatter: float | None = None
    if mean is not None:
        e, scatter = mean.tokens_per_step, mean.request_scatter
        if mean.relative_error is not None:
            half = t_quantile(confidence, mean.dof) * mean.relative_error * e
            bounds_of_e = max(1.0, e - half), min(arm.k + 1.0, e + half)
    elif survival is not None and arm.method not in LOOKUP_METHODS:
        # A model drafter drafts at every step, so survival per draft is survival per step.
        e = float(1.0 + survival.sum())
    else:
        return None
    per_step: tuple[float, ...] = ()
    if survival is not None and survival.sum() > 0:
        possible = min(e, 1.0 + float(survival.sum()))
        per_step = tuple(float(x) for x in survival_per_step(survival, possible))
    drafted = [point.drafted_per_step for point in rows if point.drafted_per_step is not None]
    per_draft = float(np.mean(drafted)) if drafted else float(arm.k)
    return Acceptance(e, bounds_of_e, per_step, per_draft, _text(rows), scatter)


class _MeanAcceptance(NamedTuple):
    """E over rows, its relative standard error, that of one request, and degrees of freedom; None with too few rows."""

    tokens_per_step: float
    relative_error: float | None
    request_scatter: float | None
    dof: int


def _mean_acceptance(rows: Sequence[Point]) -> _MeanAcceptance | None:
    """E over rows weighted by their requests; None where no row says it."""
    told = [(one.tokens_per_step, one.requests) for one in rows if one.tokens_per_step is not None]
    if not told:
        return None
    values = np.array([e for e, _ in told])
    weights = np.array([requests or 1.0 for _, requests in told])
    e, dof = float(np.average(values, weights=weights)), len(told) - 1
    if len(told) < _FEWEST_ROWS:
        return _MeanAcceptance(e, None, None, dof)
    if not all(requests for _, requests in told):
        return _MeanAcceptance(e, float(np.std(values, ddof=1)) / len(told) ** 0.5 / e, None, dof)
    # Each row is a mean over its requests: what is left over, times their number, is one request's.
    scatter = float(np.sqrt(np.sum(weights * (values / e - 1.0) ** 2) / dof))
    return _MeanAcceptance(e, scatter / float(weights.sum()) ** 0.5, scatter, dof)


def _text(rows: Sequence[Point]) -> str | None:
    """Text on which acceptance was measured; several are joined, up to 200 characters."""
    texts = sorted({point.text_source for point in rows if point.text_source})
    return " and ".join(texts)[:200] or None


def _weighted_survival(
    arm: Arm, rows: Sequence[Point]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None:
    profiles = [
        (point.accept, point.drafts or point.requests or 1.0) for point in rows if len(point.accept) == arm.k
    ]
    if not profiles:
        return None
    mean = np.average(
        [profile for profile, _ in profiles], axis=0, weights=[weight for _, weight in profiles]
    )
    return np.minimum.accumulate(np.asarray(mean, dtype=float))


def lengths_of(used: Sequence[Observation]) -> Lengths:
    """Return the mean tokens per request over the rows that say."""

    def mean(figure: Callable[[Point], float | None]) -> float | None:
        values = [value for one in used if (value := figure(one.point)) is not None]
        return float(np.mean(values)) if values else None

    return Lengths(
        mean(lambda point: point.prompt_tokens),
        mean(lambda point: point.output_tokens),
        mean(lambda point: point.output_tokens_sq),
    )


def _range(used: Sequence[Observation]) -> MeasuredRange | None:
    if not used:
        return None
    rates, inflight = [one.rps for one in used], [one.inflight for one in used]
    return MeasuredRange((min(rates), max(rates)), (min(inflight), max(inflight)))


def _hit_ratio(used: Sequence[Observation]) -> float | None:
    """Share of prompt tokens that the prefix cache held, on average over the rows that count it."""
    told = [one.point.prefix_hit_ratio for one in used if one.point.prefix_hit_ratio is not None]
    return float(np.mean(told)) if told else None


def _kv_requests(used: Sequence[Observation]) -> float | None:
    """Requests in flight that fill the KV pool, by the largest closed loop: there are never more than its clients.

    The highest use that was seen belongs to the moment in which these held most, so the figure is rather too low than too high.
    """
    seen = [
        (point.concurrency, point.kv_usage_max)
        for point in (one.point for one in used)
        if point.closed and point.concurrency and point.kv_usage_max
    ]
    clients, use = max(seen, default=(0.0, 0.0))
    return clients / use if use else None


def _measurement(one: Observation, *, mixed: bool = False) -> Measurement:
    """A row as the profile keeps it; `mixed`: its tokens per step are its own, because they follow the load."""
    return Measurement(
        row=one.point.origin.row,
        source=one.point.origin.source,
        mode=one.point.load_mode.value,
        others=one.others,
        inflight=one.inflight,
        rps=one.rps,
        latency_s=one.latency_s,
        concurrency=one.point.concurrency,
        inflight_assumed=one.assumed,
        tokens_per_step=one.point.tokens_per_step if mixed else None,
    )


def _elsewhere(one: Observation) -> Measurement:
    return replace(
        _measurement(one),
        tokens_per_step=one.point.tokens_per_step,
        prompt_tokens=one.point.prompt_tokens,
        output_tokens=one.point.output_tokens,
    )


def carried(row: Observation, factor: float) -> Observation:
    """A row as if its drafts had been accepted as those of its arm are on average; all that changes is decoding.

    The law may reckon with more decoding than the row shows, whose first token may have waited. So decoding changes at most
    as if each step gave one token in place of k + 1, or the reverse. A request meets as many others as before, so that
    the rate changes with the latency: with its old rate the row would contradict itself.

    Args:
        row: the row.
        factor: of the law, on the latency.
    """
    point = row.point
    first_s, most = min(point.ttft_mean_s or 0.0, point.mean_latency_s), point.arm.k + 1.0
    decoding_s = max(point.mean_latency_s - first_s, LEAST_S)
    decoding = min(max(1.0 + point.mean_latency_s * (factor - 1.0) / decoding_s, 1.0 / most), most)
    whole = (first_s + decoding * decoding_s) / (first_s + decoding_s)
    moved = multiplied(point, dict.fromkeys(_OF_LATENCY, whole) | dict.fromkeys(_OF_DECODING, decoding))
    return replace(row, point=moved, rps=row.rps / whole)
