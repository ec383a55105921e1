"""One operating point: start near the steady state, hold the load, and keep the end of the run from biasing the answers.

Three phases under one unbroken load:

    warm-up   begins with the expected number of requests in flight, of staggered lengths; nothing counts
    window    requests sent in it count; ends when the mean is precise enough, or at its limit
    tail      the load goes on until every counted request is answered; then the rest is cut off

An open loop started from an empty engine takes L/(1 - utilisation) to fill up (25 lone latencies at utilisation 0.8).
A window after a short warm-up would be measured on the way up. Starting with the expected population makes the warm-up
one latency long.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from breakeven.arm import Arm
from breakeven.load_driver.client import EngineClient, EngineError
from breakeven.load_driver.counters import between, read_counters
from breakeven.load_driver.design import SweepStep
from breakeven.load_driver.sent_workload import PROMPTS_PER_POINT, OutputLengths, Prompts
from breakeven.load_driver.window import (
    CUT_OFF,
    RequestRecord,
    WindowStatistics,
    errors_of,
    relative_error,
    summarise,
)
from breakeven.phrases import counted
from breakeven.points.point import COLUMNS, ImposedLoad, LoadMode, Point, significant
from breakeven.points.quality import (
    FEWEST_GENERATIONS,
    few_generations,
    few_requests,
    lagging,
    leaves_unanswered,
    piling_up,
    queueing,
    unsteady,
)
from breakeven.reasons import Reason
from breakeven.serving.counted_window import Load
from breakeven.serving.growths import EngineLimits, Growths

_CHECK_S = 0.5  # between looks at a running window
_SCRAPE_EVERY = 4  # looks between readings of the engine's gauges
# Figures with the names of a points file's columns.
_OF_CLIENTS = (
    "requests", "failed", "tokens_per_second", "prompt_tokens", "output_tokens", "output_tokens_sq", "send_lag_p99_s",
    "relative_error",
)  # fmt: skip
_OF_ENGINE = ("tokens_per_step", "drafts", "preemptions", "prefix_hit_ratio")


@dataclass(frozen=True, slots=True)
class Precision:
    """Conditions under which a window may end before its limit, and the longest wait for its answers.

    Attributes:
        relative_error: standard error of the mean latency, relative to it.
        min_requests: complete requests before a window may end early; quantiles and acceptance want more than the mean.
        least_requests: requests a window sends at least, up to the step's longest window: the planned one may be
            shorter than one request of this engine. Several clients each send `FEWEST_GENERATIONS`.
        tail_s: longest wait for counted requests after the window.
    """

    relative_error: float = 0.01
    min_requests: int = 100
    min_window_s: float = 5.0
    least_requests: int = 5
    tail_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings that all points of one sweep have in common; steps of different numbers use different prompts."""

    arm: Arm
    prompts: Prompts
    answers: OutputLengths
    precision: Precision


async def measure(
    client: EngineClient,
    trial: Trial,
    step: SweepStep,
    seed: int,
    on_progress: Callable[[float], None] | None = None,
) -> MeasuredWindow:
    """Measure one operating point; `seed` is of the arrivals.

    `on_progress` is called about twice a second with the seconds spent on this point.

    Raises:
        EngineError: no request at all was answered; the most frequent error is named.
    """
    run = _Drive(client, trial, step, on_progress)
    async with run.under_load(seed) as sender:
        await run.warm_up()
        start_s, unix_s = time.monotonic(), time.time()
        overloaded = await run.window()
        end_s = time.monotonic()
        await run.scrape()
        if overloaded:
            # More load would only delay the answers that show it; they are flagged, so an emptying engine is fine.
            sender.cancel()
        answered = await run.tail(end_s)
    seen = summarise(run.records, start_s, end_s, step.company_s)
    if seen is None:
        errors = errors_of(run.records)
        what = next(
            (f"{one}, {counted(often, 'time')}" for one, often in errors.items()), "all still in flight"
        )
        said = f"{step.load}: no answer in {end_s - run.begun_s:.0f} s ({what}); expected some"
        raise EngineError(said, errors)
    readings = [read_counters(page) for page in run.pages]
    return MeasuredWindow(
        trial.arm,
        step.load,
        seen,
        between(readings[0], readings[-1], EngineLimits(tokens_per_step=trial.arm.k + 1.0))
        if len(readings) > 1
        else Load(),
        queued_ratio=_queued_ratio(readings),
        kv_usage_max=max(
            (one.stats["kv_usage"] for one in readings if "kv_usage" in one.stats), default=None
        ),
        overloaded=overloaded or not answered,
        begun_s=unix_s,
    )


@dataclass
class _Drive:
    """One measurement: sends the requests of a load, keeps their records in order and the open ones, and goes through the phases.

    Metrics pages are kept unread until the end, because parsing takes time.
    """

    client: EngineClient
    trial: Trial
    step: SweepStep
    on_progress: Callable[[float], None] | None

    def __post_init__(self) -> None:
        self.begun_s = time.monotonic()
        self.records = list[RequestRecord]()
        self.pages = list[str]()
        self._open = dict[asyncio.Task[None], RequestRecord]()
        self._staggered = self._failures = 0

    @asynccontextmanager
    async def under_load(self, seed: int) -> AsyncIterator[asyncio.Task[None]]:
        """Hold the step's load on the engine while the body runs; yields the sender; afterwards nothing of it is left."""
        clients = self.step.load.clients
        sender = asyncio.create_task(self._open_loop(seed) if clients is None else self._closed_loop(clients))
        try:
            yield sender
        finally:
            # Not awaited one by one: cancelling the sender first and waiting would let the engine empty meanwhile.
            leftover = [sender, *self._open]
            for task in leftover:
                task.cancel()
            ends = await asyncio.gather(*leftover, return_exceptions=True)
        if isinstance(ends[0], Exception):
            raise ends[0]

    async def _open_loop(self, seed: int) -> None:
        """Send at the load's times for ever; what is late is sent at once and shows as lag."""
        step, start_s = self.step, time.monotonic()
        for length in residual_lengths(round(step.inflight or 0), self.trial.answers.outputs()):
            self._send(start_s, length)
        for offset_s in send_offsets(step.load, seed, step.warmup_s + step.window_s):
            await asyncio.sleep(start_s + offset_s - time.monotonic())
            self._send(start_s + offset_s)

    async def _closed_loop(self, clients: int) -> None:
        """Keep `clients` requests in flight for ever; the first of each client has a staggered length."""

        async def client(first_tokens: int) -> None:
            await self._send(time.monotonic(), first_tokens)
            while True:
                failures = self._failures
                await self._send(time.monotonic())
                # An engine that refuses at once must not be asked in a tight loop.
                await asyncio.sleep(0.1 if self._failures > failures else 0)

        async with asyncio.TaskGroup() as group:
            for length in residual_lengths(clients, self.trial.answers.outputs()):
                group.create_task(client(length))

    def _send(self, scheduled_s: float, output_tokens: int | None = None) -> asyncio.Task[None]:
        record = RequestRecord(scheduled_s=scheduled_s, sent_s=time.monotonic())
        # The first population has prompts of its own: it differs between arms, and later requests are to have the same prompts.
        self._staggered += output_tokens is not None
        place = len(self.records) - self._staggered if output_tokens is None else -self._staggered
        number = self.step.number * PROMPTS_PER_POINT + place % PROMPTS_PER_POINT
        length = output_tokens or self.trial.answers.pair(number).output_tokens
        self.records.append(record)
        task = asyncio.create_task(self.client.complete(self.trial.prompts.prompt(number), length, record))
        self._open[task] = record
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        record = self._open.pop(task)
        self._failures += record.error not in {None, CUT_OFF}

    @property
    def _failing(self) -> bool:
        """Whether so many requests fail that a longer window would only add failures."""
        return self._failures > max(3, 0.2 * (len(self.records) - len(self._open)))

    def _report(self) -> None:
        if self.on_progress is not None:
            self.on_progress(time.monotonic() - self.begun_s)

    async def scrape(self) -> None:
        page = await self.client.metrics_page()
        if page is not None:
            self.pages.append(page)

    async def warm_up(self) -> None:
        """Wait until the warm-up's time is over and every request of the initial population is answered.

        At most one window longer: with a wrong expectation the window shows what is wrong.
        """
        begun_s, step = time.monotonic(), self.step
        first = max(1, step.load.clients or round(step.inflight or 0))
        while not self._failing:
            waited_s = time.monotonic() - begun_s
            turned_over = len(self.records) >= first and all(
                record.done_s is not None for record in self.records[:first]
            )
            if waited_s >= step.warmup_s and (turned_over or waited_s >= step.warmup_s + step.window_s):
                return
            self._report()
            await asyncio.sleep(min(_CHECK_S, max(0.02, step.warmup_s - waited_s)))

    async def window(self) -> bool:
        """Return when the window should end; True if it should because requests pile up without bound."""
        begun_s = time.monotonic()
        await self.scrape()
        clients, precision = self.step.load.clients or 1, self.trial.precision
        least = precision.least_requests
        expected = clients if self.step.inflight is None else self.step.inflight
        bound = max(4 * expected, expected + 50)
        # All clients' requests are replaced often enough for the point to show a ceiling.
        least = max(least, math.ceil(FEWEST_GENERATIONS * clients)) if clients > 1 else least
        looks = 0
        while not self._failing:
            waited_s = time.monotonic() - begun_s
            sent = sum(record.sent_s >= begun_s for record in reversed(self.records))
            if waited_s >= (self.step.window_s if sent >= least else self.step.longest_s):
                return False
            if len(self._open) > bound:
                return True
            if waited_s >= precision.min_window_s and sent >= least and self._precise(begun_s):
                return False
            looks += 1
            if looks % _SCRAPE_EVERY == 0:
                await self.scrape()
            self._report()
            left_s = self.step.window_s - waited_s
            await asyncio.sleep(min(_CHECK_S, left_s) if left_s > 0 else 0.05)
        return False

    def _precise(self, begun_s: float) -> bool:
        """Whether the requests answered without a gap since the window's begin tell the mean precisely enough.

        Only the leading run counts: taking every answered request would leave out the slow ones still in flight.
        """
        counted = (record for record in self.records if record.sent_s >= begun_s)
        run = list(takewhile(lambda record: record.done_s is not None, counted))
        if sum(record.complete for record in run) < self.trial.precision.min_requests:
            return False
        error = relative_error(self.records, begun_s, run[-1].sent_s + 1e-9, self.step.company_s)
        return error <= self.trial.precision.relative_error

    async def tail(self, end_s: float) -> bool:
        """Wait for the requests sent before the window's end; True if all are over within the precision's tail."""
        give_up_s = time.monotonic() + self.trial.precision.tail_s
        while pending := [task for task, record in self._open.items() if record.sent_s < end_s]:
            left_s = give_up_s - time.monotonic()
            if left_s <= 0 or self._failing:
                return self._failing
            await asyncio.wait(pending, timeout=min(_CHECK_S, left_s))
            self._report()
        return True


def _queued_ratio(readings: list[Growths]) -> float | None:
    """Waiting requests as a share of all in the engine, over all readings; None without the gauges."""
    known = [one.stats for one in readings if {"running", "waiting"} <= one.stats.keys()]
    total = sum(one["running"] + one["waiting"] for one in known)
    return sum(one["waiting"] for one in known) / total if total else None


def send_offsets(load: ImposedLoad, seed: int, over_s: float) -> Iterator[float]:
    """Seconds after the start at which an open loop sends; endless, increasing.

    Poisson arrivals are drawn given their number: the first `over_s` seconds hold as many as the rate gives. Left to
    chance, 4 s at 12 rps hold 48 give or take 7. A planned utilisation of 80 % then becomes 65 or 95. The same seed
    and number give the same arrivals stretched in time (common random numbers). The difference of two arms is then
    less noisy than either of them.
    """
    rate = load.rps
    if rate is None:
        raise ValueError("a closed loop has no send times of its own")
    if load.mode is LoadMode.CONSTANT:
        return (index / rate for index in itertools.count())
    return _poisson(rate, np.random.default_rng(seed), over_s)


def _poisson(rate_rps: float, random: np.random.Generator, over_s: float) -> Iterator[float]:
    count = round(rate_rps * over_s)
    # Sums of exponential gaps over their whole sum lie as the arrivals of a Poisson process lie, given their number.
    sums = np.cumsum(random.standard_exponential(count + 1))
    yield from (sums[:-1] * (over_s / sums[-1])).tolist()
    elapsed_s = over_s
    while True:
        for gap in random.standard_exponential(256):
            elapsed_s += float(gap) / rate_rps
            yield elapsed_s


def residual_lengths(count: int, output_tokens: Sequence[int]) -> list[int]:
    """Output lengths that make `count` requests sent together look like a population met in mid-flight.

    A request seen at a random instant is a long one more often than a short one. A uniformly distributed part of it is
    left. The share of rests up to r is sum(min(r, g)) / sum(g) over the lengths g, each as often as it occurs. Evenly spaced
    quantiles of it (longest first) start a window near its steady state. They also keep closed-loop clients from finishing in
    lockstep, which would alternate bursts of prefill with pure decoding.
    """
    lengths = np.sort(np.asarray(output_tokens, dtype=float))
    # Between two lengths the share rises linearly: these are its corners.
    shorter = np.concatenate([[0.0], np.cumsum(lengths)[:-1]])
    corners = np.concatenate([[0.0], shorter + lengths * np.arange(len(lengths), 0, -1)])
    shares = (count - np.arange(count) - 0.5) / count
    rests = np.interp(shares * corners[-1], corners, np.concatenate([[0.0], lengths]))
    return [max(1, round(rest)) for rest in rests.tolist()]


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """One window of one arm under one load, as the clients saw it and the engine counted it.

    `queued_ratio` is the mean share of the engine's requests that waited, over the gauges seen; None without metrics. `overloaded`:
    the load was cut short because requests piled up. `begun_s`: Unix time at the window's begin.
    """

    arm: Arm
    load: ImposedLoad
    clients: WindowStatistics
    engine: Load
    queued_ratio: float | None = None
    kv_usage_max: float | None = None
    overloaded: bool = False
    begun_s: float | None = None

    @property
    def flags(self) -> tuple[Reason, ...]:
        """Every reason against the point, gravest first; empty if it is good."""
        seen = self.clients
        latency_s = seen.latency.mean_s
        queues = self.load.clients is not None and queueing(self.engine.queue_s, latency_s)
        too_few = few_generations(seen.requests, seen.mean_inflight)
        verdicts = {
            Reason.DRIVER_LAGGING: lagging(seen.send_lag_mean_s, seen.send_lag_p99_s, latency_s),
            Reason.REQUESTS_FAILED: seen.failed > 0,
            Reason.SATURATED_POINT: self.overloaded or self._piles_up or (queues and not too_few),
            Reason.NOT_STEADY: self.load.rps is not None and unsteady(seen.little_residual, self._chance),
            Reason.PREEMPTING: bool(self.engine.preemptions),
            Reason.POINT_TOO_SHORT: few_requests(seen.requests) or (queues and too_few),
        }
        return tuple(flag for flag, raised in verdicts.items() if raised)

    @property
    def _piles_up(self) -> bool:
        """Whether an open loop answers significantly less than it was planned to ask for.

        An open loop queues in every burst, and sends more than planned in some windows: neither is saturation. Only a large
        number of unanswered requests shows saturation.
        """
        seen, asked_rps = self.clients, self.load.rps
        if asked_rps is None:
            return False
        pile = (seen.offered_rps - seen.achieved_rps) * seen.seconds
        return leaves_unanswered(asked_rps, seen.achieved_rps, seen.requests) and piling_up(
            pile, seen.mean_inflight
        )

    @property
    def _chance(self) -> float:
        """Standard deviation of the Little residual in a steady state.

        What separates N from rate * L is the work in flight at the window's two edges, which differ by chance: about
        N requests with half their latency to go, scattering by sqrt(N / (1 - utilisation)), against N * T in all.
        """
        seen = self.clients
        return 1.5 * seen.latency.mean_s / seen.seconds / math.sqrt(max(seen.mean_inflight, 1e-9))

    @property
    def answered_rps(self) -> float:
        """Answers per second.

        In a closed loop this is in-flight over latency (Little's law). Its clients come in waves: a window of one and a
        half latencies counts one wave or two.
        """
        seen = self.clients
        return seen.achieved_rps if self.load.clients is None else seen.mean_inflight / seen.latency.mean_s

    @property
    def inflight(self) -> float:
        """Number in flight for the fit: in an open loop the others that a request met, in a closed loop the request included."""
        others = self.clients.others_met
        if others is None:
            return self.clients.mean_inflight
        # At a very low rate no request met another one, but a reader that finds far less than rate times latency takes
        # the latency for one in another unit.
        return max(others, 0.05 * self.clients.mean_inflight) if self.load.clients is None else others + 1

    def point(self) -> Point:
        """The point, in the digits that a points file keeps, so that going on from a file is the same as going on."""
        seen, engine, k = self.clients, self.engine, self.arm.k
        figures: dict[str, float | None] = {
            "concurrency": self.load.clients,
            "request_rate_rps": self.load.rps,
            "mean_inflight": self.inflight,
            "achieved_rps": self.answered_rps,
            "window_s": seen.seconds,
            "drafted_per_step": engine.drafted_per_step if k else None,
            "little_residual": seen.little_residual if self.load.rps is not None else None,
            "queued_ratio": self.queued_ratio,
            "kv_usage_max": self.kv_usage_max,
            "begun_s": self.begun_s,
        }
        for part in ("mean_s", "p50_s", "p95_s", "p99_s"):
            figures[part.replace("_s", "_latency_s")] = getattr(seen.latency, part)
            figures[f"ttft_{part}"], figures[f"tpot_{part}"] = (
                getattr(seen.ttft, part),
                getattr(seen.tpot, part),
            )
        figures |= {name: getattr(seen, name) for name in _OF_CLIENTS}
        figures |= {name: getattr(engine, name) for name in _OF_ENGINE}
        kept = {name: significant(value) for name, value in figures.items() if value is not None}
        # No answer inside a window gives no rate, an answer in one piece no TPOT.
        measured: dict[str, Any] = {name: value for name, value in kept.items() if COLUMNS[name].holds(value)}
        return Point(
            method=self.arm.method,
            k=k,
            candidate=self.arm.candidate,
            load_mode=self.load.mode,
            flag=" ".join(self.flags) or None,
            accept=tuple(significant(share) for share in engine.survival),
            **measured,
        )
