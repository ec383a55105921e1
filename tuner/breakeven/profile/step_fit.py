"""The figures of the one law of all arms, and the latencies at an arm's loads that follow from them.

The fit works in unbounded figures: logarithms of the costs, `ln(r - 1)` of the sharpness, the logit of the untouched share
and the logarithm of a prompt token over a position; prompts beside decodes count in units (`BESIDE_S`). The order is

    engine (`ENGINE`), drafting of each family (`DRAFTING`), level of each arm, departures (`KNOTS`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from breakeven.arm import Arm
from breakeven.laws.acceptance_numbers import AcceptanceModel
from breakeven.laws.arrays import FloatArray
from breakeven.laws.step_law import (
    READ_BY,
    SENSITIVE,
    CostsOfSteps,
    Demand,
    Tier,
    departure_shares,
    step_s,
    step_sensitivities,
)
from breakeven.laws.step_queue import Answering, Together, closed_loop
from breakeven.profile.step_form import Departures, FormError, Gaps, Matrix, Whereabouts
from breakeven.profile.student_t import t_quantile
from breakeven.reasons import Reason

ENGINE = (
    "weights_s",
    "position_s",
    "sharpness",
    "untouched",
    "touching",
    "context_s",
    "prompt_s",
    "request_s",
    "hidden",
    "beside_s",
)
"""Costs of the engine, whatever is drafted."""

DRAFTING = ("drafting_s", "draft_s", "each_draft_s")
"""Costs of a drafter."""

_OF_ENGINE = len(SENSITIVE) - len(DRAFTING)
"""How many of `SENSITIVE` are costs of the engine: `ENGINE` begins with them; a drafter's follow."""

LEVEL = 0.015
"""Standard deviation of an arm's level (ln): each arm is an engine that was started in another way."""

KNOTS = 12
"""Departures at 1, 2, 4, ... 2048 positions."""

BESIDE_S = 0.005
"""Unit (s) of what a step with prompts takes more beside decodes: as much as is usual of vLLM on a GPU."""


ADAPTIVE_LEVEL = 0.06
"""The same of adaptive verification: its own graphs and ranking made light loads up to 8 % slower than the same fixed length."""

UNKNOWN_LEVEL = 0.5
"""Standard deviation of the level (ln) of an arm whose acceptance was not counted: its number of steps is a guess."""


_AROUND = math.log(3.0)
"""How far (ln of the number in flight) tokens per step that were counted at one load hold at others."""

_TRIED = 8
"""Numbers of drafts that are tried for each draft."""


def nominal_yield(k: int) -> float:
    """Tokens per step to assume if acceptance was not counted: at the measured acceptance the value has no effect."""
    return float((1.0 + k) ** 0.6)


class Verifying(NamedTuple):
    """Adaptive verification: k drafts are made and counted in every step, and as many of them verified as pay at the batch.

    Attributes:
        verified: drafts verified for a request on average, ascending from 0 to k.
        tokens: tokens per step with so many, likewise.
        seen: number in flight and tokens per step of each row that counted them.
    """

    k: int
    verified: FloatArray
    tokens: FloatArray
    seen: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(
        cls, arm: Arm, model: AcceptanceModel | None, seen: Iterable[tuple[float, float | None]]
    ) -> Verifying:
        """What an arm may verify, by the acceptance of its family at fixed lengths; a guess without one."""
        model = model or AcceptanceModel(arm.method, {arm.k: nominal_yield(arm.k)}, {})
        counted = sorted((max(inflight, 1.0), tokens) for inflight, tokens in seen if tokens is not None)
        return cls(arm.k, *model.likeliest_first(arm.k), tuple(counted))

    def tiers(self, costs: CostsOfSteps, context_tokens: float, most: int) -> tuple[Tier, ...]:
        """Its drafting by the batch, up to `most` requests: tiers of scalars.

        The engine takes the number that yields the most tokens for the time of a step. At that number the time of a token
        has no slope, so a law that is fitted may take it for given. Accepted over drafted has no use here: the engine counts all
        k as drafted. Tokens per step are counted right: where rows have them, as much was verified as yields them.
        """
        tried = np.linspace(0.0, self.k, _TRIED * self.k + 1)
        yields = np.interp(tried, self.verified, self.tokens)
        drafted, context = np.asarray(float(self.k)), np.asarray(context_tokens)
        tier = Tier(1, drafted, yields, tried)
        firsts = list(_batches(float(most)))
        best = [
            yields[np.argmax(yields / step_s(costs, tier, context, np.asarray(float(first))))]
            for first in firsts
        ]
        ln_tokens, ln_firsts = np.log(best), np.log(firsts)
        if self.seen:
            inflight, counted = np.log(self.seen).T
            beside = counted - np.interp(inflight, ln_firsts, ln_tokens)
            # What one load shows holds around it, and not for loads that are many times as large.
            away = inflight[1:] - inflight[:-1] > 2.0 * _AROUND
            left, right = inflight[:-1][away] + _AROUND, inflight[1:][away] - _AROUND
            places = np.concatenate([inflight, left, right])
            order = np.argsort(places, kind="stable")
            gaps = np.concatenate([beside, np.zeros(2 * left.size)])
            ln_tokens = ln_tokens + np.interp(ln_firsts, places[order], gaps[order])
        found = np.exp(np.maximum(ln_tokens, 0.0))
        return tuple(
            Tier(first, drafted, e, np.interp(e, self.tokens, self.verified))
            for first, e in zip(firsts, found, strict=True)
        )


def _batches(most: float) -> Iterator[int]:
    """Batch sizes 1, 2, 3, 4, 6, 8, 12, ... up to the largest."""
    first = 1
    while first <= max(most, 1.0):
        yield first
        half = first // 2 if first & (first - 1) == 0 else first // 3
        first += max(half, 1)


class ArmLoads(NamedTuple):
    """Loads of one arm, each an array: whether it is a closed loop, answered requests (1/s), mean number in flight.

    Lengths of the demand are scalars or have one value per load. With adaptive verification its tiers follow from the costs.
    """

    demand: Demand
    closed: FloatArray
    rps: FloatArray
    inflight: FloatArray
    verifying: Verifying | None = None

    def asked(self, costs: CostsOfSteps) -> Demand:
        """The demand on an engine with these costs."""
        if self.verifying is None:
            return self.demand
        context, most = float(self.demand.context_tokens.mean()), math.ceil(self.inflight.max())
        tiers = self.verifying.tiers(costs, context, most)
        ones = np.ones(self.rps.shape)
        return self.demand._replace(tiers=tuple(tier.each(lambda value: value * ones) for tier in tiers))


class Answers(NamedTuple):
    """Mean latencies and times to the first token (s) at one arm's loads by the law, shape (loads,).

    Their derivatives d ln / d(figure) by each figure of the law have shape (loads, figures).
    """

    latency_s: FloatArray
    ttft_s: FloatArray
    of_latency: FloatArray
    of_ttft: FloatArray


@dataclass(frozen=True, slots=True)
class Layout:
    """Index of each figure, by the names of drafters and of measured arms."""

    families: tuple[str, ...]
    arms: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of figures."""
        return self.first_departure + KNOTS

    @property
    def first_level(self) -> int:
        """Index of the first arm's level."""
        return len(ENGINE) + len(DRAFTING) * len(self.families)

    @property
    def first_departure(self) -> int:
        """Index of the first departure."""
        return self.first_level + len(self.arms)

    @property
    def costs_named(self) -> list[str]:
        """Names of the costs, in the order of the figures; a drafter's after its family."""
        return [*ENGINE, *(f"{family} {cost}" for family in self.families for cost in DRAFTING)]

    def drafting(self, family: str) -> int | None:
        """Index of the first cost of a family's drafting; None if the family was not measured."""
        if family not in self.families:
            return None
        return len(ENGINE) + len(DRAFTING) * self.families.index(family)

    def level(self, arm: str) -> int | None:
        """Index of the level of an arm; None if it was not measured."""
        return self.first_level + self.arms.index(arm) if arm in self.arms else None

    def costs_of(self, figures: FloatArray, family: str, arm: str) -> CostsOfSteps:
        """The costs of an arm's steps; an arm that was not measured has no level of its own, and one without speculation any family."""
        engine = dict(zip(ENGINE, figures, strict=False))
        at, level = self.drafting(family), self.level(arm)
        raised = 1.0 if level is None else np.exp(figures[level])
        drafting = np.zeros(3) if at is None else np.exp(figures[at : at + 3])
        position_s = np.exp(engine["position_s"])
        return CostsOfSteps(
            weights_s=np.exp(engine["weights_s"]) * raised,
            position_s=position_s * raised,
            sharpness=1.0 + np.exp(engine["sharpness"]),
            untouched=1.0 / (1.0 + np.exp(-engine["untouched"])),
            touching=np.exp(engine["touching"]),
            context_s=np.exp(engine["context_s"]) * raised,
            prompt_s=position_s * raised * np.exp(engine["prompt_s"]),
            drafting_s=drafting[0] * raised,
            draft_s=drafting[1] * raised,
            each_draft_s=drafting[2] * raised,
            request_s=np.exp(engine["request_s"]),
            hidden=1.0 / (1.0 + np.exp(-engine["hidden"])),
            beside_s=BESIDE_S * np.maximum(engine["beside_s"], 0.0) * raised,
            departures=figures[self.first_departure :],
        )

    def answers(self, figures: FloatArray, family: str, arm: str, loads: ArmLoads, most: int) -> Answers:
        """Latencies at an arm's loads by the law, of which at most `most` requests decode together."""
        costs = self.costs_of(figures, family, arm)
        whole = loads.asked(costs)
        latency_s, ttft_s = np.empty(loads.rps.shape), np.empty(loads.rps.shape)
        of_latency = np.zeros((*loads.rps.shape, self.size))
        of_ttft = np.zeros_like(of_latency)
        for closed in (True, False):
            here = np.asarray(loads.closed, dtype=bool) == closed
            if not here.any():
                continue
            demand = _of(whole, here)
            if closed:
                found = closed_loop(costs, demand, np.maximum(loads.inflight[here], 1.0))
            else:
                found = Together.of(costs, demand, most).at_inflight(loads.rps[here], loads.inflight[here])
            found_here = self.answered(figures, family, arm, demand, found)
            latency_s[here], ttft_s[here], of_latency[here], of_ttft[here] = found_here
        return Answers(latency_s, ttft_s, of_latency, of_ttft)

    def answered(
        self, figures: FloatArray, family: str, arm: str, demand: Demand, found: Answering
    ) -> Answers:
        """Latencies of an arm and their derivatives, from the steps of its requests.

        The demand has shape (loads,), or (1,) where all loads ask for the same.
        """
        costs = self.costs_of(figures, family, arm)
        step, hats = _step_slopes(costs, demand, found.numbers)
        loads, at, level = found.of_first.shape[0], self.drafting(family), self.level(arm)
        first, decoding = np.zeros((loads, self.size)), np.zeros((loads, self.size))
        for weights, into in ((found.of_first, first), (found.of_decoding, decoding)):
            one_demand = step.shape[1] == 1
            by_cost = weights @ step[:, 0].T if one_demand else np.vecdot(weights, step).T
            into[:, :_OF_ENGINE] = by_cost[:, :_OF_ENGINE]
            if at is not None:
                into[:, at : at + len(DRAFTING)] = by_cost[:, _OF_ENGINE:]
            if level is not None:
                into[:, level] = weights.sum(axis=-1)
            into[:, self.first_departure :] = (
                weights @ hats if hats.ndim == 2 else np.einsum("lj,ljk->lk", weights, hats)
            )
        request = ENGINE.index("request_s")
        first[:, request] = np.exp(figures[request])
        whole = decoding + found.through_first[:, None] * first
        of_latency, of_ttft = found.of_prompts
        slopes = dict(zip(READ_BY, found.prompt_slopes, strict=True))
        # The cost of a prompt token is a multiple of the cost of a position: it moves with both.
        slopes["position_s"] = slopes["position_s"] + slopes["prompt_s"]
        slopes["beside_s"] = (
            slopes["beside_s"] * BESIDE_S * (1.0 if level is None else np.exp(figures[level]))
        )
        for name, slope in slopes.items():
            first[:, ENGINE.index(name)] += slope * of_ttft
            whole[:, ENGINE.index(name)] += slope * of_latency
        if level is not None:
            first[:, level] += of_ttft
            whole[:, level] += of_latency
        latency_s, ttft_s = found.served.latency_s, found.served.ttft_s
        return Answers(latency_s, ttft_s, whole / latency_s[:, None], first / ttft_s[:, None])


def _of(demand: Demand, here: FloatArray) -> Demand:
    """The demand of some loads; of a figure that all of them share one value, so that steps are calculated once."""

    def pick(value: FloatArray) -> FloatArray:
        found = np.asarray(value)[here] if np.ndim(value) else np.full(1, float(value))
        return found[:1] if (found == found[0]).all() else found

    tiers = tuple(tier.each(pick) for tier in demand.tiers)
    return Demand(tiers, *(pick(value) for value in demand[1:]))


def _step_slopes(costs: CostsOfSteps, demand: Demand, number: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sensitivities of the steps, shape (costs, loads, numbers), and of the departures, shape (*number.shape, knots).

    The sensitivities to departures are of the first load, because all loads of an arm have the same draft length.
    """
    context = demand.context_tokens[..., None]
    step = np.empty(0)
    positions = number
    for tier in demand.tiers:
        one = step_sensitivities(costs, tier.each(lambda value: value[..., None]), context, number)
        reached = number >= tier.first - 0.5
        step = np.where(reached, one, step) if step.size else one
        positions = np.where(reached, number * float(tier.positions[0]), positions)
    first, share = departure_shares(positions, KNOTS)
    return step, np.maximum(1.0 - np.abs((first + share)[..., None] - np.arange(KNOTS)), 0.0)


class StepCostFound(NamedTuple):
    """One cost of the law, named as in `breakeven.laws.step_law.CostsOfSteps`, a drafter's after its family; in seconds if in `_s`.

    `prior`: whether rows show hardly more of it than was known before any of them.
    """

    name: str
    value: float
    ci: tuple[float, float]
    prior: bool


_NORMAL_T = 3.0
"""Largest number of standard deviations that bounds of a cost span: beyond, few rows would make them span everything."""


_SIGNIFICANT = 2.58
"""Standard errors beyond which a difference is significant at a level of 1 %."""


class StartFinding(NamedTuple):
    """A significant difference between starts of an arm's engine, or a drift within one; level 1 %."""

    reason: Reason
    sentence: str


@dataclass(frozen=True, slots=True)
class ArmStarts:
    """Starts of the engine on which one arm was measured.

    Attributes:
        number: how many; 0: the pods of a fleet, whose mean is what is predicted.
        apart: ln(slowest over fastest start); 0 of one start.
        apart_error: its standard error.
        drift: ln(last over first latency) of a load that one start measured twice; 0 if none did.
        drift_error: its standard error.
        beside: others in flight of its windows that stood beside one of no speculation (of no speculation: of any arm), at the
            same load; none unless most did.
    """

    number: int
    apart: float = 0.0
    apart_error: float = 0.0
    drift: float = 0.0
    drift_error: float = 0.0
    beside: tuple[float, ...] = ()

    def findings(self, arm: str) -> Iterator[StartFinding]:
        """Significant differences of the starts, for the arm of this name."""
        if self.apart > _SIGNIFICANT * self.apart_error:
            apart = f"{self.number} starts of its engine differ by {math.expm1(self.apart):.1%}"
            yield StartFinding(Reason.STARTS_DIFFER, f"{arm}: {apart}")
        if abs(self.drift) > _SIGNIFICANT * self.drift_error:
            way = "longer" if self.drift > 0 else "less long"
            took = (
                f"the same load took {abs(math.expm1(self.drift)):.1%} {way} at the end than at the beginning"
            )
            yield StartFinding(Reason.MACHINE_DRIFTS, f"{arm}: {took}")


@dataclass(frozen=True, slots=True)
class EngineStarts:
    """Scatter of one configuration from one start of its engine to the next, as standard deviations (ln) of one start.

    Attributes:
        sd: with the minutes in which it was measured, of an arm that was measured after others.
        beside_sd: without them, of an arm that was measured beside others.
        differences: between starts, so many are behind both beside the prior.
        arms: in the order of the law.
    """

    sd: float = 0.0
    differences: int = 0
    arms: tuple[ArmStarts, ...] = ()
    beside_sd: float = 0.0

    def sd_of(self, place: int | None) -> float:
        """Standard deviation (ln) of an arm's latencies because few starts measured them, drift of the machine included.

        `place` is the place of the arm in the law; None if it was not measured.
        """
        if place is None or place >= len(self.arms):
            return self.sd if self._after_others else self.beside_sd
        found = self.arms[place]
        if not found.number:
            return 0.0
        # A drift that the arms beside it share is in the factor of their stretches of time.
        sd, drift = (self.beside_sd, 0.0) if found.beside else (self.sd, found.drift)
        return math.hypot(sd / math.sqrt(found.number), 0.5 * drift)

    @property
    def minutes_sd(self) -> float:
        """Standard deviation (ln) of the minutes in which a start was measured, where arms were measured one after another."""
        return math.sqrt(max(self.sd**2 - self.beside_sd**2, 0.0)) if self._after_others else 0.0

    @property
    def _after_others(self) -> bool:
        return any(one.number and not one.beside for one in self.arms)


@dataclass(frozen=True, slots=True)
class StepLaw(Layout):
    """The one law of all arms as it was fitted: a layout with its figures.

    Attributes:
        figures: in the order of the module's text.
        noise: standard deviation of one mean latency (ln), with `dof` degrees of freedom.
        form: how far arms depart from the law.
        gaps: the rows of all arms beside the law.
        from_prior: names of costs of which the rows show hardly more than was known before any of them.
        starts: scatter between starts of an engine.
        max_num_seqs: requests that a step takes at most, beyond which they wait; None if not known.
    """

    figures: tuple[float, ...]
    covariance: Matrix = field(compare=False)
    noise: float
    dof: int
    form: FormError
    gaps: Gaps
    from_prior: tuple[str, ...] = ()
    starts: EngineStarts = EngineStarts()
    max_num_seqs: Annotated[int | None, Field(ge=1, exclude_if=lambda value: value is None)] = None

    def costs(self, arm: Arm) -> CostsOfSteps:
        """The costs of an arm's steps; one that was not measured has no level of its own."""
        return self.costs_of(np.array(self.figures), arm.family, arm.name)

    def departures(self, arm: Arm, wanted: Whereabouts) -> Departures:
        """Departures of the engine from the law at loads of an arm, measured or not."""
        found = self.gaps.departures(self.form, wanted)
        if arm.name in self.arms:
            return found
        return found._replace(sd=np.hypot(found.sd, LEVEL))

    def starts_of(self, arm: Arm) -> float:
        """Standard deviation (ln) of an arm's latencies over starts of its engine, beside the measured ones."""
        return self.starts.sd_of(self.arms.index(arm.name) if arm.name in self.arms else None)

    def beside(self, arm: Arm) -> tuple[float, ...]:
        """Others in flight at which an arm was measured beside no speculation."""
        found = dict(zip(self.arms, self.starts.arms, strict=False)).get(arm.name)
        return found.beside if found is not None else ()

    @property
    def minutes_sd(self) -> float:
        """Standard deviation (ln) that all latencies of some minutes share: it cancels in their ratios."""
        return max(self.gaps.block_sd, self.starts.minutes_sd)

    @property
    def start_findings(self) -> tuple[StartFinding, ...]:
        """Significant differences between starts and drifts of the machine, by arm."""
        pairs = zip(self.arms, self.starts.arms, strict=False)
        return tuple(found for arm, starts in pairs for found in starts.findings(arm))

    def costs_found(self, confidence: float) -> tuple[StepCostFound, ...]:
        """Every cost with its two-sided bounds, first of the engine, then of each drafter."""
        t = t_quantile(confidence, self.dof)
        names = self.costs_named
        spread = np.sqrt(np.diag(self.covariance))[: len(names)] * min(t, _NORMAL_T)
        middle = np.array(self.figures)[: len(names)]
        found = []
        for at, name in enumerate(names):
            ends = np.array([middle[at], middle[at] - spread[at], middle[at] + spread[at]])
            if name == "prompt_s":
                ends += middle[ENGINE.index("position_s")]
            value, low, high = (_NATURAL.get(name, math.exp)(end) for end in ends.tolist())
            found.append(StepCostFound(name, value, (low, high), name in self.from_prior))
        return tuple(found)


def _share(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit))


_NATURAL: dict[str, Callable[[float], float]] = {
    "untouched": _share,
    "hidden": _share,
    "sharpness": lambda figure: 1.0 + math.exp(figure),
    "beside_s": lambda figure: BESIDE_S * max(figure, 0.0),
}
