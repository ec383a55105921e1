"""Runs of an engine whose steady state is known: processor sharing in which a request among n others takes C1 + n*C2.

By the law (`breakeven.laws.latency`) a rate R of Poisson arrivals gives the mean latency C1/(1 - R*C2), whatever the
lengths, and C clients give C1 + (C - 1)*C2.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

C1_S, C2_S = 1.0, 0.1
"""Seconds of a request alone, and for each other one in flight."""


@dataclass(frozen=True)
class PlayedRun:
    """Each request's begin, latency (s) and output tokens, in the order of sending."""

    starts_s: list[float]
    latencies_s: list[float]
    tokens: list[int]

    @property
    def mean_latency_s(self) -> float:
        """Mean over all requests."""
        return sum(self.latencies_s) / len(self.latencies_s)

    @property
    def answered_rps(self) -> float:
        """Requests over the time from the first's begin to the last's end, as tools count it."""
        ends = [start + latency for start, latency in zip(self.starts_s, self.latencies_s, strict=True)]
        return len(ends) / (max(ends) - self.starts_s[0])


class _Engine:
    """Requests in flight progress at one pace, so one clock of progress serves all: it runs at 1/(C1 + (n - 1)*C2)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._progress = 0.0
        self._ends: list[tuple[float, int]] = []
        self.now_s = 0.0
        self.run = PlayedRun([], [], [])

    def send(self) -> None:
        """Take a request of 10 to 190 tokens."""
        tokens = self._rng.randint(10, 190)
        heapq.heappush(self._ends, (self._progress + tokens / 100.0, len(self.run.starts_s)))
        self.run.starts_s.append(self.now_s)
        self.run.latencies_s.append(0.0)
        self.run.tokens.append(tokens)

    @property
    def next_end_s(self) -> float:
        """When the next answer ends; never if nothing is in flight."""
        if not self._ends:
            return float("inf")
        return self.now_s + (self._ends[0][0] - self._progress) * self._step_s

    @property
    def _step_s(self) -> float:
        return C1_S + (len(self._ends) - 1) * C2_S

    def until(self, moment_s: float) -> None:
        """Let time pass in which no answer ends."""
        if self._ends:
            self._progress += (moment_s - self.now_s) / self._step_s
        self.now_s = moment_s

    def answer(self) -> None:
        """Let time pass until the next answer ends."""
        moment_s = self.next_end_s
        self.until(moment_s)
        _, number = heapq.heappop(self._ends)
        self.run.latencies_s[number] = moment_s - self.run.starts_s[number]


def open_loop(
    requests: int, rate_at: Callable[[float], float], seed: int, *, even: bool = False
) -> PlayedRun:
    """Poisson or even arrivals at a rate that may change.

    Args:
        requests: how many.
        rate_at: rate (1/s) by the time (s).
        seed: of arrivals and lengths.
        even: whether the gaps are all the same.
    """
    rng = random.Random(seed)
    engine = _Engine(rng)
    due_s = 0.0
    while len(engine.run.starts_s) < requests:
        while engine.next_end_s <= due_s:
            engine.answer()
        engine.until(due_s)
        engine.send()
        due_s += (1.0 if even else rng.expovariate(1.0)) / rate_at(due_s)
    return _emptied(engine)


def closed_loop(requests: int, clients: int, seed: int) -> PlayedRun:
    """Clients that ask again when they are answered, until all requests are sent."""
    engine = _Engine(random.Random(seed))
    for _ in range(clients):
        engine.send()
    while len(engine.run.starts_s) < requests:
        engine.answer()
        engine.send()
    return _emptied(engine)


def _emptied(engine: _Engine) -> PlayedRun:
    while engine.next_end_s < float("inf"):
        engine.answer()
    return engine.run
