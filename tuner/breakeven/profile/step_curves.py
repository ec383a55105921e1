"""An arm's curve read off the law of steps, at any acceptance and lengths.

TTFT and time per token keep the measured ratio of the arm's rows to the law, because clients and proxies add to both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import NotIdentifiedError
from breakeven.laws.acceptance_numbers import AcceptanceModel
from breakeven.laws.arrays import FloatArray, Span
from breakeven.laws.step_law import Demand, Tier, varied
from breakeven.laws.step_queue import Together, closed_loop
from breakeven.profile.curves import Curve, rows_between
from breakeven.profile.fits import NOMINAL_OUTPUT_TOKENS, ArmFit, Lengths, LineFit, MeasuredDrafter
from breakeven.profile.operating_conditions import SAME, Conditions, compared_lengths, strays
from breakeven.profile.step_fit import ENGINE, StepLaw, Verifying, nominal_yield
from breakeven.profile.step_form import Whereabouts
from breakeven.reasons import Reason
from breakeven.tiers import Schedule

_SHARES = 1.0 - np.linspace(1.0, 0.265, 21) ** 2
_SHARES[0] = 0.002
"""Shares of saturation at which the law is evaluated: between them a straight line over the number in flight errs by less
than a thousandth."""

_BATCH = 1024
"""Largest number of requests in a step, unless the engine's own limit is known to be smaller."""

_CROWDS = 8
"""Numbers of clients at which a closed loop beyond the open one's last knot is evaluated."""

_FEW, _NEVER = 256, 1e-18
"""Requests of which more are never together at most rates, and the share of a TTFT that has no effect."""

_LEAST_S = 1e-9

_FIRST_TOKEN = 0.05
"""Share of a request until its first token, give or take as much, where it was not measured: answers do not change it."""

_ROOM = 1.001
"""Factor of saturation over a rate that was carried in a steady state: at saturation no state is steady."""


class _AskedArm(NamedTuple):
    """Work of an arm under the conditions asked for.

    Attributes:
        demand: of its requests, scalars.
        measured: demand when the arm was measured; None if that is the same.
        strayed: whether arm or lengths lie outside what was measured.
        as_measured: whether its rows have these lengths and this acceptance, so that the law converts next to nothing.
        apart: lengths at which the arm was measured, if other arms were measured at others and no row of it shows what lengths change.
    """

    demand: Demand
    measured: Demand | None
    others_range: Span
    strayed: bool
    as_measured: bool
    apart: Conditions | None


def step_curve(
    law: StepLaw, arm: Arm, arms: Sequence[ArmFit], drafters: Sequence[MeasuredDrafter], wanted: Conditions
) -> Curve:
    """Curve of an arm under given conditions, measured or not."""
    own = next((fit for fit in arms if fit.arm == arm), None)
    asked = _asked(law, arm, own, arms, drafters, wanted)
    converted = _by_law(law, arm, arms, asked, wanted.tokens_per_step_error)
    if asked.apart is None or asked.measured is None:
        return converted
    measured = step_curve(law, arm, arms, drafters, asked.apart)
    return _between(converted, measured, _steps(asked.demand) / _steps(asked.measured))


def _by_law(law: StepLaw, arm: Arm, arms: Sequence[ArmFit], asked: _AskedArm, error_of_e: float) -> Curve:
    """The curve as the law of steps converts it; `error_of_e`: relative standard error of E."""
    own = next((fit for fit in arms if fit.arm == arm), None)
    figures, demand = np.array(law.figures), asked.demand
    costs = law.costs_of(figures, arm.family, arm.name)
    same, most = _repeated(demand, 1), min(law.max_num_seqs or _BATCH, _BATCH)
    together = Together.of(costs, same, most)
    lasting_rps = together.saturation_rps.item()
    rates = _SHARES * lasting_rps
    few = together.up_to(_FEW).along(rates)
    answers = law.answered(figures, arm.family, arm.name, same, few)
    if (more := few.of_first[:, -1] > _NEVER * answers.ttft_s).any():
        of_more = law.answered(figures, arm.family, arm.name, same, together.along(rates[more]))
        for known, exact in zip(answers, of_more, strict=True):
            known[more] = exact
    others = rates * answers.latency_s
    in_step = np.minimum(others, most - 1.0)
    departed = law.departures(arm, Whereabouts.of(arm, in_step, demand.prompt_tokens, demand.output_tokens))
    raised = np.exp(departed.mean)
    slopes, half = answers.of_latency + departed.pulled, np.linalg.cholesky(law.covariance)
    of_closed = slopes.copy()
    of_closed[:, ENGINE.index("beside_s")] *= demand.varied
    # An error of E moves the number of decoding steps, and so the part of latency after the first token.
    of_e = error_of_e * (1.0 - answers.ttft_s / answers.latency_s)

    def loadings(slopes: FloatArray) -> FloatArray:
        return np.hstack([slopes @ half, of_e[:, None], np.full((others.size, 1), law.minutes_sd)])

    # Others in flight never make a request faster, although noise may make it look so.
    latency_s = np.maximum.accumulate(answers.latency_s * raised)
    # Lengths of two runs are never quite the same: the law converts rates that rows carried.
    moved = 1.0
    if asked.measured is not None:
        moved = lasting_rps / Together.of(costs, asked.measured, most).saturation_rps.item()
    carried = [moved * row.inflight / row.latency_s for row in own.measurements] if own else []
    most_rps = _ROOM * max([float(np.max(others / latency_s)), *carried])
    saturation_rps = max(lasting_rps / float(raised[-1]), most_rps)
    measured_rps = own.measured_saturation_rps if own is not None else None
    ceiling_rps = None if measured_rps is None else moved * measured_rps
    among, clients_s = _in_loop(law, arm, arms, demand, most, np.stack([others, raised]))
    curve = Curve(
        np.stack([others, latency_s], axis=-1),
        saturation_rps if ceiling_rps is None else min(max(ceiling_rps, *carried, 0.0), saturation_rps),
        law.dof,
        law.noise,
        "others" if own is None else "arm",
        asked.others_range,
        loadings(slopes),
        departed.sd,
        ceiling_rps,
        asked.strayed,
        closed_knots=np.stack([among, np.maximum.accumulate(clients_s)], axis=-1),
        closed_loadings=rows_between(others, loadings(of_closed), among),
        start_sd=law.starts_of(arm),
        beside=law.beside(arm) if asked.as_measured else (),
    )
    beside = [own] if own is not None else _neighbours(arm, arms)
    # A departure is the engine's: it slows the first token by the same factor as the whole answer.
    ttft_s = np.maximum.accumulate(answers.ttft_s * raised)
    return _with_parts(curve, arm, beside, np.stack([others, ttft_s]), float(demand.output_tokens) - 1.0)


def _in_loop(
    law: StepLaw, arm: Arm, arms: Sequence[ArmFit], demand: Demand, most: int, raised: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Others and latencies (s) of closed loops; `raised`: others of an open loop's knots, and the factors there, shape (2, K).

    More clients than an open loop carries in a steady state follow, up to as many as were measured: among them throughput may fall.
    Of more clients than a step takes (`most`) the rest waits, while as many are answered a second (Little).
    """
    others, factors = raised
    crowd = max((row.others for fit in arms for row in fit.measurements), default=0.0)
    beyond = np.geomspace(others[-1], crowd, _CROWDS + 1)[1:] if crowd > others[-1] else np.empty(0)
    among = np.concatenate([others, beyond])
    if most - 1.0 < among[-1]:
        among = np.union1d(among, most - 1.0)
    far = np.minimum(among[among > others[-1]], most - 1.0)
    departed = law.departures(arm, Whereabouts.of(arm, far, demand.prompt_tokens, demand.output_tokens))
    moved = np.concatenate([np.interp(among[among <= others[-1]], others, factors), np.exp(departed.mean)])
    # Clients of which nothing is known do not fall into step.
    spread = _repeated(demand, among.size)._replace(varied=np.ones(among.size))
    clients = among + 1.0
    served = closed_loop(law.costs(arm), spread, np.minimum(clients, most)).served
    return among, served.latency_s * np.maximum(clients / most, 1.0) * moved


def _steps(demand: Demand) -> float:
    """Steps of a request after its first token."""
    return float((demand.output_tokens - 1.0) / demand.tiers[0].tokens_per_step)


def _between(curve: Curve, measured: Curve, steps: float) -> Curve:
    """The curve halfway between two conversions of an arm to other lengths, with half of their distance as its own doubt.

    If each arm was measured at lengths of its own, no row shows which part of a request grows with its answer. The law then
    explains a difference of arms by their lengths. Where each step takes as long as it did, decoding grows by the steps (after
    the first token, over those when the arm was measured).
    """
    others = curve.knots[:, 0]
    before_s, after_s = (
        0.0 if one.ttft is None else one.ttft.c1_s + others * one.ttft.c2_s for one in (measured, curve)
    )
    decoding_s = np.maximum(measured.met_latencies(others) - before_s, _LEAST_S)
    gap = np.log((after_s + steps * decoding_s) / curve.knots[:, 1])
    half = np.exp(0.5 * gap)
    own_sds = np.hypot(curve.own_sds, 0.5 * np.abs(gap))
    if measured.ttft is None:
        own_sds = np.hypot(own_sds, _FIRST_TOKEN * abs(math.log(steps)))
    knots = np.stack([others, np.maximum.accumulate(curve.knots[:, 1] * half)], axis=-1)
    closed = curve.closed_knots
    if closed is not None:
        raised = closed[:, 1] * np.interp(closed[:, 0], others, half)
        closed = np.stack([closed[:, 0], np.maximum.accumulate(raised)], axis=-1)
    tpot = curve.tpot
    if tpot is not None and measured.tpot is not None:
        c1_s, c2_s = np.sqrt([tpot.c1_s * measured.tpot.c1_s, tpot.c2_s * measured.tpot.c2_s]).tolist()
        tpot = replace(tpot, c1_s=c1_s, c2_s=c2_s).raised(0.5 * float(np.max(np.abs(gap))))
    return replace(
        curve,
        knots=knots,
        closed_knots=closed,
        tpot=tpot,
        own_sds=own_sds,
        saturation_rps=max(
            curve.saturation_rps / float(half[-1]), _ROOM * float(np.max(others / knots[:, 1]))
        ),
        ceiling_rps=None if curve.ceiling_rps is None else curve.ceiling_rps / float(half[-1]),
    )


def _repeated(demand: Demand, loads: int) -> Demand:
    tiers = tuple(tier.each(lambda value: np.full(loads, value)) for tier in demand.tiers)
    return Demand(tiers, *(np.full(loads, value) for value in demand[1:]))


def _neighbours(arm: Arm, arms: Sequence[ArmFit]) -> list[ArmFit]:
    """Measured arms around one that was not measured; none if TTFT of its drafter was not measured."""
    found = [
        fit
        for fit in arms
        if fit.ttft is not None and not fit.arm.scheduled and (fit.k == 0 or fit.arm.family == arm.family)
    ]
    return sorted(found, key=lambda fit: fit.k) if any(fit.k for fit in found) else []


def _with_parts(
    curve: Curve, arm: Arm, beside: Sequence[ArmFit], ttft: FloatArray, later_tokens: float
) -> Curve:
    """The curve with the lines of TTFT and of time per output token, as far as they were measured.

    `beside` is the arm's own fit, or its neighbours ascending in k; `ttft` has (others, TTFT by the law) at the knots, shape (2, K).
    """
    ends = curve.line_ends
    latency_s = curve.met_latencies(ends)
    by_law_s = np.interp(ends, *ttft)
    first_s = by_law_s * _beside(arm, beside, "ttft")
    own = beside[0] if len(beside) == 1 and beside[0].arm == arm else None
    found = curve
    if any(fit.ttft is not None for fit in beside):
        found = replace(found, ttft=_line(ends, np.minimum(first_s, latency_s), own.ttft if own else None))
    if later_tokens > 0 and own is not None and own.tpot is not None:
        each_s = (latency_s - by_law_s) / later_tokens * _beside(arm, beside, "tpot")
        found = replace(found, tpot=_line(ends, each_s, own.tpot))
    elif later_tokens > 0 and own is None and found.ttft is not None:
        found = replace(found, tpot=_line(ends, np.maximum(latency_s - first_s, 0.0) / later_tokens, None))
    return found


def _beside(arm: Arm, fits: Sequence[ArmFit], part: str) -> FloatArray:
    """Measured over the law's part of a lone request and at the highest load, shape (2,); on a line between neighbours in k."""
    known = [(fit.k, fit.over_law[part]) for fit in fits if part in fit.over_law]
    if not known:
        return np.ones(2)
    lengths, ratios = zip(*known, strict=True)
    return np.exp([np.interp(arm.k, lengths, column) for column in np.log(np.transpose(ratios))])


def _line(ends: FloatArray, at_ends_s: FloatArray, measured: LineFit | None) -> LineFit:
    """A line through two loads, as uncertain as the measured one; without bounds where there is none."""
    c2_s = max(float((at_ends_s[1] - at_ends_s[0]) / ends[1]), 0.0)
    c1_s = max(float(at_ends_s[0]), _LEAST_S)
    if measured is None:
        return LineFit(c1_s, c2_s, ((0.0, 0.0), (0.0, 0.0)), 0)
    factors = np.array([c1_s / measured.c1_s, c2_s / measured.c2_s if measured.c2_s > 0 else 1.0])
    (v1, v12), (_, v2) = (np.array(measured.covariance) * np.outer(factors, factors)).tolist()
    return replace(measured, c1_s=c1_s, c2_s=c2_s, covariance=((v1, v12), (v12, v2)))


def _asked(
    law: StepLaw,
    arm: Arm,
    own: ArmFit | None,
    arms: Sequence[ArmFit],
    drafters: Sequence[MeasuredDrafter],
    wanted: Conditions,
) -> _AskedArm:
    wanted.check(arm)
    family = next((one for one in drafters if one.method == arm.family), None)
    if own is not None:
        if not own.measurements:
            raise NotIdentifiedError(f"{arm}: no usable point ({Reason.TOO_FEW_POINTS})")
        wanted.check_measured(own)
    compared = compared_lengths(arms)
    measured = own.lengths.or_those_of([fit.lengths for fit in arms]) if own is not None else compared
    now = wanted.lengths(compared)
    # The law uses rows at other lengths too: near the lengths asked for, they show how far it was measured.
    rows = [row for fit in ([own] if own else arms) for row in (*fit.measurements, *fit.other_lengths)]
    loads = [one.others for one in rows if not strays(Lengths(one.prompt_tokens, one.output_tokens), now)]
    tiers = _tiers(arm, own, family, wanted.tokens_per_step)

    def demanded(tiers: tuple[Tier, ...] | Verifying, lengths: Lengths) -> Demand:
        if isinstance(tiers, Verifying):
            tiers = tiers.tiers(law.costs(arm), lengths.context_tokens, _BATCH)
        return _demand(tiers, lengths)

    demand = demanded(tiers, now)
    moved = now != measured or (wanted.tokens_per_step is not None and arm.k > 0)
    mixed = any(fit.measurements and strays(fit.lengths, compared, SAME) for fit in arms)
    return _AskedArm(
        demand,
        demanded(_tiers(arm, own, family, None), measured) if moved and own is not None else None,
        (min(loads), max(loads)),
        strays(measured, now) or (own is None and (family is None or arm.k > max(family.draft_lengths))),
        own is not None
        and not strays(measured, now, SAME)
        and _near(wanted.tokens_per_step, own.tokens_per_step),
        Conditions(prompt_tokens=own.lengths.prompt_tokens, output_tokens=own.lengths.output_tokens)
        if own is not None and not own.other_lengths and mixed and strays(own.lengths, now, SAME)
        else None,
    )


def _near(asked: float | None, measured: float | None) -> bool:
    return asked is None or (measured is not None and max(asked / measured, measured / asked) < SAME)


def _demand(tiers: tuple[Tier, ...], lengths: Lengths) -> Demand:
    # An answer of one token would leave nothing to decode, so that no rate would saturate.
    output = max(lengths.output_tokens or NOMINAL_OUTPUT_TOKENS, 1.001)
    prompt = lengths.prompt_tokens or 1.0
    apart = varied(np.asarray(output), np.asarray(lengths.output_tokens_sq or 0.0))
    return Demand(tiers, np.asarray(prompt), np.asarray(output), np.asarray(lengths.context_tokens), apart)


def _tiers(
    arm: Arm, own: ArmFit | None, family: MeasuredDrafter | None, tokens_per_step: float | None
) -> tuple[Tier, ...] | Verifying:
    """Tiers of an arm's drafting; the acceptance of a draft length that was not measured must be known."""
    if not arm.k:
        return (Tier(1, np.zeros(()), np.ones(())),)
    model = family.acceptance if family else None
    if own is not None and own.arm.adaptive:
        return Verifying.of(arm, model, ((row.inflight, row.tokens_per_step) for row in own.measurements))
    if own is not None and own.schedule is not None:
        tiers = Schedule.parse(own.schedule, "schedule").tiers
        return tuple(Tier(first, np.asarray(float(k)), np.asarray(_yield(model, k))) for first, k in tiers)
    known = tokens_per_step
    if known is None and own is not None:
        known = own.tokens_per_step or _yield(model, arm.k)
    if known is None and model is not None:
        known = model.at(arm.k).value
    if known is None:
        raise NotIdentifiedError(
            f"{arm}: no acceptance was measured for {arm.family}; give --tokens-per-step or --alpha"
        )
    if own is not None and own.acceptance is not None:
        drafted = own.acceptance.drafted_per_step
    else:
        drafted = family.drafts(arm.k) if family is not None else float(arm.k)
    return (Tier(1, np.asarray(float(drafted)), np.asarray(float(known))),)


def _yield(model: AcceptanceModel | None, k: int) -> float:
    return model.at(k).value if model is not None else nominal_yield(k)
