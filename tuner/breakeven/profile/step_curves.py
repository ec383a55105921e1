"""An arm's curve read off the one law of all arms, at any acceptance and lengths.

C1 is the latency of a lone request and C2 what another one adds on average up to the highest load that was measured, which
is what users and the paper mean by them. Between, the curve follows the law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.laws.arrays import FloatArray, Span
from breakeven.laws.law import Law
from breakeven.laws.step_law import CostsOfSteps, Demand, Served, Tier, closed_loop, company
from breakeven.profile.curves import Curve
from breakeven.profile.fits import ArmFit, LawFit, Lengths, PooledFit
from breakeven.profile.operating_conditions import FAR, Conditions, work_of
from breakeven.profile.pooling import drafted_per_step
from breakeven.profile.step_fit import Answers, ArmLoads, StepLaw
from breakeven.profile.step_form import Places
from breakeven.tiers import Schedule

_SHARES = 1.0 - np.linspace(1.0, 0.265, 21) ** 2
_SHARES[0] = 0.002
"""Shares of saturation at which the law is evaluated: between them a straight line over the number in flight errs by less
than a thousandth."""

_BATCH = 1024
"""Requests in a step at most, where nothing says how many."""

_LEAST = 1e-9


class StepConditions(NamedTuple):
    """What an arm is asked to do.

    Attributes:
        demand: what its requests ask for, scalars.
        relative_error_of_e: relative standard error of the tokens per step.
        others_range: measured range of others in flight.
        ceiling_rps: measured saturation; None where none was measured.
        strayed: whether arm or lengths lie outside what was measured.
    """

    demand: Demand
    relative_error_of_e: float
    others_range: Span
    ceiling_rps: float | None = None
    strayed: bool = False


def step_curve(law: StepLaw, arm: Arm, conditions: StepConditions) -> Curve:
    """Curve of an arm under given conditions, measured or not."""
    layout, figures = law.layout, np.array(law.figures)
    costs = layout.costs(figures, arm.family, arm.name)
    together = company(costs, conditions.demand, _BATCH)
    saturation_rps = float(together.saturation_rps)
    rates = _SHARES * saturation_rps
    served = together.at_rate(rates)
    others = served.inflight
    answers = layout.answers(
        figures,
        arm.family,
        arm.name,
        ArmLoads(conditions.demand, np.zeros(rates.size), rates, others),
        _BATCH,
    )
    departed = law.departures(
        arm, Places.of(others, conditions.demand.prompt_tokens, conditions.demand.output_tokens)
    )
    raised = np.exp(departed.mean)
    sources = (answers.of_latency + departed.pulled) @ np.linalg.cholesky(np.array(law.covariance))
    # Decoding takes as many steps as the tokens of a step leave it.
    decoding = 1.0 - answers.ttft_s / answers.latency_s
    loadings = np.hstack([sources, conditions.relative_error_of_e * decoding[:, None]])
    latency_s = served.latency_s * raised
    top = int(np.clip(np.searchsorted(others, max(conditions.others_range[1], others[1])), 1, rates.size - 1))
    doubts = np.hstack([loadings, np.diag(departed.sd)])
    return Curve(
        _chord(others, latency_s, doubts, top),
        law.dof,
        law.noise,
        "step",
        conditions.others_range,
        np.stack([others, latency_s], axis=-1),
        departed.sd,
        saturation_rps if conditions.ceiling_rps is None else min(saturation_rps, conditions.ceiling_rps),
        conditions.strayed,
        _tangent(others, latency_s, doubts),
        ttft=_first(law, served, answers, top),
        tpot=_each(law, conditions.demand, served, doubts, top),
        loadings=loadings,
        closed_knots=np.stack([others, _closed(costs, conditions.demand, others) * raised], axis=-1),
    )


def _closed(costs: CostsOfSteps, demand: Demand, others: FloatArray) -> FloatArray:
    """Latency (s) in a closed loop whose clients meet so many others."""
    tiers = tuple(
        Tier(tier.first, *(np.full(others.size, value) for value in tier[1:])) for tier in demand.tiers
    )
    lengths = (np.full(others.size, value) for value in demand[1:])
    return closed_loop(costs, Demand(tiers, *lengths), others + 1.0).served.latency_s


def _first(law: StepLaw, served: Served, answers: Answers, top: int) -> LawFit:
    """TTFT against the others in flight, as a line."""
    sources = answers.of_ttft @ np.linalg.cholesky(np.array(law.covariance))
    return _line(law, _chord(served.inflight, served.ttft_s, sources, top))


def _each(law: StepLaw, demand: Demand, served: Served, loadings: FloatArray, top: int) -> LawFit | None:
    """Time per output token against the others in flight, as a line; None of answers of one token."""
    tokens = float(demand.output_tokens) - 1.0
    if tokens <= 0:
        return None
    each_s = (served.latency_s - served.ttft_s) / tokens
    return _line(law, _chord(served.inflight, each_s, loadings, top))


def _line(law: StepLaw, found: Law) -> LawFit:
    (v1, v12), (_, v2) = np.asarray(found.covariance).tolist()
    return LawFit(float(found.c1), float(found.c2), ((v1, v12), (v12, v2)), law.dof, law.noise, 0.0)


def _chord(others: FloatArray, latency_s: FloatArray, loadings: FloatArray, top: int) -> Law:
    """C1 and C2 with their covariance: the line from the lone request to the highest load of interest."""
    c2_s = (latency_s[top] - latency_s[0]) / (others[top] - others[0])
    c2_s = max(c2_s, _LEAST)
    c1_s = latency_s[0] - others[0] * c2_s
    of_ends = loadings[[0, top]] * latency_s[[0, top], None]
    of_c2 = (of_ends[1] - of_ends[0]) / (others[top] - others[0])
    both = np.stack([of_ends[0] - others[0] * of_c2, of_c2])
    return Law(float(c1_s), float(c2_s), both @ both.T)


def _tangent(others: FloatArray, latency_s: FloatArray, loadings: FloatArray) -> Law:
    """The line through the last two knots, which the curve goes on with."""
    c2_s = (latency_s[-1] - latency_s[-2]) / (others[-1] - others[-2])
    c1_s = max(float(latency_s[-1] - others[-1] * c2_s), _LEAST)
    variance = float(np.sum(loadings[-1] ** 2))
    return Law(c1_s, float(c2_s), np.diag([variance * c1_s**2, variance * float(c2_s) ** 2]))


def step_conditions(
    arm: Arm, arms: Sequence[ArmFit], pooled: Sequence[PooledFit], wanted: Conditions
) -> StepConditions | None:
    """What the law is asked of an arm; None where lengths or acceptance are not known, or nothing of its drafter.

    Args:
        arm: measured or not.
        arms: fits of the measured arms.
        pooled: what is known of each drafter's acceptance.
        wanted: conditions that differ from those measured.
    """
    own = next((fit for fit in arms if fit.arm == arm), None)
    nearest = own or next((fit for fit in arms if fit.k == 0), None)
    family = next((one for one in pooled if one.method == arm.family), None)
    if nearest is None or not nearest.lengths.output_tokens or (own is None and family is None):
        return None
    measured = nearest.lengths
    lengths = _lengths(measured, wanted)
    tiers = _tiers(arm, own, family, wanted.tokens_per_step)
    if tiers is None or not all(one.measurements for one in arms):
        return None
    loads = [row.others for fit in ([own] if own else arms) for row in fit.measurements]
    work = work_of(lengths, 1.0)
    demand = Demand(
        tiers, np.asarray(work.prompt_tokens), np.asarray(work.output_tokens), np.asarray(work.context_tokens)
    )
    moved = wanted != Conditions()
    ceiling = own.measured_saturation_rps if own and not moved else None
    return StepConditions(
        demand,
        wanted.tokens_per_step_error,
        (min(loads), max(loads)),
        ceiling,
        _strays(measured, lengths) or (own is None and arm.k > max(fit.k for fit in arms)),
    )


def _lengths(measured: Lengths, wanted: Conditions) -> Lengths:
    """The lengths asked for; answers spread as measured, because nothing says how those of now vary."""
    output, square = measured.output_tokens, measured.output_tokens_sq
    if wanted.output_tokens is not None and output:
        square = None if square is None else square * (wanted.output_tokens / output) ** 2
        output = wanted.output_tokens
    return replace(
        measured,
        prompt_tokens=wanted.prompt_tokens or measured.prompt_tokens,
        output_tokens=output,
        output_tokens_sq=square,
    )


def _strays(measured: Lengths, now: Lengths) -> bool:
    """Whether lengths are so far from those measured that a prediction is an extrapolation."""
    pairs = (
        (measured.prompt_tokens, now.prompt_tokens),
        (measured.output_tokens, now.output_tokens),
    )
    return any(a and b and max(a / b, b / a) > FAR for a, b in pairs)


def _tiers(
    arm: Arm, own: ArmFit | None, family: PooledFit | None, tokens_per_step: float | None
) -> tuple[Tier, ...] | None:
    """How an arm drafts; None where its acceptance is not known."""
    if not arm.k:
        return (Tier(1, np.zeros(()), np.ones(())),)
    model = family.acceptance if family else None
    if own is not None and own.schedule is not None:
        if model is None or tokens_per_step is not None:
            return None
        tiers = Schedule.parse(own.schedule, "schedule").tiers
        return tuple(Tier(first, np.asarray(float(k)), np.asarray(model.at(k).value)) for first, k in tiers)
    known = own.tokens_per_step if own is not None else None
    if known is None and model is not None:
        known = model.at(arm.k).value
    if tokens_per_step is not None:
        known = tokens_per_step
    if known is None:
        return None
    if own is not None and own.acceptance is not None:
        drafted = own.acceptance.drafted_per_step
    else:
        drafted = drafted_per_step(family, arm) if family is not None else float(arm.k)
    return (Tier(1, np.asarray(float(drafted)), np.asarray(float(known))),)
