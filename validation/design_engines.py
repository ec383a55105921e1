"""A family of engines on the event clock, and points measured on them as the load driver measures on a real one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.laws.arrays import FloatArray
from breakeven.load_driver.measuring import MeasuredWindow, residual_lengths, send_offsets
from breakeven.load_driver.next_point import Purchase
from breakeven.load_driver.window import RequestRecord, summarise
from breakeven.points.point import ImposedLoad, LoadMode, Point
from breakeven.points.quality import FEWEST_GENERATIONS
from breakeven.serving.counted_window import Load
from breakeven_sim.engine.configuration import DraftLengths, EngineConfig, StepClock
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.costs import (
    DEFAULT_GPU,
    DraftTime,
    EngineCosts,
    Experts,
    Method,
    StepTime,
    Text,
    default_document,
)
from breakeven_sim.engine.drafting import DraftedText, TextSource
from breakeven_sim.engine.requests import Request

PROMPT_TOKENS, OUTPUT_TOKENS = 256, 128
METHOD = "eagle3"
DRAFT_LENGTHS = tuple(range(1, 11))
_POOL_TOKENS, _BATCHED_TOKENS = 450_000, 8192
_HOPELESS = 400
"""Requests in flight at which an open loop counts as saturated."""


class Kind(StrEnum):
    """Properties that set an engine apart."""

    DENSE = "dense"
    FLAT = "flat drafter"
    EXPERTS = "experts"
    KNEE = "knee"
    NEVER = "never pays"
    ALWAYS = "always pays"


class KneeClock(StepClock):
    """Arithmetic runs beside reading weights, not behind it: a step takes the longer of the two."""

    def __init__(self, costs: EngineCosts, method: str | None, longest: int) -> None:
        super().__init__(costs, method, longest)
        self._step = costs.step

    def _hidden_s(self, tokens: FloatArray) -> FloatArray:
        return np.asarray(np.minimum(self._step.base_s, self._step.per_token_s * tokens))

    def drafts_s(self, requests: int, drafted: NDArray[np.int64]) -> FloatArray:
        """Time (s) that drafted tokens add to steps: what of their arithmetic is not hidden."""
        tokens = np.asarray(drafted + requests, dtype=float)
        hidden_s = self._hidden_s(tokens) - self._hidden_s(np.asarray(float(requests)))
        return np.asarray(super().drafts_s(requests, drafted) - hidden_s)

    def seconds(self, k: int, requests: int, drafted: int, context: int, prompt_tokens: int) -> float:
        """One step of `requests` decoding requests."""
        hidden_s = float(self._hidden_s(np.asarray(float(requests + drafted))))
        return super().seconds(k, requests, drafted, context, prompt_tokens) - hidden_s


def costs_of(kind: Kind, seed: int) -> EngineCosts:
    """Costs and acceptance of one engine; every number varies by about a fifth with the seed."""
    random = np.random.default_rng([seed, list(Kind).index(kind)])

    def about(value: float, spread: float = 0.2) -> float:
        return float(value * math.exp(spread * random.uniform(-1.0, 1.0)))

    step = StepTime(
        base_s=about(0.011),
        per_token_s=about(2.2e-4),
        per_kv_token_s=about(7.7e-8),
        per_prefill_token_s=about(5e-5),
    )
    draft = DraftTime(flat_s=about(0.0009), per_position_s=about(0.0006))
    text = Text(
        easy_rate=1.0, hard_rate=min(about(0.58, 0.12), 0.95), easy_share=about(0.15), depth_decay=0.02
    )
    if kind is Kind.FLAT:
        draft = DraftTime(flat_s=about(0.003))
        step = step.model_copy(update={"per_token_s": about(1.2e-4)})
    if kind is Kind.EXPERTS:
        changes = {
            "base_s": about(0.004),
            "experts": Experts(all_s=about(0.012), share_per_token=8 / 128),
            "per_token_s": about(1.2e-4),
        }
        step = step.model_copy(update=changes)
    if kind is Kind.KNEE:
        step = step.model_copy(update={"per_token_s": about(3e-4)})
    if kind is Kind.NEVER:
        text = Text(easy_rate=about(0.3), hard_rate=about(0.05), easy_share=about(0.2), depth_decay=0.02)
    if kind is Kind.ALWAYS:
        changes = {
            "per_token_s": about(8e-6),
            "per_kv_token_s": about(9e-7),
            "per_prefill_token_s": about(1e-5),
        }
        step = step.model_copy(update=changes)
    shipped = default_document().for_gpu(DEFAULT_GPU, "shipped costs")
    return shipped.model_copy(update={"step": step, "methods": {METHOD: Method(draft=draft, text=text)}})


@dataclass
class Machine:
    """One engine of the family, any arm of which can be started."""

    kind: Kind
    seed: int
    _texts: dict[int, DraftedText] = field(default_factory=dict)

    @cached_property
    def _costs(self) -> EngineCosts:
        return costs_of(self.kind, self.seed)

    @cached_property
    def _source(self) -> TextSource:
        return TextSource(self._costs.method(METHOD).text, self.seed)

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """No speculation and every draft length."""
        return (NO_SPECULATION, *(Arm(METHOD, k) for k in DRAFT_LENGTHS))

    def engine(self, arm: Arm) -> Engine:
        """The engine, started."""
        method = METHOD if arm.k else None
        clock = KneeClock if self.kind is Kind.KNEE else StepClock
        times, limits = clock(self._costs, method, arm.k), (1024, _BATCHED_TOKENS, _POOL_TOKENS)
        return Engine(EngineConfig(times, DraftLengths(arm.k), *limits, method))

    def request(self, arm: Arm, number: int, arrival_s: float, output_tokens: int = OUTPUT_TOKENS) -> Request:
        """A request with the text of its number: every arm gets the same text."""
        text = None
        if arm.k:
            if number not in self._texts:
                self._texts[number] = self._source.draw(number, OUTPUT_TOKENS)
            text = self._texts[number]
        return Request(number, arrival_s, PROMPT_TOKENS, output_tokens, text)

    def capacity_rps(self) -> float:
        """Answers per second without speculation when there is always more to do."""
        requests, end_s = self._run_closed(NO_SPECULATION, 256, 0, 1024)
        return len([one for one in requests if one.finished_s <= end_s]) / end_s

    def _run_closed(self, arm: Arm, clients: int, first: int, until: int) -> tuple[list[Request], float]:
        engine, sent, done = self.engine(arm), list[Request](), 0
        lengths = residual_lengths(clients, [OUTPUT_TOKENS])
        for number, length in enumerate(lengths, start=first):
            sent.append(self.request(arm, number, 0.0, length))
            engine.submit(sent[-1])
        while done < until:
            finished = engine.advance(engine.quiet_until_s())
            done += len(finished)
            for one in finished:
                sent.append(self.request(arm, first + len(sent), one.finished_s))
                engine.submit(sent[-1])
        return sent, engine.clock_s

    def truth_s(self, arm: Arm, rps: float, requests: int, seed: int) -> float:
        """Mean latency under Poisson arrivals, by brute force; infinite where they pile up."""
        load = ImposedLoad(LoadMode.POISSON, rps)
        engine, sent, counted = self.engine(arm), list[Request](), list[Request]()
        arrivals = send_offsets(load, seed, 1.25 * requests / rps)
        for number, arrival_s in zip(range(round(1.25 * requests)), arrivals, strict=False):
            engine.advance(arrival_s)
            if engine.outstanding > _HOPELESS:
                return math.inf
            sent.append(self.request(arm, number, arrival_s))
            engine.submit(sent[-1])
            if number >= 0.25 * requests:
                counted.append(sent[-1])
        engine.advance(math.inf)
        return float(np.mean([one.finished_s - one.arrival_s for one in counted]))

    def measure(self, step: Purchase, seed: int) -> tuple[Point, float]:
        """One point as the load driver takes it, and the GPU time it took (s), from the first request to the last answer."""
        return _Measurement(self, step, seed).point()


@dataclass
class _Measurement:
    """Warm-up, window and tail under one unbroken load, as `breakeven.load_driver.measuring` has them."""

    machine: Machine
    step: Purchase
    seed: int
    sent: list[Request] = field(default_factory=list)
    _history: list[tuple[float, float, float]] = field(default_factory=lambda: [(0.0, 0.0, 0.0)])

    def __post_init__(self) -> None:
        self._engine = self.machine.engine(self.step.arm)
        load = self.step.load
        self._arrivals = (
            None
            if load.clients is not None
            else send_offsets(load, self.seed, self.step.warmup_s + self.step.window_s)
        )
        self._next_s = math.inf if self._arrivals is None else next(self._arrivals)
        self._now_s = 0.0

    def point(self) -> tuple[Point, float]:
        """The point, and the GPU time that it took (s)."""
        step = self.step
        population = step.load.clients or round(step.inflight)
        for length in residual_lengths(population, [OUTPUT_TOKENS]):
            self._send(0.0, length)
        while not self._warm(self.sent[:population]):
            self._turn()
        start_s, first = self._now_s, len(self.sent)
        least = max(5.0, FEWEST_GENERATIONS * (step.load.clients or 0))
        overloaded = False
        while not overloaded and not self._long_enough(start_s, len(self.sent) - first, least):
            self._turn()
            piled = self._engine.outstanding > max(4.0 * step.inflight, step.inflight + 50.0)
            overloaded = piled and len(self.sent) - first >= least
        end_s = self._now_s
        if overloaded:
            # More load would only delay the answers that show it.
            self._next_s = math.inf
        counted = [one for one in self.sent if start_s <= one.arrival_s < end_s]
        while any(math.isnan(one.finished_s) for one in counted):
            self._turn()
        return self._seen(counted, start_s, end_s, overloaded=overloaded), self._now_s

    def _warm(self, population: Sequence[Request]) -> bool:
        longest_s = self.step.warmup_s + self.step.window_s
        turned_over = not any(math.isnan(one.finished_s) for one in population)
        return self._now_s >= (self.step.warmup_s if turned_over else longest_s)

    def _long_enough(self, start_s: float, sent: int, least: float) -> bool:
        longer = 1.0 if sent >= least else 10.0
        return self._now_s >= start_s + longer * self.step.window_s

    def _turn(self) -> None:
        """Go on to the next arrival or answer."""
        inflight, steps = self._engine.outstanding, self._engine.steps
        until_s = min(self._next_s, self._engine.quiet_until_s())
        finished = self._engine.advance(until_s)
        done = self._engine.steps - steps
        _, before, crowd = self._history[-1]
        self._history.append((self._engine.clock_s, before + done, crowd + done * inflight))
        self._now_s = until_s
        if self.step.load.clients is not None:
            for one in finished:
                self._send(one.finished_s)
        elif until_s >= self._next_s and self._arrivals is not None:
            self._send(self._next_s)
            self._next_s = next(self._arrivals)

    def _send(self, at_s: float, output_tokens: int = OUTPUT_TOKENS) -> None:
        number = 1_000_000 * self.seed + len(self.sent)
        self.sent.append(self.machine.request(self.step.arm, number, at_s, output_tokens))
        self._engine.submit(self.sent[-1])

    def _seen(self, counted: Sequence[Request], start_s: float, end_s: float, *, overloaded: bool) -> Point:
        moments, steps, crowd = np.array(self._history).T
        records = []
        for one in self.sent:
            done_s = None if math.isnan(one.finished_s) else one.finished_s
            record = RequestRecord(
                one.arrival_s, one.arrival_s, one.first_token_s, done_s, one.prompt_tokens, one.output_tokens
            )
            if done_s is not None:
                life = [one.arrival_s, done_s]
                took = float(np.diff(np.interp(life, moments, steps))[0])
                others = max(float(np.diff(np.interp(life, moments, crowd))[0]) / took - 1.0, 0.0)
                record.steps = max(round(took), 1)
                record.others_met = record.steps * others
            records.append(record)
        seen = summarise(records, start_s, end_s, self.step.company_s)
        if seen is None:
            raise RuntimeError(f"{self.step.load}: no answer")
        waited_s = float(np.mean([one.admitted_s - one.arrival_s for one in counted]))
        window = Load(
            queue_s=max(waited_s - self._engine.busy_s / self._engine.steps, 0.0),
            preemptions=float(self._engine.preemptions),
        )
        return MeasuredWindow(self.step.arm, self.step.load, seen, window, overloaded=overloaded).point()
