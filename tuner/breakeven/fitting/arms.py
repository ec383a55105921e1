"""One arm without a law: its rows, acceptance, lengths and lines; C1, C2 and saturation come from the law of all arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.fitting.observations import (
    SAME_OUTPUT,
    SAME_PROMPT,
    LeftOut,
    Observation,
    ceiling_rps,
    observe,
)
from breakeven.laws.acceptance_numbers import survival_per_step
from breakeven.laws.arrays import FloatArray
from breakeven.laws.step_law import varied
from breakeven.methods import LOOKUP_METHODS
from breakeven.points.point import LEAST_S, LIVE_TRAFFIC, ImposedLoad, Point, multiplied
from breakeven.profile.fits import (
    Acceptance,
    ArmFit,
    Bounds,
    Excluded,
    Lengths,
    LineFit,
    MeasuredRange,
    Measurement,
)
from breakeven.profile.student_t import t_quantile
from breakeven.reasons import Reason

_NEAR_S = 300.0
"""Longest time (s) from a stretch's first window to its last one: a machine drifts over minutes."""

_FEWEST_ROWS = 3
"""Rows from which their scatter gives an error of E."""

_ROUNDS, _SETTLED = 50, 1e-12

_FEWEST_LOADS_TO_INTERPOLATE = 5
"""Loads from which one bad row differs from a bend: it and its neighbours, with a load beyond each."""

_OUTLIER_LEAST, _OUTLIER_LEAST_AT_AN_END, _OUTLIER_LEVEL = 0.10, 0.20, 0.01
"""Nothing lies beyond the first and the last load to tell a bend from a bad point: arms of published sweeps bend by up
to 14 % between a lone request and 32."""

_OF_LATENCY = ("mean_latency_s", "p50_latency_s", "p95_latency_s", "p99_latency_s")
_OF_DECODING = ("tpot_mean_s", "tpot_p50_s", "tpot_p95_s", "tpot_p99_s")

_CEILING = (Reason.SATURATED_POINT, Reason.PREEMPTING)


class ArmRows(NamedTuple):
    """One arm's rows.

    Attributes:
        measured: usable rows at all lengths in the order in which they were measured, bad ones included: a drift of the
            machine may look like a bad row.
        own: rows of the commonest lengths, at which C1 and C2 are read.
        rows: used by the law of steps, at all lengths.
        left_out: rows that show no steady state, and bad ones.
    """

    arm: Arm
    measured: Sequence[Observation]
    own: Sequence[Observation]
    rows: Sequence[Observation]
    left_out: Sequence[LeftOut]

    @property
    def elsewhere(self) -> list[Observation]:
        """Rows at other lengths."""
        return [one for one in self.rows if one not in self.own]


def rows_of(arm: Arm, points: Sequence[Point], ramp_share: float) -> ArmRows:
    """The rows of one arm, of at least one point; `ramp_share` is rho of short closed-loop runs (`ramp_share_of`)."""
    measured, rejected = observe(points, ramp_share)
    own = of_one_length(measured)
    # Near the border of two tiers of a schedule, a good point is off the line of all others.
    bad = [] if arm.scheduled else [own[at] for at in outliers(_of_one_acceptance(own))]
    return ArmRows(
        arm,
        measured,
        [one for one in own if one not in bad],
        [one for one in measured if one not in bad],
        [*rejected, *(LeftOut(one.point, Reason.OUTLIER) for one in bad)],
    )


def _of_one_acceptance(rows: Sequence[Observation]) -> list[Observation]:
    """The rows as if all had accepted as much, so that no row looks bad for its text: decoding goes by 1/E."""
    known = [one.point.tokens_per_step for one in rows if one.point.tokens_per_step]
    if not known:
        return list(rows)
    mean = float(np.mean(known))
    found = []
    for row in rows:
        first_s = min(row.point.ttft_mean_s or 0.0, row.latency_s)
        steps = (row.point.tokens_per_step or mean) / mean
        factor = (first_s + steps * (row.latency_s - first_s)) / row.latency_s
        found.append(replace(row, point=multiplied(row.point, {"mean_latency_s": factor})))
    return found


def fit_arm(rows: ArmRows, ramp_share: float, confidence: float) -> ArmFit:
    """The fit of an arm as far as its rows alone give it."""
    arm, own = rows.arm, rows.own
    # A sweep's own probes of length are for the law of steps: nobody took them for a load.
    sweeps = {one.point.sweep for one in own if one.point.sweep}
    elsewhere = [one.point for one in rows.elsewhere if one.point.sweep not in sweeps]
    excluded = [*rows.left_out, *(LeftOut(one, Reason.OTHER_LENGTHS) for one in elsewhere)]
    return ArmFit(
        method=arm.method,
        k=arm.k,
        candidate=arm.candidate,
        points=len(own),
        excluded=tuple(
            Excluded(point.origin.row, why.value, point.origin.source, point.origin.line)
            for point, why in sorted(
                excluded, key=lambda out: (out.point.origin.source, out.point.origin.row)
            )
        ),
        measured_range=MeasuredRange(
            *((min(some), max(some)) for some in ([one.rps for one in own], [one.inflight for one in own]))
        )
        if own
        else None,
        acceptance=_acceptance(arm, own, confidence),
        lengths=lengths_of(own),
        measured_saturation_rps=_ceiling_rps(own, excluded, ramp_share),
        kv_requests=_kv_requests(own),
        schedule=[*(one.point for one in rows.measured), *(one.point for one in rows.left_out)][0].schedule,
        prefix_hit_ratio=_mean(own, "prefix_hit_ratio"),
    )


def with_lines(
    fit: ArmFit, own: Sequence[Observation], elsewhere: Sequence[Observation], sd: float
) -> ArmFit:
    """The fit with its rows, and the lines of figures that no law gives: means of TTFT and TPOT, and quantiles.

    `own` are rows of one acceptance, `elsewhere` rows at other lengths as measured. `sd` is the standard deviation (ln) of the
    arm's latencies over starts of its engine.
    """
    return replace(
        fit,
        ttft=_side_law(own, "ttft_mean_s", sd),
        tpot=_side_law(own, "tpot_mean_s", sd),
        quantiles=_quantiles(own, "p{}_latency_s", sd),
        ttft_quantiles=_quantiles(own, "ttft_p{}_s", sd),
        tpot_quantiles=_quantiles(own, "tpot_p{}_s", sd),
        measurements=tuple(_measurement(one, mixed=fit.arm.adaptive) for one in own),
        other_lengths=tuple(
            replace(
                _measurement(one, mixed=True),
                prompt_tokens=one.point.prompt_tokens,
                output_tokens=one.point.output_tokens,
            )
            for one in elsewhere
        ),
    )


def of_one_length(used: Sequence[Observation]) -> list[Observation]:
    """The rows of the commonest lengths: C1 and C2 hold for one mix of lengths."""
    rows = list(used)
    for column, within in (("output_tokens", SAME_OUTPUT), ("prompt_tokens", SAME_PROMPT)):
        lengths = [getattr(one.point, column) or 0.0 for one in rows]
        # A row that names no length has the length of all others.
        near = {
            center: [not tokens or abs(tokens - center) <= within * center for tokens in lengths]
            for center in lengths
            if center
        }
        kept = max(near.values(), key=sum, default=[True] * len(rows))
        rows = [one for one, belongs in zip(rows, kept, strict=True) if belongs]
    return rows


def _ceiling_rps(used: Sequence[Observation], excluded: Sequence[LeftOut], ramp_share: float) -> float | None:
    """Highest answered rate, once at least one row shows that more was asked for than could be answered."""
    ceilings = [
        rate
        for point, reason in excluded
        if reason in _CEILING and (rate := ceiling_rps(point, ramp_share)) is not None
    ]
    if not ceilings:
        return None
    return max([*ceilings, *(one.carried_rps for one in used)])


def _side_law(used: Sequence[Observation], column: str, sd: float) -> LineFit | None:
    """The line of another figure of the same rows against the mean's n."""
    rows = [(one.others, value) for one in used if (value := getattr(one.point, column)) is not None]
    if not rows:
        return None
    others, values_s = np.array(rows).T
    found = _line(others, values_s)
    if found is None or found.ends[0] < LEAST_S:
        return None
    (v1, v12), (v21, v2) = found.covariance.tolist()
    a, b = found.ends.tolist()
    return LineFit(a, b, ((v1, v12), (v21, v2)), max(others.size - 2, 0)).raised(sd)


def _quantiles(used: Sequence[Observation], column: str, sd: float) -> dict[str, LineFit]:
    """The line of each quantile that was measured; `column` holds the place of the percentage."""
    laws = {
        share: _side_law(used, column.format(percent), sd)
        for share, percent in (("0.5", 50), ("0.95", 95), ("0.99", 99))
    }
    return {share: law for share, law in laws.items() if law is not None}


def _acceptance(arm: Arm, used: Sequence[Observation], confidence: float) -> Acceptance | None:
    """E and survival over all rows, weighted by requests; the scatter between rows is their sampling error."""
    if arm.k == 0:
        return None
    rows = [one.point for one in used]
    survival = _weighted_survival(arm, rows)
    told = [(one.tokens_per_step, one.requests) for one in rows if one.tokens_per_step is not None]
    bounds_of_e: Bounds | None = None
    scatter: float | None = None
    if told:
        e, error, scatter = _mean_acceptance(told)
        if error is not None:
            half = t_quantile(confidence, len(told) - 1) * error * e
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
    text = " and ".join(sorted({point.text_source for point in rows if point.text_source}))[:200]
    return Acceptance(e, bounds_of_e, per_step, per_draft, text or None, scatter)


def _mean_acceptance(
    told: Sequence[tuple[float, float | None]],
) -> tuple[float, float | None, float | None]:
    """E over rows weighted by their requests, its relative standard error, and the same of one request; None with too few rows."""
    values = np.array([e for e, _ in told])
    weights = np.array([requests or 1.0 for _, requests in told])
    e = float(np.average(values, weights=weights))
    if len(told) < _FEWEST_ROWS:
        return e, None, None
    if not all(requests for _, requests in told):
        return e, float(np.std(values, ddof=1)) / len(told) ** 0.5 / e, None
    # Each row is a mean over its requests: what is left over, times their number, is the scatter of one request.
    scatter = float(np.sqrt(np.sum(weights * (values / e - 1.0) ** 2) / (len(told) - 1)))
    return e, scatter / float(weights.sum()) ** 0.5, scatter


def _weighted_survival(arm: Arm, rows: Sequence[Point]) -> FloatArray | None:
    whole = [point for point in rows if len(point.accept) == arm.k]
    if not whole:
        return None
    weights = [point.drafts or point.requests or 1.0 for point in whole]
    mean = np.average([point.accept for point in whole], axis=0, weights=weights)
    return np.minimum.accumulate(np.asarray(mean, dtype=float))


def lengths_of(used: Sequence[Observation]) -> Lengths:
    """Mean tokens per request."""
    return Lengths(*(_mean(used, name) for name in ("prompt_tokens", "output_tokens", "output_tokens_sq")))


def _mean(used: Sequence[Observation], column: str) -> float | None:
    values = [value for one in used if (value := getattr(one.point, column)) is not None]
    return float(np.mean(values)) if values else None


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
        request_rate_rps=one.point.request_rate_rps,
        begun_s=one.point.begun_s,
        window_s=one.point.window_s,
        start=one.point.start,
    )


def carried(row: Observation, factor: float) -> Observation:
    """A row as if its drafts had been accepted as often as on average over its arm; all that changes is decoding.

    The law may reckon with more decoding than the row shows, whose first token may have waited. So decoding changes at most
    as if each step gave one token in place of k + 1, or the reverse. A request meets as many others as before, so that
    the rate changes with the latency: with its old rate the row would contradict itself. `factor` is by the law, on the latency.
    """
    point = row.point
    first_s, most = min(point.ttft_mean_s or 0.0, point.mean_latency_s), point.arm.k + 1.0
    decoding_s = max(point.mean_latency_s - first_s, LEAST_S)
    decoding = min(max(1.0 + point.mean_latency_s * (factor - 1.0) / decoding_s, 1.0 / most), most)
    whole = (first_s + decoding * decoding_s) / (first_s + decoding_s)
    moved = multiplied(point, dict.fromkeys(_OF_LATENCY, whole) | dict.fromkeys(_OF_DECODING, decoding))
    return replace(row, point=moved, rps=row.rps / whole)


# Straight lines against the others in flight, of figures that the law of steps does not give, and bad rows.
#
#     minimise  sum_i (y_i / (a + b*n_i) - 1)^2   with a, b >= 0
#
# Errors are relative, because a benchmark's error is a share of the latency: absolute residuals let the highest load decide.


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    """A line a + b*n (s) through rows, its covariance at the noise of the residuals, and their relative standard deviation."""

    ends: FloatArray
    covariance: FloatArray
    noise: float


def _line(others: FloatArray, values_s: FloatArray) -> _Fitted | None:
    """The line through a figure of several loads; None if the loads do not separate two coefficients."""
    if np.ptp(others.round(9)) == 0:
        return None
    design = np.stack([np.ones_like(others), others], axis=-1)
    fitted, ends = values_s, np.zeros(2)
    for _ in range(_ROUNDS):
        # Weights of 1/measured would prefer lines that lie below it. A row that the line cannot reach must not get all weight.
        weights = 1.0 / np.maximum(fitted, 0.1 * values_s)
        before, ends = ends, _nonnegative(design * weights[:, None], values_s * weights)
        fitted = design @ ends
        if np.max(np.abs(ends - before)) <= _SETTLED * np.max(ends):
            break
    fitted = np.maximum(fitted, 1e-3 * values_s)
    residuals, free = values_s / fitted - 1.0, ends > 0
    dof = others.size - int(free.sum())
    noise = float(np.sqrt(residuals @ residuals / dof)) if dof > 0 else 0.0
    weighted = design[:, free] / fitted[:, None]
    covariance = np.zeros((2, 2))
    covariance[np.ix_(free, free)] = noise**2 * np.linalg.pinv(weighted.T @ weighted)
    return _Fitted(ends, 0.5 * (covariance + covariance.T), noise)


def _nonnegative(design: FloatArray, target: FloatArray) -> FloatArray:
    """Least squares of two coefficients of at least 0: if one would be negative, it is 0."""
    size = np.linalg.norm(design, axis=0)
    ends = np.linalg.lstsq(design / size, target, rcond=None)[0] / size
    if np.all(ends > 0):
        return np.asarray(ends)
    alone = np.maximum(design.T @ target / size**2, 0.0)
    lefts = [float(np.sum((target - design[:, at] * alone[at]) ** 2)) for at in range(2)]
    return np.asarray(np.where(np.arange(2) == int(np.argmin(lefts)), alone, 0.0))


def by_load(observations: Sequence[Observation]) -> list[list[Observation]]:
    """Group replicates of one imposed load, ascending in the mean number of others."""
    groups: dict[ImposedLoad, list[Observation]] = {}
    for one in observations:
        groups.setdefault(one.point.load, []).append(one)
    return sorted(groups.values(), key=lambda group: float(np.mean([one.others for one in group])))


def outliers(observations: Sequence[Observation]) -> list[int]:
    """Indices in `observations` of rows that contradict all others; at most one row in five.

    The line through the others must miss the row by more than 10 %, and by more than a t test at 1 % over the number of
    rows explains. The straight line through its two neighbours must miss it by more than 10 % too (20 % at an end of the
    sweep): the end of a curve that bends is far from the line of the others without being wrong. A replicate that confirms
    a row is among the others, whose scatter then explains both.
    """
    kept = list(range(len(observations)))
    found: list[int] = []
    while len(found) < len(observations) // _FEWEST_LOADS_TO_INTERPOLATE:
        worst = _worst([observations[i] for i in kept])
        if worst is None:
            break
        found.append(kept.pop(worst))
    return found


def _worst(observations: Sequence[Observation]) -> int | None:
    if len(by_load(observations)) < _FEWEST_LOADS_TO_INTERPOLATE:
        return None
    limit = t_quantile(1.0 - _OUTLIER_LEVEL / len(observations), len(observations) - 3)
    others = np.array([one.others for one in observations])
    latency_s = np.array([one.latency_s for one in observations])
    worst, most = None, 0.0
    for index, one in enumerate(observations):
        rest = np.arange(others.size) != index
        line = _line(others[rest], latency_s[rest])
        if line is None:
            continue
        row = np.array([1.0, one.others])
        expected_s = max(float(row @ line.ends), 1e-12)
        miss = one.latency_s / expected_s - 1.0
        spread = float(np.sqrt(line.noise**2 + row @ line.covariance @ row / expected_s**2))
        strength = abs(miss) / max(spread, 1e-12)
        beyond = abs(miss) > _OUTLIER_LEAST and strength > max(limit, most)
        if beyond and _off_its_neighbours(one, [*observations[:index], *observations[index + 1 :]]):
            worst, most = index, strength
    return worst


def _off_its_neighbours(one: Observation, rest: Sequence[Observation]) -> bool:
    centers = [
        (float(np.mean([row.others for row in group])), float(np.mean([row.latency_s for row in group])))
        for group in by_load(rest)
    ]
    below = sorted((center for center in centers if center[0] <= one.others), reverse=True)
    above = sorted(center for center in centers if center[0] > one.others)
    first, second = (below[0], above[0]) if below and above else (below or above)[:2]
    slope = (second[1] - first[1]) / (second[0] - first[0])
    expected_s = first[1] + slope * (one.others - first[0])
    least = _OUTLIER_LEAST if below and above else _OUTLIER_LEAST_AT_AN_END
    return abs(one.latency_s / max(expected_s, 1e-12) - 1.0) > least


def beside_decodes(point: Point) -> bool:
    """Whether prompts were read beside requests that decode, so that the row shows what that costs.

    Clients of a closed loop whose answers are of one length fall into step, but not those that our own load driver spreads over
    their answers. A row that does not say how answers vary shows nothing.
    """
    output, square = np.asarray(point.output_tokens or 1.0), np.asarray(point.output_tokens_sq or 0.0)
    spread = bool(point.window_s) and not point.origin.tool
    return not point.closed or spread or bool(varied(output, square))


def hides_prompts(arms: Sequence[ArmRows]) -> bool:
    """Whether no row shows what prompts cost beside requests that decode."""
    return not any(beside_decodes(row.point) for one in arms for row in one.rows)


def blocks_of(arms: Sequence[ArmRows]) -> list[FloatArray]:
    """The number of the stretch of time in which each row of each arm was measured; a row beside no other arm's has one of its own.

    A stretch holds the windows of one load within a few minutes, if they are of several arms. A machine that is slower for a
    minute is slower for all of them: of arms measured at the same time only those on one machine share a stretch.
    """
    rows = [row for one in arms for row in one.rows]
    found = {id(row): float(number) for number, row in enumerate(rows)}
    timed = [row for row in rows if row.point.begun_s is not None and row.point.text_source != LIVE_TRAFFIC]
    stretch: list[Observation] = []
    for row in sorted(timed, key=lambda row: (row.point.machine, row.point.begun_s or 0.0)):
        first, begun_s = (stretch or [row])[0].point, row.point.begun_s or 0.0
        ended_s = (first.begun_s or 0.0) + (first.window_s or 0.0)
        same = (first.machine, first.load) == (row.point.machine, row.point.load)
        if not same or begun_s - ended_s > _NEAR_S:
            stretch = []
        stretch.append(row)
        if len({one.point.arm for one in stretch}) > 1:
            found |= dict.fromkeys(map(id, stretch), found[id(stretch[0])])
    return [np.array([found[id(row)] for row in one.rows]) for one in arms]
