"""A serving engine, event by event, whose steps follow no law of the product: it judges laws and is not shipped.

It schedules as vLLM does. A step has a budget of tokens. Requests that decode take their positions first: their last token
and k drafts each. Prompts take the rest in chunks, in order of arrival, while there is a place among `seats`. The step that
ends a prompt yields its first token. A `StepTimer` gives the duration of a step (`validation.step_clocks`).

Every request has an acceptance level of its own, so that its tokens resemble each other; lengths are lognormal. There is no
KV pool: nothing is preempted.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, gammaincinv, ndtri

from breakeven.tiers import Schedule

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LONGEST_DRAFT = 16
_REQUESTS, _STEPS, _ARRIVALS = range(3)

_SPREAD = 0.7548776662466927, 0.5698402909980532
"""Powers of 1/1.3247 (x^3 = x + 1): with an even grid, their multiples less whole numbers fill a cube evenly."""


class StepTimer(Protocol):
    """Durations of steps."""

    def step_s(self, decoding: int, k: int, context: float, prompt: int) -> float:
        """Duration (s) of a step.

        Args:
            decoding: requests that decode.
            k: positions drafted for each of them.
            context: tokens of context of all of them together.
            prompt: prompt tokens in the step.
        """
        ...


@dataclass(frozen=True, slots=True)
class BatchingMachine:
    """An engine's limits and speed.

    Attributes:
        clock: duration of its steps.
        seats: max_num_seqs, requests in the batch.
        budget: max_num_batched_tokens of a step; at least seats*(k + 1), so that all that decode fit.
    """

    clock: StepTimer
    seats: int
    budget: int


@dataclass(frozen=True, slots=True)
class Asking:
    """Lengths and acceptance of requests.

    Attributes:
        prompt_tokens, output_tokens: their means.
        prompt_cv, output_cv: standard deviation over mean; 0: all of one length.
        acceptance: mean over requests of the share of first drafts that are accepted; 0 to 1, both excluded.
        concentration: of the beta distribution that levels are drawn from; the smaller, the more requests differ.
        decay: how acceptance falls with depth: draft i of a step is accepted with level*exp(-decay*(i - 1)).
    """

    prompt_tokens: float
    output_tokens: float
    prompt_cv: float = 0.5
    output_cv: float = 1.0
    acceptance: float = 0.7
    concentration: float = 8.0
    decay: float = 0.02


@dataclass(frozen=True, slots=True)
class Asked:
    """Drawn requests.

    Attributes:
        prompts, outputs: tokens, shape (requests,).
        accepted: drafts that each coming step would accept if it drafted without end; those of request i begin at first[i],
            one for each of its output tokens after the first.
        first: shape (requests,).
    """

    prompts: Ints
    outputs: Ints
    accepted: Ints
    first: Ints

    def steps(self, k: int) -> Ints:
        """Decode steps of every request at a draft length, shape (requests,)."""
        if not k:
            return self.outputs - 1
        gains = np.minimum(self.accepted, k) + 1
        made = np.concatenate([[0], gains.cumsum()])
        need = made[self.first] + self.outputs - 1
        return np.searchsorted(made, need, side="left") - self.first

    def survival(self, k: int, steps: Ints, counted: NDArray[np.bool_]) -> Floats:
        """Share of steps whose first i drafts were accepted, for i = 1 to k, over the requests that count."""
        ends = np.zeros(self.accepted.size + 1, dtype=np.int64)
        np.add.at(ends, self.first[counted], 1)
        np.add.at(ends, self.first[counted] + steps[counted], -1)
        taken = self.accepted[ends[:-1].cumsum() > 0]
        return np.array([float(np.mean(taken >= i)) for i in range(1, k + 1)])


def drawn(asking: Asking, count: int, seed: int) -> Asked:
    """Draw requests; equal seeds give equal lengths whatever the acceptance is.

    Lengths and levels fill their distributions evenly, in random order: the mean work of few requests is that of many.
    """
    random = np.random.default_rng([seed, _REQUESTS])
    order = random.permutation(count)
    rounding = random.random((2, count))
    output = np.asarray((order + 0.5) / count, dtype=np.float64)
    level, prompt = (np.asarray((order * step + random.random()) % 1.0, dtype=np.float64) for step in _SPREAD)
    prompts = _lengths(asking.prompt_tokens, asking.prompt_cv, prompt, rounding[0])
    outputs = _lengths(asking.output_tokens, asking.output_cv, output, rounding[1])
    levels: Floats = betaincinv(
        asking.acceptance * asking.concentration, (1.0 - asking.acceptance) * asking.concentration, level
    )
    first = np.concatenate([[0], (outputs - 1).cumsum()])
    slope = np.repeat(-np.log(np.clip(levels, 1e-6, 1.0 - 1e-6)), outputs - 1) - 0.5 * asking.decay
    until = np.random.default_rng([seed, _STEPS]).exponential(size=int(first[-1]))
    if asking.decay:
        deep = (np.sqrt(slope**2 + 2.0 * asking.decay * until) - slope) / asking.decay
    else:
        deep = until / slope
    return Asked(prompts, outputs, np.minimum(deep, LONGEST_DRAFT).astype(np.int64), first[:-1])


def _lengths(mean: float, cv: float, quantiles: Floats, rounding: Floats) -> Ints:
    if not cv:
        return np.full(quantiles.size, round(mean), dtype=np.int64)
    lengths: Floats = np.exp(math.sqrt(math.log1p(cv * cv)) * ndtri(quantiles))
    lengths *= mean / lengths.mean()
    # A length is rounded up as often as its fraction says, so that the mean stays.
    return np.maximum(np.floor(lengths + rounding), 1.0).astype(np.int64)


def arrivals(rate_rps: float, count: int, seed: int, cv: float = 1.0, *, mirrored: bool = False) -> Floats:
    """Moments of arrival (s): gaps of a gamma distribution of this cv; 1 is Poisson, 0 even.

    Mirrored ones have long gaps where the others of this seed have short ones: the mean of the two strays less.
    """
    if not cv:
        return np.arange(1, count + 1) / rate_rps
    quantiles = np.random.default_rng([seed, _ARRIVALS]).random(count)
    quantiles = 1.0 - quantiles if mirrored else quantiles
    shape = 1.0 / (cv * cv)
    gaps = -np.log1p(-quantiles) if shape == 1.0 else gammaincinv(shape, quantiles) / shape
    return np.asarray(gaps.cumsum() / rate_rps, dtype=np.float64)


@dataclass(slots=True)
class ServedCourse:
    """The moments of every request.

    Attributes:
        arrival_s, first_s, done_s: moments of arrival, first token and end; NaN: not reached.
        steps: decode steps, shape (requests,).
        busy_s: time spent in steps.
        turns: steps of the engine.
    """

    arrival_s: Floats
    first_s: Floats
    done_s: Floats
    steps: Ints
    busy_s: float = 0.0
    turns: int = 0


def served(
    machine: BatchingMachine, drafts: int | Schedule, asked: Asked, load: Floats | int
) -> ServedCourse:
    """Serve requests: at moments of arrival, or from clients that each send the next one when theirs is answered.

    Args:
        machine: the engine.
        drafts: draft length, or one per number of requests in the batch.
        asked: the requests, in order.
        load: moments of arrival (s), ascending; or the number of clients.

    Raises:
        ValueError: a full batch would not fit into a step.
    """
    longest = drafts if isinstance(drafts, int) else drafts.num_speculative_tokens
    if machine.budget < machine.seats * (longest + 1):
        raise ValueError(f"budget {machine.budget}: below {machine.seats} seats of {longest + 1} positions")
    run = _Serving(machine, drafts, asked, load)
    while run.turn():
        pass
    return run.course()


@dataclass(slots=True)
class _Under:
    """A request that decodes under a schedule: since which turn at which draft length, and what it then lacked."""

    turn: int
    k: int
    position: int
    left: int


class _Serving:
    """Requests being served: what decodes, what is prefilled, and who waits."""

    def __init__(
        self, machine: BatchingMachine, drafts: int | Schedule, asked: Asked, load: Floats | int
    ) -> None:
        self._step_s, self._seats, self._budget = machine.clock.step_s, machine.seats, machine.budget
        self._asked, self._count = asked, asked.prompts.size
        self._schedule = drafts if isinstance(drafts, Schedule) else None
        self._k = drafts.at(1) if isinstance(drafts, Schedule) else drafts
        self._steps: list[int] = [0] * self._count if self._schedule else asked.steps(self._k).tolist()
        self._prompts: list[int] = asked.prompts.tolist()
        self._outputs: list[int] = asked.outputs.tolist()
        self._closed = isinstance(load, int)
        self._arrival = [0.0] * min(load, self._count) if isinstance(load, int) else load.tolist()
        self._first, self._done = [math.nan] * self._count, [math.nan] * self._count
        self._ends: list[tuple[int, int]] = []  # (turn after which it is answered, request)
        self._chunks: list[list[int]] = []  # [request, prompt tokens left]
        self._growth = [0.0] * self._count  # tokens of context that a request adds in a step
        self._under: dict[int, _Under] = {}
        self._now, self._busy, self._turns, self._next = 0.0, 0.0, 0, 0
        self._context, self._grows = 0.0, 0.0

    def course(self) -> ServedCourse:
        """The moments so far."""
        return ServedCourse(
            np.array(self._arrival),
            np.array(self._first),
            np.array(self._done),
            np.array(self._steps, dtype=np.int64),
            self._busy,
            self._turns,
        )

    def turn(self) -> bool:
        """Do one step with prompts, or all steps until something changes; False when nothing is left."""
        running = len(self._ends) + len(self._chunks)
        if not running:
            if self._next == len(self._arrival):
                return False
            self._now = max(self._now, self._arrival[self._next])
        may_join = running < self._seats and self._next < len(self._arrival)
        joins = may_join and self._arrival[self._next] <= self._now
        if self._schedule and self._schedule.at(running + joins) != self._k:
            self._redraft(self._schedule.at(running + joins))
        if self._chunks or joins:
            shares = self._with_prompts(running)
        else:
            shares = []
            self._decode(self._arrival[self._next] - self._now if may_join else math.inf)
        self._answer()
        self._begin_decoding(shares)
        if not self._ends:
            self._context = self._grows = 0.0
        return True

    def _with_prompts(self, running: int) -> list[list[int]]:
        """One step with prompts; those that it took."""
        room = self._budget - len(self._ends) * (self._k + 1)
        shares, prompt = [], 0
        for one in self._chunks:
            if room <= 0:
                break
            share = min(one[1], room)
            one[1] -= share
            room -= share
            prompt += share
            shares.append(one)
        while room > 0 and running < self._seats and self._next < len(self._arrival):
            if self._arrival[self._next] > self._now:
                break
            share = min(self._prompts[self._next], room)
            one = [self._next, self._prompts[self._next] - share]
            self._chunks.append(one)
            shares.append(one)
            room -= share
            prompt += share
            running += 1
            self._next += 1
        self._pass(1, self._step_s(len(self._ends), self._k, self._context, prompt))
        return shares

    def _decode(self, wait_s: float) -> None:
        """All steps until the next answer; after an arrival only the one that is under way then."""
        turns = self._ends[0][0] - self._turns
        took = self._decoding_s(turns)
        if wait_s < took:
            turns = min(turns, max(math.ceil(turns * wait_s / took), 1))
            took = self._decoding_s(turns)
            # Steps grow with the context, so that more of them fit than the mean of all says.
            while took < wait_s:
                turns += 1
                took = self._decoding_s(turns)
        self._pass(turns, took)

    def _decoding_s(self, turns: int) -> float:
        """Duration of the coming steps; context grows evenly, so that the one in the middle is their mean."""
        middle = self._context + 0.5 * self._grows * (turns - 1)
        return turns * self._step_s(len(self._ends), self._k, middle, 0)

    def _pass(self, turns: int, took_s: float) -> None:
        self._turns += turns
        self._now += took_s
        self._busy += took_s
        self._context += self._grows * turns

    def _answer(self) -> None:
        """Let those go whose last step is done."""
        while self._ends and self._ends[0][0] <= self._turns:
            _, i = heapq.heappop(self._ends)
            self._context -= self._prompts[i] + self._outputs[i]
            self._grows -= self._growth[i]
            self._finish(i)
            self._under.pop(i, None)

    def _finish(self, i: int) -> None:
        self._done[i] = self._now
        if self._closed and len(self._arrival) < self._count:
            self._arrival.append(self._now)

    def _begin_decoding(self, shares: list[list[int]]) -> None:
        """Give those their first token whose prompts are done."""
        for one in shares:
            i, left = one
            if left:
                continue
            self._chunks.remove(one)
            self._first[i] = self._now
            if self._outputs[i] == 1:
                self._finish(i)
                continue
            self._context += self._prompts[i] + 1
            if self._schedule:
                start = int(self._asked.first[i])
                self._under[i] = _Under(self._turns, self._k, start, self._outputs[i] - 1)
                self._steps[i] = self._needed(i)
            self._growth[i] = (self._outputs[i] - 1) / self._steps[i]
            self._grows += self._growth[i]
            heapq.heappush(self._ends, (self._turns + self._steps[i], i))

    def _needed(self, i: int) -> int:
        """Steps that a request still needs at its present draft length."""
        one = self._under[i]
        gains = np.minimum(self._asked.accepted[one.position : one.position + one.left], one.k) + 1
        return int(np.searchsorted(gains.cumsum(), one.left)) + 1

    def _redraft(self, k: int) -> None:
        """Plan all that decode for another draft length from here."""
        self._k = k
        planned = []
        for end, i in self._ends:
            one = self._under[i]
            gone = self._turns - one.turn
            taken = self._asked.accepted[one.position : one.position + gone]
            made = int(np.minimum(taken, one.k).sum()) + gone
            self._context += made - self._growth[i] * gone
            self._under[i] = _Under(self._turns, k, one.position + gone, one.left - made)
            need = self._needed(i)
            self._steps[i] += need - (end - self._turns)
            self._growth[i] = (one.left - made) / need
            planned.append((self._turns + need, i))
        self._ends = planned
        heapq.heapify(self._ends)
        self._grows = sum(self._growth[i] for _, i in self._ends)
