"""Pasts of fleets with known laws: days of the second engine as a Prometheus would have scraped them, in five kinds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from validation.judged_engines import JudgedEngine
from validation.second_engine import Asked, Asking, Floats, arrivals, drawn, served

DAY_S, HOUR_S = 86_400, 3_600
SCRAPE_S = 30
NAMESPACE, DEPLOYMENT, MODEL = "llm", "chat", "m"
_OLD, _NEW = f"{DEPLOYMENT}-7d9f8b6c5d", f"{DEPLOYMENT}-64bd5fcf9"
_PART_H = 2
"""Hours that are served at a time: tokens of all their requests are held at once."""
_FILLING_H = 1
"""Hours before them whose requests are served and not counted: a queue that begins empty is shorter than the one that goes on."""


class PastOf(StrEnum):
    """The five kinds of past."""

    TWO_ARMS = "two arms on different days"
    ONE_ARM = "one arm only"
    DRIFT = "acceptance that drifts"
    HOURS = "lengths that follow the hour"
    HALF_WAY = "pods of two ages"


@dataclass(frozen=True, slots=True)
class ScrapedPod:
    """Samples of one pod.

    Attributes:
        name: of the pod.
        k: its draft length.
        times_s: Unix times of its scrapes, shape (scrapes,).
        values: by name without prefix, each of that shape.
        accepted: likewise by position.
    """

    name: str
    k: int
    times_s: Floats
    values: Mapping[str, Floats]
    accepted: Mapping[int, Floats]


@dataclass(frozen=True, slots=True)
class MadePast:
    """A past and what is true of it.

    Attributes:
        kind: which of the five.
        pods: samples of all pods.
        end_s: its end, Unix time.
        days: its length.
    """

    kind: PastOf
    pods: tuple[ScrapedPod, ...]
    end_s: int
    days: int


def made_past(
    engine: JudgedEngine, kind: PastOf, k: int, highest_rps: float, end_s: int, days: int = 6, seed: int = 0
) -> MadePast:
    """Make a past that ends now.

    Args:
        engine: of every pod.
        kind: which of the five.
        k: draft length of the other arm.
        highest_rps: rate of a pod at the busiest hour.
        end_s: its end, Unix time; a whole hour.
        days: its length.
        seed: of everything that is random.
    """
    begin_s, half_s = end_s - days * DAY_S, end_s - days // 2 * DAY_S
    traffic = _Users(engine, kind, highest_rps, begin_s, end_s, half_s, seed)
    old_a, other = _Life(f"{_OLD}-b2c4d", 0, begin_s, half_s), _Life(f"{_NEW}-b2c4d", k, half_s, end_s)
    whole = old_a._replace(last_s=end_s)
    lives = {
        PastOf.TWO_ARMS: [old_a, other],
        PastOf.ONE_ARM: [whole],
        PastOf.HALF_WAY: [whole, old_a._replace(name=f"{_OLD}-c2d4f"), other],
    }.get(kind, [old_a, other])
    pods = tuple(traffic.pod(life, number) for number, life in enumerate(lives))
    return MadePast(kind, pods, end_s, days)


class _Life(NamedTuple):
    """A pod, its draft length, and the times (s) between which it lives."""

    name: str
    k: int
    first_s: int
    last_s: int


@dataclass(frozen=True, slots=True)
class _Users:
    """Requests of the users of one pod, by the hour."""

    engine: JudgedEngine
    kind: PastOf
    highest_rps: float
    begin_s: int
    end_s: int
    half_s: int
    seed: int

    def rate_rps(self, at_s: float) -> float:
        """Low at night, high by day, and other from day to day."""
        day, hour = divmod((at_s - self.begin_s) / HOUR_S, 24.0)
        share = 0.1 + 0.9 * (1.0 - math.cos(math.pi * hour / 12.0)) / 2.0
        return self.highest_rps * share * (1.0 + 0.1 * math.sin(2.1 * day))

    def asking(self, at_s: float) -> Asking:
        """Lengths and acceptance of an hour."""
        own = self.engine.asking
        if self.kind is PastOf.DRIFT:
            share = min(max((at_s - self.half_s) / (self.end_s - self.half_s), 0.0), 1.0)
            return replace(own, acceptance=min(own.acceptance * (1.25 - 0.5 * share), 0.95))
        if self.kind is PastOf.HOURS:
            busy = self.rate_rps(at_s) / self.highest_rps
            return replace(own, output_tokens=own.output_tokens * (0.75 + 0.5 * busy))
        return own

    def pod(self, life: _Life, number: int) -> ScrapedPod:
        """Scrapes of a pod."""
        name, k, first_s, last_s = life
        parts = [
            _Part.of(self.engine, k, self.asking(at_s + HOUR_S / 2), self.rate_rps(at_s + HOUR_S / 2), at_s, [self.seed, number, at_s])
            for at_s in range(first_s, last_s, _PART_H * HOUR_S)
        ]  # fmt: skip
        # Pods are not scraped in step.
        times_s = np.arange(first_s + SCRAPE_S + number % SCRAPE_S, last_s + 1, SCRAPE_S, dtype=float)
        values: dict[str, Floats] = {}
        accepted: dict[int, Floats] = {}
        for part in parts:
            for stat, seen in part.counted(times_s):
                values[stat] = values.get(stat, 0.0) + seen
            for position, seen in enumerate(part.accepted(times_s)):
                accepted[position] = accepted.get(position, 0.0) + seen
        seats = float(self.engine.machine.seats)
        inflight = values.pop("inflight")
        values["num_requests_running"] = np.minimum(inflight, seats)
        values["num_requests_waiting"] = np.maximum(inflight - seats, 0.0)
        return ScrapedPod(name, k, times_s, values, accepted)


@dataclass(frozen=True, slots=True)
class _Part:
    """Requests of some hours, served: moments (s), tokens and steps of each, and its drafts accepted by position."""

    arrival_s: Floats
    first_s: Floats
    done_s: Floats
    prompts: Floats
    outputs: Floats
    steps: Floats
    k: int
    survived: Floats

    @classmethod
    def of(
        cls, engine: JudgedEngine, k: int, asking: Asking, rate_rps: float, begin_s: int, seed: list[int]
    ) -> _Part:
        """Serve the requests that come in `_PART_H` hours at one rate, to an engine that others keep busy before."""
        own = int(np.random.default_rng(seed).integers(1 << 31))
        filling_s, whole_s = _FILLING_H * HOUR_S, (_FILLING_H + _PART_H) * HOUR_S
        count = max(round(1.1 * rate_rps * whole_s) + 50, 10)
        moments = arrivals(rate_rps, count, own)
        moments = moments[moments < whole_s]
        asked = drawn(asking, max(moments.size, 1), own)
        course = served(engine.machine, k, asked, moments)
        kept = course.arrival_s >= filling_s
        empty_s = begin_s - filling_s
        arrival_s, first_s, done_s = (
            empty_s + each[kept] for each in (course.arrival_s, course.first_s, course.done_s)
        )
        prompts, outputs, steps = (
            each[kept].astype(float) for each in (asked.prompts, asked.outputs, course.steps)
        )
        survived = _survived(asked, course.steps, k)[:, kept]
        return cls(arrival_s, first_s, done_s, prompts, outputs, steps, k, survived)

    def counted(self, times_s: Floats) -> Iterator[tuple[str, Floats]]:
        """Counters and requests in flight at some times."""
        done, begun = _at(self.done_s, times_s), _at(self.first_s, times_s)
        took = self.done_s - self.arrival_s
        yield "request_success_total", done(np.ones_like(took))
        yield "e2e_request_latency_seconds_count", done(np.ones_like(took))
        yield "e2e_request_latency_seconds_sum", done(took)
        yield "request_prompt_tokens_count", done(np.ones_like(took))
        yield "request_prompt_tokens_sum", done(self.prompts)
        yield "request_generation_tokens_count", done(np.ones_like(took))
        yield "request_generation_tokens_sum", done(self.outputs)
        yield "time_to_first_token_seconds_count", begun(np.ones_like(took))
        yield "time_to_first_token_seconds_sum", begun(self.first_s - self.arrival_s)
        steps = self._decoded(self.steps, times_s)
        yield (
            "generation_tokens_total",
            begun(np.ones_like(took)) + self._decoded(self.outputs - 1.0, times_s),
        )
        yield "inter_token_latency_seconds_count", steps
        yield "inter_token_latency_seconds_sum", self._decoded(self.done_s - self.first_s, times_s)
        yield "inflight", _at(self.arrival_s, times_s)(np.ones_like(took)) - done(np.ones_like(took))
        if self.k:
            yield "spec_decode_num_drafts_total", steps
            yield "spec_decode_num_draft_tokens_total", self.k * steps

    def accepted(self, times_s: Floats) -> Iterator[Floats]:
        """Drafts accepted at each position until some times."""
        return (self._decoded(one, times_s) for one in self.survived)

    def _decoded(self, amounts: Floats, times_s: Floats) -> Floats:
        """Part of each request's amount that was made by some times: evenly from its first token to its end, summed."""
        lasting = np.maximum(self.done_s - self.first_s, 1e-9)
        each = amounts / lasting
        begun, done = _at(self.first_s, times_s), _at(self.done_s, times_s)
        base = float(self.arrival_s[0]) if self.arrival_s.size else 0.0
        rising = begun(each) * (times_s - base) - begun(each * (self.first_s - base))
        return np.asarray(rising - done(each) * (times_s - base) + done(each * (self.done_s - base)))


class _at:  # noqa: N801 - reads as a function of moments
    """Sums over the requests whose moment has come, at some times."""

    def __init__(self, moments_s: Floats, times_s: Floats) -> None:
        self._order = np.argsort(moments_s)
        self._places = np.searchsorted(moments_s[self._order], times_s, side="right")

    def __call__(self, amounts: Floats) -> Floats:
        return np.concatenate([[0.0], amounts[self._order].cumsum()])[self._places]


def _survived(asked: Asked, steps: np.ndarray[tuple[int, ...], np.dtype[np.int64]], k: int) -> Floats:
    """Drafts of each request accepted at each position, shape (k, requests)."""
    found = np.zeros((k, steps.size))
    for position in range(k):
        made = np.concatenate([[0], (asked.accepted > position).cumsum()])
        found[position] = made[asked.first + steps] - made[asked.first]
    return found
