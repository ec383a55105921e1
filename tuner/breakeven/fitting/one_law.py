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

_ROUNDS = 40
_SETTLED = 1e-4
_NOISE_ROUNDS, _NOISE_SETTLED = 3, 0.05


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
    figures, noise = prior.center.copy(), 0.03
    for _ in range(_NOISE_ROUNDS):
        figures, covariance, left, freedom = _solve(layout, prior, sweeps, figures, noise)
        before = noise
        noise = math.sqrt((left + _USUAL_WEIGHT * _USUAL_NOISE**2) / (freedom + _USUAL_WEIGHT))
        settled = abs(noise / before - 1.0) < _NOISE_SETTLED
        if settled:
            break
    return StepLaw(
        families,
        layout.arms,
        tuple(figures.tolist()),
        tuple(map(tuple, covariance.tolist())),
        noise,
        max(int(freedom), 1),
    )


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
    layout: Layout, prior: _Prior, sweeps: Sequence[_Sweep], figures: FloatArray, noise: float
) -> tuple[FloatArray, FloatArray, float, float]:
    """The most probable figures, their covariance, the sum of squared residuals and its degrees of freedom.

    Levenberg and Marquardt's steps with the law's own derivatives, which are exact but for what the first token's share
    moves; the residuals decide, so an inexact derivative costs a step and no accuracy.
    """
    residuals, slopes, measured = _system(layout, prior, sweeps, figures, noise)
    cost, damping = float(residuals @ residuals), 1e-3
    for _ in range(_ROUNDS):
        normal, pull = slopes.T @ slopes, slopes.T @ residuals
        while True:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), pull)
            tried = figures - np.clip(step, -1.0, 1.0)
            next_residuals, next_slopes, _ = _system(layout, prior, sweeps, tried, noise)
            next_cost = float(next_residuals @ next_residuals)
            if next_cost <= cost or damping > 1e6:
                break
            damping *= 10.0
        if not next_cost <= cost:
            break
        gained = cost - next_cost
        figures, residuals, slopes, cost = tried, next_residuals, next_slopes, next_cost
        damping = max(damping / 10.0, 1e-9)
        if gained < _SETTLED * max(cost, 1.0):
            break
    covariance = np.asarray(np.linalg.inv(slopes.T @ slopes), dtype=float)
    of_rows = slopes[:measured]
    used = float(np.trace(covariance @ of_rows.T @ of_rows))
    left = float(np.sum((residuals[:measured] * noise) ** 2))
    return figures, covariance, left, max(measured - used, 0.0)


def _system(
    layout: Layout, prior: _Prior, sweeps: Sequence[_Sweep], figures: FloatArray, noise: float
) -> tuple[FloatArray, FloatArray, int]:
    """Residuals of latencies, of TTFTs and of the prior, in standard deviations, their slopes, and how many latencies."""
    found, first = [], []
    ttft_noise = math.hypot(_TTFT, 2.0 * noise)
    for one in sweeps:
        answers = layout.answers(figures, one.arm.family, one.arm.name, one.loads, one.most)
        found.append((np.log(answers.latency_s / one.latency_s) / noise, answers.of_latency / noise))
        known = ~np.isnan(one.ttft_s)
        if known.any():
            gap = np.log(answers.ttft_s[known] / one.ttft_s[known]) / ttft_noise
            first.append((gap, answers.of_ttft[known] / ttft_noise))
    rows = [*found, *first, (prior.root @ (figures - prior.center), prior.root)]
    measured = sum(residuals.size for residuals, _ in found)
    return np.concatenate([row for row, _ in rows]), np.concatenate([slope for _, slope in rows]), measured


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
