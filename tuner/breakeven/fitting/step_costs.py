"""What an arm's steps cost, from rows at other prompt lengths and contexts than those of its law.

A lone request's time to first token at two prompt lengths gives u, prefill per prompt token; time per output token at
another context gives w, what a token of context adds to a step. Rows at one length determine neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from breakeven.fitting.observations import Observation, observe
from breakeven.laws.conversion import latency_parts
from breakeven.points.point import Point
from breakeven.profile.fits import ArmFit, LawFit, Lengths, StepCost, StepFit
from breakeven.profile.operating_conditions import Anchor, work_of

LENGTHS_APART = 1.5
"""Prompt lengths, or contexts, that tell a slope: the longer at least this multiple of the shorter."""

_FEWEST_OUTPUT = 8.0
"""Output tokens from which time per token says something of decoding."""

_LEAST_NOISE = 0.005
"""Relative standard deviation of one row's mean, at the least: clocks, and prompts that differ."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Seconds per token, with their standard error."""

    value: float
    sd: float

    def cost(self, z: float) -> StepCost:
        """As a cost with bounds; none is below 0."""
        value = max(self.value, 0.0)
        return StepCost(value, self.sd, (max(value - z * self.sd, 0.0), value + z * self.sd))


def fit_steps(fit: ArmFit, points: Sequence[Point], ramp_share: float, confidence: float) -> StepFit | None:
    """The costs of an arm's steps; None where nothing was measured at other lengths, or it has no law.

    Args:
        fit: the arm's own fit.
        points: all rows of the arm, those at other lengths included.
        ramp_share: rho of short closed-loop runs.
        confidence: of the bounds.
    """
    if fit.fit is None or fit.arm.scheduled or not fit.lengths.prompt_tokens or fit.tokens_per_step is None:
        return None
    rows, _ = observe(points, ramp_share)
    anchor = Anchor.of(fit)
    prefill = prefill_token(rows)
    if prefill is None:
        return None
    kv = _kv_token(rows, fit.fit.noise, anchor, prefill)
    # Their errors come from what rows say of themselves, not from few residuals.
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    costs = anchor.costs(prefill.value, kv.value if kv else None)
    lone_sd, other_sd = _step_errors(fit.fit, fit.tpot, anchor, prefill)
    return StepFit(
        lone_step=Slope(costs.lone_step_s, lone_sd).cost(z),
        other_step=Slope(costs.other_step_s, other_sd).cost(z),
        prefill_token=prefill.cost(z),
        kv_token=None if kv is None else kv.cost(z),
    )


def prefill_token(rows: Sequence[Observation]) -> Slope | None:
    """Slope of a lone request's TTFT in its prompt length; None from one length."""
    lone = [
        (one.point.prompt_tokens, ttft_s, max(one.point.relative_error or 0.0, _LEAST_NOISE) * ttft_s)
        for one in rows
        if one.point.concurrency == 1 and one.point.prompt_tokens and (ttft_s := _first_token_s(one.point))
    ]
    if not lone:
        return None
    prompt, first_s, sd_s = (np.array(column) for column in zip(*lone, strict=True))
    if prompt.max() < LENGTHS_APART * prompt.min():
        return None
    weight = 1.0 / sd_s**2
    middle = np.average(prompt, weights=weight)
    spread = float((weight * (prompt - middle) ** 2).sum())
    return Slope(float((weight * (prompt - middle) * first_s).sum()) / spread, spread**-0.5)


def _first_token_s(point: Point) -> float | None:
    """TTFT of a row; the latency where one token was all."""
    if point.ttft_mean_s is None and point.output_tokens == 1.0:
        return point.mean_latency_s
    return point.ttft_mean_s


def _kv_token(rows: Sequence[Observation], noise: float, anchor: Anchor, prefill: Slope) -> Slope | None:
    """Slope of a step's duration in the context of its requests; None from one context."""
    costs = anchor.costs(prefill.value, 0.0)
    slopes: list[float] = []
    weights: list[float] = []
    for one in rows:
        point = one.point
        e = point.tokens_per_step if point.k else 1.0
        if e is None or not point.prompt_tokens or (point.output_tokens or 0.0) < _FEWEST_OUTPUT:
            continue
        work = work_of(Lengths(point.prompt_tokens, point.output_tokens, point.output_tokens_sq), e)
        ratio = work.context_tokens / costs.context_tokens
        if max(ratio, 1.0 / ratio) < LENGTHS_APART:
            continue
        parts = latency_parts(costs, work)
        # Clients of a closed loop take turns: each of the others is served exactly once while one is.
        company_s = parts.each_s if point.closed else parts.company_s
        # Every request of a step attends to a context that is longer by so much.
        more = (work.context_tokens - costs.context_tokens) * work.steps * (1.0 + one.others)
        # An error of u moves what prompts cost here, and the s2 that was found with it there.
        there = anchor.work.prompt_tokens * work.steps / max(anchor.work.steps, 1.0)
        of_prefill = prefill.sd * abs(point.prompt_tokens + one.others * (point.prompt_tokens - there))
        sd_s = math.hypot(_noise(point, noise) * one.latency_s, of_prefill)
        slopes.append((one.latency_s - parts.alone_s - one.others * company_s) / more)
        weights.append((more / sd_s) ** 2)
    if not slopes:
        return None
    return Slope(float(np.average(slopes, weights=weights)), float(sum(weights)) ** -0.5)


def _noise(point: Point, noise: float) -> float:
    """Relative standard deviation of a row's mean.

    A lone row says how precise it is; in company the law's own scatter counts too.
    """
    if point.concurrency == 1:
        return max(point.relative_error or 0.0, _LEAST_NOISE)
    return max(noise, point.relative_error or 0.0, _LEAST_NOISE)


def _step_errors(law: LawFit, tpot: LawFit | None, anchor: Anchor, prefill: Slope) -> tuple[float, float]:
    """Standard errors of s1 and s2: of the law that they come from, and of u."""
    steps = max(anchor.work.steps, 1.0)
    source, scale = (law, 1.0 / steps) if tpot is None else (tpot, anchor.work.tokens_per_step)
    (v1, _), (_, v2) = source.covariance
    of_prefill = prefill.sd * anchor.work.prompt_tokens / steps
    return scale * math.sqrt(max(v1, 0.0)), math.hypot(scale * math.sqrt(max(v2, 0.0)), of_prefill)
