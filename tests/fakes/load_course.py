"""An engine through a course of load: what its page counts at every scrape, by discrete events.

Every request in flight slows every other one, and its first token comes after a share of its work: until then it runs, and
has begun by no counter. That is what an overload and its drain look like on vLLM's page, and what a steady page cannot show.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from breakeven.serving.promql import COUNTED, RUNNING, WAITING
from fakes.held_series import SeriesStore

_PREFILL = 0.2
"""Share of a request's work before its first token: of 179 in flight some 36 have none."""


class CoursePart(NamedTuple):
    """A rate of Poisson arrivals (1/s), and for how long (s)."""

    rps: float
    lasts_s: float


class _Request(NamedTuple):
    came_s: float
    mark: float
    """Progress of the engine at which it came: it is done one request's work later."""


@dataclass(frozen=True)
class LoadCourse:
    """Scrapes of one engine.

    Attributes:
        times_s: of the scrapes (Unix time). counts: of each statistic at each of them; running among them.
        came_at_s: moments at which requests came, ascending.
    """

    times_s: Sequence[float]
    counts: Mapping[str, Sequence[float]]
    came_at_s: np.ndarray

    def scraped(self, store: SeriesStore, labels: Mapping[str, str], now_s: float, back_s: float) -> None:
        """Put the scrapes of some time until now into a store."""
        first, end = (bisect_right(self.times_s, at_s) for at_s in (now_s - back_s, now_s))
        times_s, own = self.times_s[first:end], {**labels, "engine": "0"}
        store.of("up", {k: v for k, v in labels.items() if k != "model_name"}).extend(
            times_s, [1.0] * len(times_s)
        )
        for stat, values in self.counts.items():
            name = RUNNING if stat == "running" else COUNTED[stat].name
            store.of(f"vllm:{name}", own).extend(times_s, values[first:end])
        # vLLM has no place in the queue for a request that its batch has room for.
        store.of(f"vllm:{WAITING}", own).extend(times_s, [0.0] * len(times_s))

    def running(self, at_s: float) -> float:
        """Requests in the engine at a time."""
        return self.counts["running"][bisect_right(self.times_s, at_s) - 1]


def played(
    law_s: tuple[float, float],
    stretches: Sequence[CoursePart],
    begins_s: float,
    *,
    seed: int = 0,
    scrape_s: float = 5.0,
    patience_s: float = math.inf,
    tokens: tuple[float, float, float] = (200.0, 100.0, 2.5),
) -> LoadCourse:
    """Play a course of load.

    Args:
        law_s: C1 and C2.
        stretches: of the load, one after the other.
        begins_s: Unix time.
        seed: of the arrivals.
        scrape_s: time between two scrapes.
        patience_s: after which a client leaves: its request is in no series of finished ones.
        tokens: of a prompt, of an answer, and of a step.
    """
    arrivals = _arrivals(stretches, np.random.default_rng(seed))
    engine = _Engine(*law_s, patience_s)
    lasts_s = sum(one.lasts_s for one in stretches)
    times_s = np.arange(0.0, lasts_s, scrape_s)
    rows, coming = [], deque(arrivals.tolist())
    for at_s in times_s.tolist():
        while coming and coming[0] <= at_s:
            engine.go_on(coming[0])
            engine.take(coming.popleft())
        engine.go_on(at_s)
        rows.append(engine.page(*tokens))
    counts = {stat: [row[stat] for row in rows] for stat in rows[0]}
    return LoadCourse((begins_s + times_s).tolist(), counts, begins_s + arrivals)


def _arrivals(stretches: Sequence[CoursePart], random: np.random.Generator) -> np.ndarray:
    begins_s, found = 0.0, []
    for one in stretches:
        number = random.poisson(one.rps * one.lasts_s)
        found.append(begins_s + np.sort(random.uniform(0.0, one.lasts_s, number)))
        begins_s += one.lasts_s
    return np.concatenate(found)


class _Engine:
    """Requests of equal work: each gets 1 / (C1 + (j - 1) C2) of it done per second with j in flight."""

    def __init__(self, c1_s: float, c2_s: float, patience_s: float) -> None:
        self._law, self._patience_s = (c1_s, c2_s), patience_s
        self._now_s = self._progress = 0.0
        self._prefilling: deque[_Request] = deque()
        self._decoding: deque[_Request] = deque()
        self._started = self._completed = 0
        self._ttft_s = self._e2e_s = self._decoding_s = self._tokens = 0.0

    def take(self, came_s: float) -> None:
        """A request comes."""
        self._prefilling.append(_Request(came_s, self._progress))

    def go_on(self, until_s: float) -> None:
        """Everything that happens until a time."""
        while self._now_s < until_s:
            inflight = len(self._prefilling) + len(self._decoding)
            c1_s, c2_s = self._law
            pace = 1.0 / (c1_s + (inflight - 1) * c2_s) if inflight else 0.0
            first = self._until(self._prefilling, _PREFILL, pace)
            last = self._until(self._decoding, 1.0, pace)
            oldest = (self._decoding or self._prefilling or (None,))[0]
            leaves = math.inf if oldest is None else oldest.came_s + self._patience_s - self._now_s
            step_s = max(min(first, last, leaves, until_s - self._now_s), 0.0)
            self._now_s += step_s
            self._progress += pace * step_s
            self._decoding_s += len(self._decoding) * step_s
            self._tokens += len(self._decoding) * pace * step_s / (1.0 - _PREFILL)
            if step_s == until_s - (self._now_s - step_s) < min(first, last, leaves):
                self._now_s = until_s
            elif leaves <= min(first, last):
                (self._decoding or self._prefilling).popleft()
            elif last <= first:
                self._e2e_s += self._now_s - self._decoding.popleft().came_s
                self._completed += 1
            else:
                begun = self._prefilling.popleft()
                self._decoding.append(begun)
                self._started += 1
                self._ttft_s += self._now_s - begun.came_s

    def _until(self, requests: deque[_Request], work: float, pace: float) -> float:
        """Time (s) until the first of some requests has done so much work."""
        return max(requests[0].mark + work - self._progress, 0.0) / pace if requests else math.inf

    def page(self, prompt: float, answer: float, step: float) -> dict[str, float]:
        """Figures of the page now."""
        generated = self._started + (answer - 1.0) * self._tokens
        return {
            "running": float(len(self._prefilling) + len(self._decoding)),
            "completed": self._completed,
            "started": self._started,
            "ttft_s": self._ttft_s,
            "e2e_s": self._e2e_s,
            "e2e_n": self._completed,
            "generated": generated,
            "steps": (answer - 1.0) * self._tokens / step,
            "step_s": self._decoding_s,
            "prompt_tokens": prompt * self._completed,
            "prompt_n": self._completed,
            "output_tokens": answer * self._completed,
            "output_n": self._completed,
        }
