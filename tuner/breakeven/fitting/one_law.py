"""Fit the one law of all arms to their mean latencies, and to the means of TTFT where those were measured.

A few loads of three arms do not tell ten costs apart. Each cost therefore has a prior in the unbounded form that is fitted,
relative to the lone step that was measured, and what a sweep cannot tell stays at it, with its width in the bounds.
Departures and the levels of arms are pulled towards nothing. The result is the most probable law with the covariance around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.fitting.observations import Observation
from breakeven.laws.acceptance_numbers import AcceptanceModel
from breakeven.laws.arrays import FloatArray
from breakeven.laws.step_law import Demand, Tier
from breakeven.methods import LOOKUP_METHODS
from breakeven.profile.step_fit import KNOTS, LEVEL, ArmLoads, Layout, StepLaw
from breakeven.profile.step_form import ArmGaps, FormError, Places
from breakeven.tiers import Schedule

_POSITIONS = 250.0
"""Positions whose computing takes as long as reading the weights once: 200 to 300 on the GPUs that serve language models."""

_CONTEXT = 1e5
"""Tokens of context whose reading takes as long as that of the weights: 1e5 for 8 billion parameters with grouped heads."""

_DEPARTURE = 0.03
_DEPARTURE_REACH = 1.2
"""Standard deviation of a departure (ln), and over how many doublings of the positions neighbours depart together."""

_TTFT = 0.05
"""Standard deviation of a mean TTFT around the law (ln): clients, proxies and chunks differ in what they count."""

_USUAL_NOISE, _USUAL_WEIGHT = 0.02, 3.0
"""Standard deviation of one mean latency (ln) before any row, and how many degrees of freedom that is worth: what follows
nine rows with eight figures leaves no noise to see."""

_USUAL_FORM, _FORM_SPREAD = 0.012, 0.9
"""Middle of the size of departures (ln) before any row, and the spread of its logarithm."""

_REACHES = (0.7, 1.4, 2.8)
_FORMS = (0.01, 0.015, 0.022, 0.033, 0.05, 0.075, 0.11, 0.16)
_SCATTERS = (0.002, 0.004, 0.007, 0.011, 0.016, 0.022, 0.03, 0.04, 0.055, 0.075, 0.1, 0.14, 0.2, 0.3)
"""What is tried for the reach and the size of departures, and for the noise of a row."""

_ROUNDS = 40
_SETTLED = 1e-4
_SCATTER_ROUNDS, _SCATTER_SETTLED = 3, 0.05


class ArmRows(NamedTuple):
    """One arm's usable rows at all lengths.

    Attributes:
        arm: the arm.
        rows: its observations, at least one.
    """

    arm: Arm
    rows: Sequence[Observation]


class _Sweep(NamedTuple):
    """An arm's rows as the law takes them."""

    arm: Arm
    loads: ArmLoads
    latency_s: FloatArray
    ttft_s: FloatArray
    most: int
    places: Places


class _Scatter(NamedTuple):
    """How rows lie around the law: their noise, and how the engine departs from the law."""

    noise: float
    form: FormError

    def roots(self, sweeps: Sequence[_Sweep]) -> list[FloatArray]:
        """Cholesky factor of the covariance of each arm's rows."""
        return [np.linalg.cholesky(self._of(one)) for one in sweeps]

    def _of(self, sweep: _Sweep) -> FloatArray:
        rows = self.noise**2 * np.eye(sweep.latency_s.size)
        return np.asarray(self.form.covariance(sweep.places, sweep.places) + rows)


def fit_step_law(arms: Sequence[ArmRows], acceptance: Mapping[str, AcceptanceModel]) -> StepLaw | None:
    """The law; None where no row says how long its answers are.

    Args:
        arms: usable rows of each arm.
        acceptance: by family, for rows that do not say how many tokens a step yielded.
    """
    sweeps = [found for one in arms if (found := _sweep(one, acceptance)) is not None]
    if not sweeps:
        return None
    families = tuple(dict.fromkeys(one.arm.family for one in sweeps if one.arm.k))
    layout = Layout(families, tuple(one.arm.name for one in sweeps))
    prior = _Prior.of(layout, sweeps)
    scatter = _Scatter(0.03, FormError(_USUAL_FORM, _REACHES[1]))
    solved = _solve(layout, prior, sweeps, prior.center.copy(), scatter)
    for _ in range(_SCATTER_ROUNDS):
        before, scatter = scatter, _likeliest(prior, sweeps, solved)
        solved = _solve(layout, prior, sweeps, solved.figures, scatter)
        if abs(scatter.noise / before.noise - 1.0) < _SCATTER_SETTLED:
            break
    return StepLaw(
        families,
        layout.arms,
        tuple(solved.figures.tolist()),
        tuple(map(tuple, solved.covariance.tolist())),
        scatter.noise,
        max(int(solved.freedom), 1),
        scatter.form,
        tuple(
            ArmGaps(
                tuple(map(tuple, np.array(one.places).tolist())),
                tuple((-gaps).tolist()),
                tuple(map(tuple, slopes.tolist())),
            )
            for one, (gaps, slopes) in zip(sweeps, solved.rows, strict=True)
        ),
    )


class _Solved(NamedTuple):
    """The most probable law.

    Attributes:
        figures, covariance: of it.
        freedom: degrees of freedom that the rows leave.
        rows: of each arm ln(law/measured) and its slopes in the figures.
    """

    figures: FloatArray
    covariance: FloatArray
    freedom: float
    rows: list[tuple[FloatArray, FloatArray]]


def _likeliest(prior: _Prior, sweeps: Sequence[_Sweep], solved: _Solved) -> _Scatter:
    """The scatter under which the rows are most probable, whatever the figures are.

    The figures are integrated out around those that were found, so what they follow is not taken for a small noise.
    """
    slopes = np.concatenate([slope for _, slope in solved.rows])
    gaps = slopes @ (solved.figures - prior.center) - np.concatenate([gap for gap, _ in solved.rows])
    wide = slopes @ np.linalg.solve(prior.root.T @ prior.root, slopes.T)
    ends = np.cumsum([0, *(gap.size for gap, _ in solved.rows)])
    tried, likely = [], []
    for reach in _REACHES:
        alike = np.zeros_like(wide)
        for one, first, last in zip(sweeps, ends, ends[1:], strict=False):
            alike[first:last, first:last] = FormError(1.0, reach).covariance(one.places, one.places)
        for sd in _FORMS:
            for noise in _SCATTERS:
                root = np.linalg.cholesky(wide + sd**2 * alike + noise**2 * np.eye(gaps.size))
                standard = np.linalg.solve(root, gaps)
                tried.append((math.log(noise), math.log(sd), math.log(reach)))
                likely.append(
                    -0.5 * float(standard @ standard)
                    - float(np.sum(np.log(np.diag(root))))
                    - 0.5 * (math.log(sd / _USUAL_FORM) / _FORM_SPREAD) ** 2
                    - 0.5 * _USUAL_WEIGHT * ((_USUAL_NOISE / noise) ** 2 + 2.0 * math.log(noise))
                )
    weights = np.exp(np.array(likely) - max(likely))
    noise, sd, reach = np.exp(weights @ np.array(tried) / weights.sum()).tolist()
    return _Scatter(noise, FormError(sd, reach))


class _Prior(NamedTuple):
    """What is believed of each figure before any row, and what each deviation of them costs.

    Attributes:
        center: shape (figures,).
        root: R with R'R the inverse covariance.
    """

    center: FloatArray
    root: FloatArray

    @classmethod
    def of(cls, layout: Layout, sweeps: Sequence[_Sweep]) -> _Prior:
        """The priors of an engine whose lone step was measured."""
        lone_s = _lone_step_s(sweeps)
        position_s = lone_s / _POSITIONS
        # Center and standard deviation of each, in the form that is fitted.
        center = [
            *(math.log(0.85 * lone_s), math.log(position_s), 0.0, -3.0, math.log(12.0)),
            *(math.log(lone_s / _CONTEXT), 0.0, math.log(0.3 * lone_s)),
        ]
        width = [1.0, 1.5, 0.7, 1.2, 1.0, 1.5, 0.6, 1.5]
        for family in layout.families:
            lookup = any(one.arm.method in LOOKUP_METHODS for one in sweeps if one.arm.family == family)
            shares = (0.02, 0.003) if lookup else (0.06, 0.05)
            center += [math.log(share * lone_s) for share in shares] + [math.log(0.1 * position_s)]
            width += [1.5, 1.2, 1.5]
        arms = len(layout.arms)
        inverse = np.zeros((layout.size, layout.size))
        spread = np.array([*width, *[LEVEL] * arms])
        inverse[: spread.size, : spread.size] = np.diag(spread**-2)
        apart = np.subtract.outer(np.arange(KNOTS), np.arange(KNOTS)) / _DEPARTURE_REACH
        together = _DEPARTURE**2 * np.exp(-0.5 * apart**2) + 1e-8 * np.eye(KNOTS)
        inverse[spread.size :, spread.size :] = np.linalg.inv(together)
        return cls(
            np.array([*center, *[0.0] * (arms + KNOTS)]),
            np.asarray(np.linalg.cholesky(inverse).T, dtype=float),
        )


def _lone_step_s(sweeps: Sequence[_Sweep]) -> float:
    """Duration of a step at the lowest load, of the arm without speculation where there is one."""
    plain = [one for one in sweeps if not one.arm.k] or list(sweeps)
    lowest = min(plain, key=lambda one: float(one.loads.inflight.min()))
    at = int(np.argmin(lowest.loads.inflight))
    tier, demand = lowest.loads.demand.tiers[0], lowest.loads.demand
    steps = 1.0 + (demand.output_tokens[at] - 1.0) / tier.tokens_per_step[at]
    return float(lowest.latency_s[at] / steps)


def _solve(
    layout: Layout, prior: _Prior, sweeps: Sequence[_Sweep], figures: FloatArray, scatter: _Scatter
) -> _Solved:
    """The most probable figures, their covariance and the rows beside them.

    Levenberg and Marquardt's steps with the law's own derivatives, which are exact but for what the first token's share
    moves; the residuals decide, so an inexact derivative costs a step and no accuracy.
    """
    roots = scatter.roots(sweeps)
    residuals, slopes, rows = _system(layout, prior, sweeps, figures, scatter.noise, roots)
    cost, damping = float(residuals @ residuals), 1e-3
    for _ in range(_ROUNDS):
        normal, pull = slopes.T @ slopes, slopes.T @ residuals
        while True:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), pull)
            tried = figures - np.clip(step, -1.0, 1.0)
            found = _system(layout, prior, sweeps, tried, scatter.noise, roots)
            next_cost = float(found[0] @ found[0])
            if next_cost <= cost or damping > 1e6:
                break
            damping *= 10.0
        if not next_cost <= cost:
            break
        gained = cost - next_cost
        figures, (residuals, slopes, rows), cost = tried, found, next_cost
        damping = max(damping / 10.0, 1e-9)
        if gained < _SETTLED * max(cost, 1.0):
            break
    covariance = np.asarray(np.linalg.inv(slopes.T @ slopes), dtype=float)
    of_rows = slopes[: sum(gaps.size for gaps, _ in rows)]
    used = float(np.trace(covariance @ of_rows.T @ of_rows))
    return _Solved(figures, covariance, max(of_rows.shape[0] - used, 0.0), rows)


def _system(
    layout: Layout,
    prior: _Prior,
    sweeps: Sequence[_Sweep],
    figures: FloatArray,
    noise: float,
    roots: Sequence[FloatArray],
) -> tuple[FloatArray, FloatArray, list[tuple[FloatArray, FloatArray]]]:
    """Residuals of latencies, of TTFTs and of the prior, in standard deviations, their slopes, and the latencies' own rows."""
    rows, found, first = [], [], []
    ttft_noise = math.hypot(_TTFT, 2.0 * noise)
    for one, root in zip(sweeps, roots, strict=True):
        answers = layout.answers(figures, one.arm.family, one.arm.name, one.loads, one.most)
        gaps = np.log(answers.latency_s / one.latency_s)
        rows.append((gaps, answers.of_latency))
        found.append((np.linalg.solve(root, gaps), np.linalg.solve(root, answers.of_latency)))
        known = ~np.isnan(one.ttft_s)
        if known.any():
            gap = np.log(answers.ttft_s[known] / one.ttft_s[known]) / ttft_noise
            first.append((gap, answers.of_ttft[known] / ttft_noise))
    all_rows = [*found, *first, (prior.root @ (figures - prior.center), prior.root)]
    return (
        np.concatenate([row for row, _ in all_rows]),
        np.concatenate([slope for _, slope in all_rows]),
        rows,
    )


def _sweep(one: ArmRows, acceptance: Mapping[str, AcceptanceModel]) -> _Sweep | None:
    """Return None where no row says how long its answers are, or how many tokens a step yielded."""
    rows = [row for row in one.rows if row.point.output_tokens]
    model = acceptance.get(one.arm.family)
    if one.arm.k and model is None:
        rows = [row for row in rows if row.point.tokens_per_step]
    if not rows:
        return None
    points = [row.point for row in rows]
    output = np.array([point.output_tokens for point in points], dtype=float)
    squares = np.array([point.output_tokens_sq or (point.output_tokens or 1.0) ** 2 for point in points])
    prompt = np.array([point.prompt_tokens or 0.0 for point in points], dtype=float)
    inflight = np.array([row.inflight for row in rows])
    demand = Demand(
        _tiers(one.arm, rows, model), prompt, output, prompt + 0.5 * np.maximum(squares / output, output)
    )
    return _Sweep(
        one.arm,
        ArmLoads(
            demand,
            np.array([point.closed for point in points]),
            np.array([row.rps for row in rows]),
            inflight,
        ),
        np.array([row.latency_s for row in rows]),
        np.array([math.nan if point.ttft_mean_s is None else point.ttft_mean_s for point in points]),
        int(min(max(64.0, 3.0 * float(inflight.max()) + 60.0), 2048.0)),
        Places.of(np.array([row.others for row in rows]), prompt, output),
    )


def _tiers(arm: Arm, rows: Sequence[Observation], model: AcceptanceModel | None) -> tuple[Tier, ...]:
    schedule = rows[0].point.schedule
    if schedule is None:
        yielded = [row.point.tokens_per_step or (model.at(arm.k).value if model else 1.0) for row in rows]
        drafted = [
            float(arm.k) if row.point.drafted_per_step is None else row.point.drafted_per_step for row in rows
        ]
        return (Tier(1, np.array(drafted), np.array(yielded if arm.k else [1.0] * len(rows))),)
    if model is None:
        return ()
    ones = np.ones(len(rows))
    return tuple(
        Tier(first, k * ones, model.at(k).value * ones)
        for first, k in Schedule.parse(schedule, "schedule").tiers
    )
