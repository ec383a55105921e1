"""The queue of an engine whose steps follow the law of steps, in an open and in a closed loop.

A request of p prompt and g output tokens decodes for D = (g - 1)/E steps. At a rate prompts take the share q of
all time, and decoding goes slower by 1/(1 - q).

With j in all, a request has X(j) = (D*S(j) + q*R)/(1 - q) seconds of work. R is the step in which its prompt is read; prompts
that arrive during it are read next. With Poisson arrivals this is processor sharing whose speed depends on the state. Its number in
flight has a product form for any distribution of lengths: P(j) is proportional to the product of rate*X(i)/i over i up
to j. C1/(1 - RPS*C2) is the case of a step that is linear in j (Kong et al., arXiv 2605.15051).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.laws.step_law import LEAST, CostsOfSteps, Demand, PromptReading, reading, shared_steps, step_s

_LEAST_TOKENS = 1e-3
"""Fewest tokens after the first: without any, a request never decodes and ends at no rate."""

_NEWTON, _MET = 5, 1e-9
"""Most steps until a mean in flight is met, and the part of it that may be missing; the start is exact for a step that is linear
in the batch."""

_MOST_PROMPTS, _ALL_PROMPTS = 0.95, 0.99
"""Largest share of time that prompts take in a law on trial, and at any rate."""

_PROMPT_ROUNDS = 2
"""Rounds until the time that a prompt adds to a step and the number decoding there agree."""

_SHARINGS = 4
"""Rounds until what a prompt adds to a step, and the prompts that share the step, agree."""

_SETTLING = 4
"""Rounds until the number decoding in a closed loop and the draft length of a schedule for it agree."""


class Served(NamedTuple):
    """Mean times of requests (s), NaN without a steady state: to the last token, to the first token; and requests in the engine."""

    latency_s: FloatArray
    ttft_s: FloatArray
    inflight: FloatArray


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
        chances: of 0, 1, 2, ...; that of the last is the chance of a full step, beside which others may wait.
        waiting: mean number that waits for a place.
        number: mean number that decodes or waits.
        alone: share of requests that are first in their group, of those that arrive while 0, 1, 2, ... decode.
        above: sum of (number - its mean)*P over 1, 2, ... and more.
        longer: derivative of the mean number by ln(rate) through the length of the queue alone.
    """

    chances: FloatArray
    waiting: FloatArray
    number: FloatArray
    alone: FloatArray
    above: FloatArray
    longer: FloatArray

    @property
    def slope(self) -> FloatArray:
        """Derivative of the mean number by ln(rate)."""
        return np.asarray(np.maximum(np.vecdot(self.above, self.alone) + self.longer, LEAST))

    @property
    def moved(self) -> FloatArray:
        """Derivatives of the mean number by ln(work) among 1, 2, ... at a fixed rate."""
        # A slower step among i moves P at i and above; for requests that come in groups, part of it is taken back at i + 1.
        moved = self.above.copy()
        moved[..., :-1] -= (1.0 - self.alone[..., 1:]) * self.above[..., 1:]
        moved[..., -1] += self.longer
        return moved


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
        share: its part of what a step with prompts takes more.
    """

    q: FloatArray
    work_s: FloatArray
    number: _Chances
    prompt_s: FloatArray
    share: FloatArray
    ttft_s: FloatArray


class Together(NamedTuple):
    """Times of requests by the number that decodes together, up to a largest one; the last axis is the number.

    Attributes:
        steps_s: duration of a step in which 0, 1, 2, ... decode; the first is one whose prompts are read alone.
        decode_s: decoding of a whole request among 1, 2, ... without the prompts of others.
        readings: reading a prompt among 0, 1, 2, ...
        request_s: outside of steps (s).
        beside_s: what a step with prompts takes more beside some that decode.
        most: the largest number; a part of those up to it may be left out.
        full_s: in full steps, a request's part of decoding, and what its prompt adds.
    """

    steps_s: FloatArray
    decode_s: FloatArray
    readings: PromptReading
    request_s: FloatArray
    beside_s: FloatArray
    most: int
    full_s: tuple[FloatArray, FloatArray]

    @classmethod
    def of(cls, costs: CostsOfSteps, demand: Demand, most: int) -> Together:
        """Requests of which at most `most` decode in a step; beyond it they wait."""
        number = _numbers(most + 1)
        wide = CostsOfSteps._make([*(np.asarray(value)[..., None] for value in costs[:-1]), costs.departures])
        tiers = tuple(tier.each(lambda value: np.asarray(value)[..., None]) for tier in demand.tiers)
        spread = Demand(tiers, *(np.asarray(value)[..., None] for value in demand[1:-1]))
        steps, read = _steps(wide, spread, number), reading(wide, spread, number)
        each_s, beside_s = steps.decode_s[..., -1] / most, np.asarray(costs.beside_s)
        shared = beside_s * (1.0 - shared_steps(steps.step_s[..., -1] / each_s))
        return cls(
            steps.step_s,
            steps.decode_s[..., 1:],
            read,
            np.asarray(costs.request_s),
            beside_s,
            most,
            (each_s, read.prompt_s[..., -1] - shared),
        )

    def up_to(self, some: int) -> Together:
        """The same without larger numbers, for rates at which as many are never together."""
        prompt_s, slopes = self.readings
        return self._replace(
            steps_s=self.steps_s[..., : some + 1],
            decode_s=self.decode_s[..., :some],
            readings=PromptReading(prompt_s[..., : some + 1], tuple(one[..., : some + 1] for one in slopes)),
        )

    @property
    def saturation_rps(self) -> FloatArray:
        """Rate (1/s) beyond which the queue grows without end, where steps are full."""
        return np.asarray(1.0 / sum(self.full_s))

    @property
    def _added(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """By the number that decodes: what a prompt alone in its step adds to it, 1 if any decodes, and then the step."""
        beside = self.readings.slopes[-1]
        return self.readings.prompt_s, beside, beside * self.steps_s

    def along(self, rps: FloatArray) -> Answering:
        """An open loop with Poisson arrivals at `rps` (1/s, above 0), and how it answers to the steps; NaN beyond saturation."""
        settled = self._settled(rps)
        return self._answering(rps, self._served(rps, settled), settled)

    def _settled(self, rps: FloatArray) -> _Settled:
        prompt_s, _ = self._adding(rps, *(one[..., 1] for one in self._added))
        for _ in range(_PROMPT_ROUNDS):
            q = np.minimum(rps * prompt_s, _ALL_PROMPTS)
            work_s = self._work_s(prompt_s, q)
            number = self._chances(_Ending.of(work_s), rps / (1.0 - q), _together(q))
            prompt_s, share = self._adding(rps, *(_mean(one, number) for one in self._added))
        return _Settled(q, work_s, number, prompt_s, share, self._ttft_s(number, prompt_s, rps, q))

    def _adding(
        self, rps: FloatArray, alone_s: FloatArray, beside: FloatArray, busy_s: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """What a prompt adds to a step, and its share of what a step with prompts takes more; by the means of `_added`.

        A prompt shares its step with those that come in the step before. Steps after long ones hold more of them, so that half of
        the mean others are behind it (exact within 4 % up to .7 of all time).
        """
        read_s, share = alone_s - self.beside_s * beside, np.ones(())
        # Below saturation so many decode, in steps so long, that enough prompts share one.
        each_s, full_s = self.full_s
        most_s = np.maximum(0.5 * (1.0 / rps - each_s + full_s) - read_s, 0.0)
        prompt_s = read_s
        for _ in range(_SHARINGS if np.any(self.beside_s) else 1):
            prompt_s = read_s + np.minimum(self.beside_s * beside * share, most_s)
            q = np.minimum(rps * prompt_s, _ALL_PROMPTS)
            share = 1.0 / (1.0 + 0.5 * rps * (busy_s / (1.0 - q) + prompt_s * q / (1.0 - q**2)))
        return np.asarray(prompt_s), np.asarray(share)

    def _served(self, rps: FloatArray, settled: _Settled) -> Served:
        latency_s = settled.ttft_s + settled.number.number / rps
        latency_s = np.where(rps < self.saturation_rps, latency_s, np.nan)
        ttft_s = settled.ttft_s + settled.number.waiting / rps
        return Served(latency_s, np.where(np.isnan(latency_s), np.nan, ttft_s), rps * latency_s)

    def at_inflight(self, rps: FloatArray, inflight: FloatArray) -> Answering:
        """An open loop in which so many were in flight on average: how long a request takes among them.

        A law is fitted this way round: at an imposed rate a small error of it is a large one of the latency near
        saturation.
        """
        most = self.decode_s.shape[-1]
        place = np.minimum(inflight, most - 1.0)
        prompt_s, _ = self._adding(rps, *(_along(one, place) for one in self._added))
        ttft_s = np.asarray(self.request_s + prompt_s + self.steps_s[..., 1])
        for _ in range(2):
            q = np.minimum(rps * prompt_s, _MOST_PROMPTS)
            together, work_s = _together(q), self._work_s(prompt_s, q)
            decoding = np.maximum(inflight - np.minimum(rps * ttft_s, 0.9 * inflight), 1e-6)
            ending = _Ending.of(work_s)
            pushed = decoding / _along(work_s, np.minimum(decoding, most - 1.0))
            if (full := 2.0 * decoding > most).any():
                # From a longer queue than the wanted one: from a shorter one a step can end beyond saturation.
                idle = 1.0 / (2.0 + math.sqrt(most) + np.maximum(decoding - most, 0.0))
                pushed = np.where(full, ending.rates[..., -1] * (1.0 - idle / (1.0 - together)), pushed)
            for _ in range(_NEWTON):
                number = self._chances(ending, pushed, together)
                short = decoding - number.number
                if (np.abs(short) < _MET * decoding).all():
                    break
                pushed = pushed * np.exp(np.clip(short / number.slope, -0.5, 0.5))
            prompt_s, share = self._adding(rps, *(_mean(one, number) for one in self._added))
            ttft_s = self._ttft_s(number, prompt_s, rps, q)
        served = Served(ttft_s + decoding / (pushed * (1.0 - q)), ttft_s, inflight)
        return self._answering(rps, served, _Settled(q, work_s, number, prompt_s, share, ttft_s))

    def _answering(self, rps: FloatArray, served: Served, settled: _Settled) -> Answering:
        q, work_s, number, prompt_s, share, ttft_s = settled
        *slopes, beside = self.readings.slopes
        decode_s, slope = served.latency_s - ttft_s, number.slope
        behind, left = self._behind(q), 1.0 - q[..., None]
        of_work = (decode_s / slope)[..., None] * number.moved / work_s
        behind_s = behind / left * self.steps_s[..., 1:]
        before = ((0.5 + prompt_s * rps) / (1.0 - q))[..., None]
        first = self.steps_s * number.chances
        first[..., 1:] += before * first[..., 1:]
        through_first = 1.0 - rps * decode_s * (1.0 / number.number - 1.0 / slope)
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
            _relative(prompt_s, [*(_mean(one, number) for one in slopes), _mean(beside, number) * share]),
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
        chances, past = weights / total[..., None], past / total
        # As many wait as a geometric number has on average; then its mean square.
        wait, square = 1.0 / (1.0 - last), (1.0 + last) / (1.0 - last) ** 2
        number = np.asarray(chances @ _numbers(most + 1) + past * (most + wait))
        away = chances * (_numbers(most + 1) - number[..., None])
        away[..., -1] += past * (most + wait - number)
        chances[..., -1] += past
        return _Chances(
            chances,
            past * wait,
            number,
            first / coming,
            np.cumsum(away[..., :0:-1], axis=-1)[..., ::-1],
            past * ((most - number) * wait + square) * first[..., 0] / ending.rates[..., -1] / last,
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
    return np.asarray(np.vecdot(number.chances, values))


def _relative(whole: FloatArray, slopes: Sequence[FloatArray]) -> tuple[FloatArray, ...]:
    """Slopes of a figure's logarithm from the slopes of the figure."""
    return tuple(np.asarray(slope / np.maximum(whole, LEAST)) for slope in slopes)


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
    Of its steps a request decodes in all but the first. Prompts are read beside others that decode if answers differ.
    The answers to the steps are spread over the two whole numbers beside the number that decodes.
    """
    others = inflight - 1.0
    # Without a schedule the number of decoding steps is the same at every number that decodes.
    for _ in range(_SETTLING if len(demand.tiers) > 1 else 1):
        steps = _steps(costs, demand, 1.0 + others)
        each = steps.decode_s / steps.step_s
        others = (inflight - 1.0) * each / (1.0 + each)
    steps, first_s = _steps(costs, demand, 1.0 + others), _steps(costs, demand, others).step_s
    beside = (inflight - 1.0) / (1.0 + each)
    read = reading(costs, demand, others, beside)
    prompt_s = read.prompt_s
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
