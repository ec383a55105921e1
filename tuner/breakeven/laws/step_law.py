"""One law for every arm: the time of an engine step, and the queue that follows from it.

A step in which j requests decode, each verifying 1 + k positions, lasts

    S(j) = [(a*(1 - s*exp(-V/v)))^r + (b*V)^r]^(1/r) + w*j*context + [k > 0]*(f + d*k) + t*j*k,   V = j*(1 + k)

a is the time to read the weights once, b the time to compute one position. r is the sharpness of the transition
between these two bounds. s and v are the saving of experts while few are touched. w is the time of a token of context; f, d
and t are the costs of drafting.
A request of p prompt and g output tokens decodes for D = (g - 1)/E steps. Its prompt is read in a step with others: u*p more
of computing, of which the share h of what fits behind the reading of weights is hidden. At a rate prompts take the share q of
all time, and decoding goes slower by 1/(1 - q).

With j in all, a request has X(j) = (D*S(j) + q*R)/(1 - q) seconds of work. R is the step in which its prompt is read; prompts
that arrive during it are read next. With Poisson arrivals this is processor sharing whose speed depends on the state. Its number in
flight has a product form for any distribution of lengths: P(j) is proportional to the product of rate*X(i)/i over i up
to j. C1/(1 - RPS*C2) is the case of a step that is linear in j (Kong et al., arXiv 2605.15051).

Costs are scalars; demands of requests, rates and numbers in flight broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from breakeven.laws.arrays import FloatArray

_LEAST = 1e-12
"""Smaller than every duration (s) and every share that has an effect."""

_LEAST_TOKENS = 1e-3
"""Fewest tokens after the first: without any, a request never decodes and ends at no rate."""

_NEWTON, _MET = 5, 1e-9
"""Most steps until a mean in flight is met, and the part of it that may be missing; the start is exact for a step that is linear
in the batch."""

_MOST_PROMPTS, _ALL_PROMPTS = 0.95, 0.99
"""Largest share of time that prompts take in a law on trial, and at any rate."""

_PROMPT_ROUNDS = 2
"""Rounds until the time that a prompt adds to a step and the number decoding there agree."""

_SETTLING = 4
"""Rounds until the number decoding in a closed loop and the draft length of a schedule for it agree."""


class CostsOfSteps(NamedTuple):
    """Costs of a step; scalars except the departures.

    Attributes:
        weights_s: a, the weights streamed once (s), above 0.
        position_s: b, computing one position (s), above 0.
        sharpness: r, at least 1: 1 adds the two bounds, a large one takes the larger.
        untouched: s, the share of the weights that a step of very few positions leaves unread, below 1.
        touching: v, positions after which all but a third of those are read, above 0.
        context_s: w, a token of context and decoding request (s).
        prompt_s: u, computing a prompt token (s).
        drafting_s: f, drafting at all (s).
        draft_s: d, each position drafted, however many requests draft (s).
        each_draft_s: t, a position drafted for one request (s).
        request_s: time of a request outside of steps (s).
        hidden: h, the share of a prompt's computing behind the reading of weights that costs nothing, 0 to 1.
        departures: ln of the factor on a step at 1, 2, 4, ... positions, shape (knots,), with straight lines between over the
            logarithm of positions. They describe knees that no sharpness has.
    """

    weights_s: FloatArray
    position_s: FloatArray
    sharpness: FloatArray
    untouched: FloatArray
    touching: FloatArray
    context_s: FloatArray
    prompt_s: FloatArray
    drafting_s: FloatArray
    draft_s: FloatArray
    each_draft_s: FloatArray
    request_s: FloatArray
    hidden: FloatArray
    departures: FloatArray


class Tier(NamedTuple):
    """Drafting from a batch size on.

    Attributes:
        first: smallest number of decoding requests.
        drafted: k, positions drafted in a step for one request.
        tokens_per_step: E, at least 1.
        verified: how many of them are verified; None if all.
    """

    first: int
    drafted: FloatArray
    tokens_per_step: FloatArray
    verified: FloatArray | None = None

    @property
    def positions(self) -> FloatArray:
        """Positions that a step computes for one request."""
        return np.asarray(1.0 + (self.drafted if self.verified is None else self.verified))

    def each(self, change: Callable[[FloatArray], FloatArray]) -> Tier:
        """The tier with every array changed in the same way."""
        verified = None if self.verified is None else change(self.verified)
        return Tier(self.first, change(self.drafted), change(self.tokens_per_step), verified)


class Demand(NamedTuple):
    """Work that a request demands of the engine.

    Attributes:
        tiers: of its drafting: one tier; of a schedule several, with the first at 1.
        output_tokens: g, at least 1.
        context_tokens: mean tokens of context while it decodes.
    """

    tiers: tuple[Tier, ...]
    prompt_tokens: FloatArray
    output_tokens: FloatArray
    context_tokens: FloatArray


class Served(NamedTuple):
    """Mean times of requests (s), NaN without a steady state: to the last token, to the first token; and requests in the engine."""

    latency_s: FloatArray
    ttft_s: FloatArray
    inflight: FloatArray


def step_s(costs: CostsOfSteps, tier: Tier, context_tokens: FloatArray, decoding: FloatArray) -> FloatArray:
    """Duration (s) of a step in which `decoding` requests decode, drafted for as the tier says."""
    positions = decoding * tier.positions
    drafting = (tier.drafted > 0) * (costs.drafting_s + costs.draft_s * tier.drafted)
    of_each = costs.context_s * context_tokens + costs.each_draft_s * tier.drafted
    first, share = departure_shares(positions, costs.departures.size)
    departure = costs.departures[first] * (1.0 - share) + costs.departures[first + 1] * share
    whole = _bound(costs, positions).bound_s + drafting + of_each * decoding
    return np.asarray(whole * np.exp(departure))


SENSITIVE = (
    "weights_s",
    "position_s",
    "sharpness",
    "untouched",
    "touching",
    "context_s",
    "drafting_s",
    "draft_s",
    "each_draft_s",
)
"""Costs of which `step_sensitivities` has a row each, in this order."""


def step_sensitivities(
    costs: CostsOfSteps, tier: Tier, context_tokens: FloatArray, decoding: FloatArray
) -> FloatArray:
    """Sensitivities of a step's duration to each cost, d ln S / d ln(cost), stacked on a first axis in the order of `SENSITIVE`.

    Of `sharpness` it is d ln S / d ln(r - 1), of `untouched` d ln S / d logit(s): the unbounded forms in which they are fitted.
    """
    positions = decoding * tier.positions
    bound_s, memory_s, of_memory = _bound(costs, positions)
    r = costs.sharpness
    compute = costs.position_s * positions
    # ln B = ln(m^r + c^r)/r, with the logarithms taken of the ratio so that no power overflows.
    below = np.maximum(compute / bound_s, _LEAST)
    mixed = of_memory * np.log(memory_s / bound_s) + (1.0 - of_memory) * np.log(below)
    unread = costs.weights_s * costs.untouched * np.exp(-positions / costs.touching)
    through_memory = of_memory * bound_s / memory_s
    drafts = tier.drafted > 0
    parts = (
        bound_s * of_memory,
        bound_s * (1.0 - of_memory),
        bound_s * mixed * (r - 1.0) / r,
        -through_memory * unread * (1.0 - costs.untouched),
        -through_memory * unread * positions / costs.touching,
        costs.context_s * context_tokens * decoding,
        drafts * costs.drafting_s,
        drafts * costs.draft_s * tier.drafted,
        costs.each_draft_s * tier.drafted * decoding,
    )
    whole = bound_s + parts[5] + parts[6] + parts[7] + parts[8]
    found = np.empty((len(parts), *np.shape(whole)))
    for row, part in enumerate(parts):
        found[row] = part / whole
    return found


def departure_shares(positions: FloatArray, knots: int) -> tuple[NDArray[np.intp], FloatArray]:
    """The two departures around a number of positions: the first one's index, and the second one's share."""
    place = np.clip(np.log2(np.maximum(positions, 1.0)), 0.0, knots - 1.0 - 1e-9)
    first = place.astype(np.intp)
    return first, np.asarray(place - first)


class PromptReading(NamedTuple):
    """Time that a prompt adds to a step (s), and its slopes in the order of `READ_BY`."""

    prompt_s: FloatArray
    slopes: tuple[FloatArray, ...]


READ_BY = ("weights_s", "position_s", "prompt_s", "hidden")
"""Costs that the slopes of reading a prompt refer to: by their logarithms, by the logit of the last."""


def reading(costs: CostsOfSteps, demand: Demand, decoding: FloatArray) -> PromptReading:
    """A prompt read in a step in which `decoding` requests decode.

    Weights that decoding waits for anyway need not be read again: part of the prompt's computing may hide behind them.
    """
    of_each = demand.tiers[0].positions
    for later in demand.tiers[1:]:
        of_each = np.where(decoding >= later.first - 0.5, later.positions, of_each)
    positions = decoding * of_each
    compute = costs.position_s * positions
    prompt = costs.prompt_s * demand.prompt_tokens
    without = _bound(costs, positions)
    # The prompt counts as the positions that take as long to compute.
    beside = _bound(costs, positions + prompt / costs.position_s)
    of_compute = beside.bound_s * (1.0 - beside.of_memory) / np.maximum(compute + prompt, _LEAST)
    saved = beside.bound_s - without.bound_s - prompt
    h = costs.hidden
    return PromptReading(
        np.asarray(prompt + h * saved),
        (
            h * (beside.bound_s * beside.of_memory - without.bound_s * without.of_memory),
            h * (of_compute * compute - without.bound_s * (1.0 - without.of_memory)),
            (1.0 - h + h * of_compute) * prompt,
            h * (1.0 - h) * saved,
        ),
    )


class _Bound(NamedTuple):
    """Reading weights and computing positions: what both take together, and the memory's part in it (1)."""

    bound_s: FloatArray
    memory_s: FloatArray
    of_memory: FloatArray


def _bound(costs: CostsOfSteps, positions: FloatArray) -> _Bound:
    # A fit may try weights that cost nothing, and a step takes some time.
    memory = np.maximum(
        costs.weights_s * (1.0 - costs.untouched * np.exp(-positions / costs.touching)), _LEAST
    )
    compute = costs.position_s * positions
    larger = np.maximum(memory, compute)
    ratio = (np.minimum(memory, compute) / larger) ** costs.sharpness
    of_larger = 1.0 / (1.0 + ratio)
    bound = larger * (1.0 + ratio) ** (1.0 / costs.sharpness)
    return _Bound(bound, memory, np.where(memory >= compute, of_larger, 1.0 - of_larger))


class _Steps(NamedTuple):
    """Duration (s) of a step, and of the decoding of a whole request in such steps."""

    step_s: FloatArray
    decode_s: FloatArray


def _steps(costs: CostsOfSteps, demand: Demand, decoding: FloatArray) -> _Steps:
    tokens = np.maximum(demand.output_tokens - 1.0, _LEAST_TOKENS)
    first, *later = demand.tiers
    lasting = step_s(costs, first, demand.context_tokens, decoding)
    whole = lasting * tokens / first.tokens_per_step
    for tier in later:
        reached = decoding >= tier.first - 0.5
        one = step_s(costs, tier, demand.context_tokens, decoding)
        lasting = np.where(reached, one, lasting)
        whole = np.where(reached, one * tokens / tier.tokens_per_step, whole)
    return _Steps(lasting, whole)


class Answering(NamedTuple):
    """Mean times of requests, and their sensitivities to the durations of steps.

    Attributes:
        numbers: of decoding requests to which the next two refer, shape (numbers,) or (loads, numbers).
        of_decoding: seconds of latency per ln(step) among so many, through decoding.
        of_first: seconds of TTFT, and so of latency, likewise.
        of_prompts: seconds of latency, and of TTFT, per ln(time that a prompt adds to a step).
        prompt_slopes: slopes of that logarithm in the order of `READ_BY`.
        through_first: seconds of latency per second of TTFT: a request that waits for its first token does not slow others.
    """

    served: Served
    numbers: FloatArray
    of_decoding: FloatArray
    of_first: FloatArray
    of_prompts: tuple[FloatArray, FloatArray]
    prompt_slopes: tuple[FloatArray, ...]
    through_first: FloatArray


class _Chances(NamedTuple):
    """Distribution of the number of requests that decode.

    Attributes:
        beyond: the sum of j*P(j) beyond the last.
        alone: share of requests that are first in their group, of those that arrive while 0, 1, 2, ... decode.
        decoding: mean number that decodes, without the part beyond the last.
    """

    chances: FloatArray
    past: FloatArray
    beyond: FloatArray
    alone: FloatArray
    decoding: FloatArray

    @property
    def away(self) -> FloatArray:
        """Distance of each number from the mean, times its chance."""
        return np.asarray(self.chances * (_numbers(self.chances.shape[-1]) - self.decoding[..., None]))

    @property
    def slope(self) -> FloatArray:
        """Derivative of the mean number by ln(rate)."""
        return np.asarray(np.maximum(np.vecdot(self.away[..., 1:], np.cumsum(self.alone, axis=-1)), _LEAST))


class _Ending(NamedTuple):
    """Rates (1/s) at which requests end among 1, 2, ..., and among one less: 0 among none."""

    rates: FloatArray
    before: FloatArray

    @classmethod
    def of(cls, work_s: FloatArray) -> _Ending:
        rates = _numbers(work_s.shape[-1] + 1)[1:] / work_s
        return cls(rates, np.concatenate([np.zeros_like(rates[..., :1]), rates[..., :-1]], axis=-1))


class _Settled(NamedTuple):
    """An engine in a steady state.

    Attributes:
        q: share of time in which prompts are read.
        work_s: decoding of a whole request among 1, 2, ..., with the prompts of others.
        prompt_s: what a prompt adds to a step.
    """

    q: FloatArray
    work_s: FloatArray
    number: _Chances
    prompt_s: FloatArray
    ttft_s: FloatArray


class Together(NamedTuple):
    """Times of requests by the number that decodes together, up to a largest one; the last axis is the number.

    Attributes:
        steps_s: duration of a step in which 0, 1, 2, ... decode; the first is one whose prompts are read alone.
        decode_s: decoding of a whole request among 1, 2, ... without the prompts of others.
        readings: reading a prompt among 0, 1, 2, ...
        request_s: outside of steps (s).
        most: the largest number; a part of those up to it may be left out.
        saturation_rps: rate (1/s) beyond which the queue grows without end, where steps are full.
    """

    steps_s: FloatArray
    decode_s: FloatArray
    readings: PromptReading
    request_s: FloatArray
    most: int
    saturation_rps: FloatArray

    @classmethod
    def of(cls, costs: CostsOfSteps, demand: Demand, most: int) -> Together:
        """Requests of which at most `most` decode in a step; beyond it they wait."""
        number = _numbers(most + 1)
        wide = CostsOfSteps._make([*(np.asarray(value)[..., None] for value in costs[:-1]), costs.departures])
        tiers = tuple(tier.each(lambda value: np.asarray(value)[..., None]) for tier in demand.tiers)
        spread = Demand(tiers, *(np.asarray(value)[..., None] for value in demand[1:]))
        steps, read = _steps(wide, spread, number), reading(wide, spread, number)
        return cls(
            steps.step_s,
            steps.decode_s[..., 1:],
            read,
            np.asarray(costs.request_s),
            most,
            np.asarray(1.0 / (steps.decode_s[..., -1] / most + read.prompt_s[..., -1])),
        )

    def up_to(self, some: int) -> Together:
        """The same without larger numbers, for rates at which as many are never together."""
        prompt_s, slopes = self.readings
        return self._replace(
            steps_s=self.steps_s[..., : some + 1],
            decode_s=self.decode_s[..., :some],
            readings=PromptReading(prompt_s[..., : some + 1], tuple(one[..., : some + 1] for one in slopes)),
        )

    def along(self, rps: FloatArray) -> Answering:
        """An open loop with Poisson arrivals at `rps` (1/s, above 0), and how it answers to the steps; NaN beyond saturation."""
        settled = self._settled(rps)
        return self._answering(rps, self._served(rps, settled), settled)

    def _settled(self, rps: FloatArray) -> _Settled:
        prompt_s = self.readings.prompt_s[..., 1]
        for _ in range(_PROMPT_ROUNDS):
            q = np.minimum(rps * prompt_s, _ALL_PROMPTS)
            work_s = self._work_s(prompt_s, q)
            number = self._chances(_Ending.of(work_s), rps / (1.0 - q), _together(q))
            prompt_s = _mean(self.readings.prompt_s, number)
        return _Settled(q, work_s, number, prompt_s, self._ttft_s(number, prompt_s, rps, q))

    def _served(self, rps: FloatArray, settled: _Settled) -> Served:
        latency_s = settled.ttft_s + (settled.number.decoding + settled.number.beyond) / rps
        latency_s = np.where(rps < self.saturation_rps, latency_s, np.nan)
        return Served(latency_s, np.where(np.isnan(latency_s), np.nan, settled.ttft_s), rps * latency_s)

    def at_inflight(self, rps: FloatArray, inflight: FloatArray) -> Answering:
        """An open loop in which so many were in flight on average: how long a request takes among them.

        A law is fitted this way round: at an imposed rate a small error of it is a large one of the latency near
        saturation.
        """
        most = self.decode_s.shape[-1]
        prompt_s = _along(self.readings.prompt_s, np.minimum(inflight, most - 1.0))
        ttft_s = np.asarray(self.request_s + prompt_s + self.steps_s[..., 1])
        for _ in range(2):
            q = np.minimum(rps * prompt_s, _MOST_PROMPTS)
            together, work_s = _together(q), self._work_s(prompt_s, q)
            decoding = np.maximum(inflight - np.minimum(rps * ttft_s, 0.9 * inflight), 1e-6)
            ending = _Ending.of(work_s)
            pushed = decoding / _along(work_s, np.minimum(decoding, most - 1.0))
            for _ in range(_NEWTON):
                number = self._chances(ending, pushed, together)
                short = decoding - number.decoding
                if (np.abs(short) < _MET * decoding).all():
                    break
                pushed = pushed * np.exp(np.clip(short / number.slope, -0.5, 0.5))
            prompt_s = _mean(self.readings.prompt_s, number)
            ttft_s = self._ttft_s(number, prompt_s, rps, q)
        served = Served(ttft_s + decoding / (pushed * (1.0 - q)), ttft_s, inflight)
        return self._answering(rps, served, _Settled(q, work_s, number, prompt_s, ttft_s))

    def _answering(self, rps: FloatArray, served: Served, settled: _Settled) -> Answering:
        q, work_s, number, prompt_s, ttft_s = settled
        decode_s, slope, decoding = served.latency_s - ttft_s, number.slope, number.decoding
        # A slower step among i moves P at i and above; for requests that come in groups, part of it is taken back at i + 1.
        above = np.cumsum(number.away[..., ::-1], axis=-1)[..., ::-1][..., 1:]
        moved = above.copy()
        moved[..., :-1] -= (1.0 - number.alone[..., 1:]) * above[..., 1:]
        behind, left = self._behind(q), 1.0 - q[..., None]
        of_work = (decode_s / slope)[..., None] * moved / work_s
        behind_s = behind / left * self.steps_s[..., 1:]
        before = ((0.5 + prompt_s * rps) / (1.0 - q))[..., None]
        first = self.steps_s * number.chances
        first[..., 1:] += before * first[..., 1:]
        through_first = 1.0 - rps * decode_s * (1.0 / decoding - 1.0 / slope)
        reading_s = ttft_s - self.request_s - first.sum(axis=-1)
        busy_s = np.vecdot(number.chances[..., 1:], self.steps_s[..., 1:])
        stretch_s = busy_s * q / (1.0 - q) ** 2 + prompt_s * q * (1.0 + q**2) / (1.0 - q**2) ** 2
        reading_s = reading_s + (0.5 + prompt_s * rps) * stretch_s
        longer_s = behind_s / left + behind * (2.0 * prompt_s / (1.0 - q**2) ** 2)[..., None]
        slowed_s = decode_s * q / (1.0 - q) + np.vecdot(of_work, longer_s)
        return Answering(
            served,
            _numbers(number.chances.shape[-1]),
            _from_zero(of_work * (self.decode_s + behind_s)),
            first,
            (through_first * reading_s + slowed_s, reading_s),
            _relative(prompt_s, [_mean(slope, number) for slope in self.readings.slopes]),
            through_first,
        )

    def _work_s(self, prompt_s: FloatArray, q: FloatArray) -> FloatArray:
        """Decoding of a whole request, with the prompts of those that came while its own was read: they are read next.

        In a full batch none is read before a place is free: that wait is in the queue.
        """
        reading_s = self.steps_s[..., 1:] / (1.0 - q[..., None]) + (prompt_s / (1.0 - q**2))[..., None]
        return np.asarray(self.decode_s + self._behind(q) * reading_s)

    def _behind(self, q: FloatArray) -> FloatArray:
        """Requests that come, while a prompt is read, for each second of it, times the reading of theirs."""
        return np.asarray(q[..., None] * (1.0 - _numbers(self.decode_s.shape[-1] + 1)[1:] / self.most))

    def _chances(self, ending: _Ending, pushed: FloatArray, together: FloatArray) -> _Chances:
        """Distribution of the number that decodes.

        Requests come in groups of a geometric number; `together` is the share of followers. P(j+1)/P(j) is
        (rate*(1 - share) + share*mu(j))/mu(j+1), with mu(j) = j/X(j) the rate at which they end among j.
        """
        most = ending.rates.shape[-1]
        first = (pushed * (1.0 - together))[..., None]
        coming = first + together[..., None] * ending.before
        logs = _from_zero(np.cumsum(np.log(coming / ending.rates), axis=-1))
        weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
        last = np.minimum(first[..., 0] / ending.rates[..., -1] + together, 1.0 - 1e-9)
        past = weights[..., -1] * last / (1.0 - last)
        total = weights.sum(axis=-1) + past
        chances = weights / total[..., None]
        return _Chances(
            chances,
            past / total,
            past / total * (most + 1.0 / (1.0 - last)),
            first / coming,
            np.asarray(chances @ _numbers(most + 1)),
        )

    def _ttft_s(self, number: _Chances, prompt_s: FloatArray, rps: FloatArray, q: FloatArray) -> FloatArray:
        """Half of the step that an arrival falls into, one of its own, its prompt and those read beside it.

        A request that meets no other one waits for no step. One that arrives beyond the last number waits for a place too, which
        is in the number in flight.
        """
        own_s = _mean(self.steps_s, number)
        busy_s = own_s - number.chances[..., 0] * self.steps_s[..., 0]
        stretched_s = busy_s / (1.0 - q) + prompt_s * q / (1.0 - q**2)
        beside = rps * stretched_s
        return np.asarray(self.request_s + 0.5 * stretched_s + own_s + prompt_s * (1.0 + beside))


@lru_cache(maxsize=64)
def _numbers(count: int) -> FloatArray:
    """0, 1, 2, ... as floats; shared, so read-only."""
    found = np.arange(float(count))
    found.flags.writeable = False
    return found


def _mean(values: FloatArray, number: _Chances) -> FloatArray:
    """A figure of 0, 1, 2, ... on average; beyond the last number it stays what it is there."""
    return np.asarray(np.vecdot(number.chances, values) + number.past * values[..., -1])


def _relative(whole: FloatArray, slopes: Sequence[FloatArray]) -> tuple[FloatArray, ...]:
    """Slopes of a figure's logarithm from the slopes of the figure."""
    return tuple(np.asarray(slope / np.maximum(whole, _LEAST)) for slope in slopes)


def _from_zero(values: FloatArray) -> FloatArray:
    return np.concatenate([np.zeros_like(values[..., :1]), values], axis=-1)


def _together(q: FloatArray) -> FloatArray:
    """The share of requests that start to decode with another one.

    While prompts are read no request decodes and others arrive. With Poisson arrivals a whole busy period of prompts starts
    to decode at once, which multiplies the variance of their number by 1/(1 - q)^2. Groups of a geometric size with this share
    of followers have the variance over mean (1 + share)/(1 - share).
    """
    spread = (1.0 - q) ** -2.0
    return np.asarray((spread - 1.0) / (spread + 1.0))


def closed_loop(costs: CostsOfSteps, demand: Demand, inflight: FloatArray) -> Answering:
    """A closed loop that keeps `inflight` requests (at least 1) in the engine.

    While one of them is answered each one's prompt is read once. Clients ask when a step has ended, so none waits for one.
    Of its steps a request decodes in all but the first.
    The answers to the steps are spread over the two whole numbers beside the number that decodes.
    """
    others = inflight - 1.0
    # Without a schedule the number of decoding steps is the same at every number that decodes.
    for _ in range(_SETTLING if len(demand.tiers) > 1 else 1):
        steps = _steps(costs, demand, 1.0 + others)
        each = steps.decode_s / steps.step_s
        others = (inflight - 1.0) * each / (1.0 + each)
    steps, first_s = _steps(costs, demand, 1.0 + others), _steps(costs, demand, others).step_s
    read = reading(costs, demand, others)
    prompt_s = read.prompt_s
    beside = (inflight - 1.0) / (1.0 + each)
    ttft_s = costs.request_s + first_s + prompt_s * (1.0 + beside)
    latency_s = costs.request_s + first_s + steps.decode_s + prompt_s * inflight
    numbers = np.floor(others)[..., None] + _numbers(3)
    met, among = (
        np.maximum(1.0 - np.abs(place[..., None] - numbers), 0.0) for place in (others, 1.0 + others)
    )
    return Answering(
        Served(latency_s, ttft_s, np.asarray(inflight + 0.0 * latency_s)),
        numbers,
        steps.decode_s[..., None] * among,
        first_s[..., None] * met,
        (prompt_s * inflight, prompt_s * (1.0 + beside)),
        _relative(prompt_s, read.slopes),
        np.ones_like(latency_s),
    )


def _along(values: FloatArray, place: FloatArray) -> FloatArray:
    """The last axis' value at a place between its indices."""
    shape = np.broadcast_shapes(values.shape[:-1], place.shape)
    place, values = np.broadcast_to(place, shape), np.broadcast_to(values, (*shape, values.shape[-1]))
    low = np.clip(place.astype(int), 0, values.shape[-1] - 2)
    at = np.take_along_axis(values, low[..., None], axis=-1)[..., 0]
    after = np.take_along_axis(values, low[..., None] + 1, axis=-1)[..., 0]
    return np.asarray(at + (place - low) * (after - at))
