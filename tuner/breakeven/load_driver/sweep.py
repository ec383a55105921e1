"""A sweep of the engines that are up: ask it what to measure next, measure it, hand the point over, until there is no more."""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.load_driver.client import EngineClient, EngineError
from breakeven.load_driver.counters import read_counters
from breakeven.load_driver.course import LONE_REQUESTS, LONE_TOKENS, Sweep, loads_of, missing_probes
from breakeven.load_driver.design import Finished, SweepStep, carries
from breakeven.load_driver.lengths import LogNormalLengths
from breakeven.load_driver.measuring import Precision, Trial, measure
from breakeven.load_driver.next_point import Purchase, believed, some_schedule
from breakeven.load_driver.question import Question
from breakeven.load_driver.sent_workload import SYNTHETIC, Prompts, ProsePrompts, SentWorkload
from breakeven.load_driver.window import RequestRecord
from breakeven.points.point import ImposedLoad, Point, significant

_SIZING_REQUESTS = 5
_FIRST_PAIR = 500
FEWEST_PAIRS = 4
"""The scatter of fewer pairs is too much a matter of chance for a standard error."""
MEETING_S = 2.0
"""Time between two looks at how far sweeps elsewhere are."""
_PATIENCE, _LEAST_PATIENCE_S = 3.0, 60.0
"""Longest wait for them, in points, and at least; an arm that takes longer is measured by itself."""
PAIRED_ERROR = 0.05
"""Standard error of a ratio at which no more pairs are measured."""


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """Progress of a sweep; points of an earlier start count as done, and the seconds left are an estimate."""

    arm: Arm
    step: SweepStep
    done: int
    total: int
    point_seconds: float
    seconds_left: float


async def answering(
    engines: Mapping[Arm, EngineClient], on_lost: Callable[[Arm, EngineError], None] | None
) -> dict[Arm, EngineClient]:
    """The engines that answer; of several `on_lost` is called for each of the others.

    Raises:
        EngineError: no engine answers, or not the one of no speculation; or an engine does not run its arm.
    """
    found, errors = dict[Arm, EngineClient](), dict[Arm, EngineError]()
    for arm, client in engines.items():
        try:
            await client.model()
            found[arm] = client
            await check_arm(client, arm)
        except EngineError as error:
            errors[arm] = error
    for arm, gone in errors.items():
        if not found or arm in found or arm == NO_SPECULATION or on_lost is None:
            raise EngineError(f"{arm}: {gone}") if len(engines) > 1 else gone
        on_lost(arm, gone)
    return found


async def run_sweep(
    clients: Mapping[Arm, EngineClient],
    sweep: Sweep,
    measured: Sequence[Point],
    *,
    on_point: Callable[[Point], Awaitable[None]],
    on_progress: Callable[[SweepProgress], None] | None = None,
    on_lost: Callable[[Arm, EngineError], None] | None = None,
) -> Finished:
    """Measure what is missing of a sweep, and return what ended it; `measured` are points of its arms and workload from earlier starts.

    An arm without a client is left out. A point is handed over, and made durable, before the next one starts; stopping the
    sweep (cancellation) loses at most the point under way, and starting it again with the points so far goes on where it
    stopped. An engine that is lost leaves its arm out, and `on_lost` is called; the other arms go on. A sweep beside
    others begins each load together with them, and chooses loads as they do, by the points of all.

    Raises:
        EngineError: as of `answering`; or the last engine answers nothing.
    """
    engines = await answering(clients, on_lost)
    there = tuple(arm for arm in sweep.arms if arm in engines or sweep.beside)
    run = _Run(engines, replace(sweep, arms=there), list(measured), on_point, on_progress)
    await run.meet()
    while isinstance(turn := await run.next_turn(), tuple):
        arm, step = turn
        if arm not in run.sweep.own_arms:
            await run.meet(arm)
            continue
        try:
            await run.measure(await run.trial(arm), step)
        except EngineError as error:
            if len(run.sweep.arms) == 1 or on_lost is None:
                raise
            on_lost(arm, error)
            run.sweep = replace(run.sweep, arms=tuple(one for one in run.sweep.arms if one != arm))
    reasons = [turn.reason]
    for arm, loads in run.sweep.left_out(run.known).items():
        reasons.append(f"{arm} not at {', '.join(map(str, loads))}: beyond 80 % of its capacity")
    lost = [arm for arm in sweep.own_arms if arm not in run.sweep.arms]
    reasons += [f"{arm} left out, its engine failed" for arm in lost]
    if run.sweep.paired:
        reasons += await run.measure_pairs()
    return replace(turn, complete=turn.complete and not lost, reason="; ".join(reasons))


@dataclass
class _Run:
    """One start of a sweep: engines by arm, the points so far, earlier starts included, and who is told of them."""

    engines: Mapping[Arm, EngineClient]
    sweep: Sweep
    points: list[Point]
    on_point: Callable[[Point], Awaitable[None]]
    on_progress: Callable[[SweepProgress], None] | None = None
    left_s: float = 0.0

    def __post_init__(self) -> None:
        self.begun_s, self._trials = time.monotonic(), dict[Arm, Trial]()
        self._theirs = dict[Arm, list[Point]]()

    @property
    def known(self) -> list[Point]:
        """Points of the loads of all arms of the sweep, in the order in which they were measured."""
        if self.sweep.beside is None:
            return loads_of(self.points)
        theirs = [point for points in self._theirs.values() for point in points]
        before = self.sweep.before
        since = [point for point in (*self.points, *theirs) if point not in before]
        return loads_of([*before, *sorted(since, key=lambda point: point.begun_s or 0.0)])

    async def meet(self, late: Arm | None = None) -> None:
        """Wait for the sweeps elsewhere: until their engines are up, or until a late arm has another point.

        Arms that are over, or take too long, are not waited for again.
        """
        if self.sweep.beside is None:
            return
        settings = self.sweep.settings
        patience_s = _PATIENCE * (settings.point_seconds + settings.warmup_seconds)
        until_s = time.monotonic() + max(_LEAST_PATIENCE_S, patience_s)
        while True:
            found = await self.sweep.beside.theirs()
            over, given_up = {arm for arm in self.sweep.arms if arm not in found}, time.monotonic() > until_s
            waited = (
                {arm for arm in self.sweep.arms if found.get(arm, ()) is None} if late is None else {late}
            )
            if late is not None and len(found.get(late) or ()) > len(self._theirs.get(late, ())):
                waited = set()
            gone = (over | (waited if given_up else set())) - set(self.sweep.own_arms)
            # Loads are still chosen by what was measured of them.
            left = [point for arm in gone for point in found.get(arm) or self._theirs.get(arm) or ()]
            others = (*self.sweep.others, *loads_of(left))
            arms = tuple(one for one in self.sweep.arms if one not in gone)
            self.sweep = replace(self.sweep, arms=arms, others=others)
            there = (arm for arm in arms if arm not in self.sweep.own_arms)
            self._theirs = {arm: list(found[arm] or ()) for arm in there}
            if not waited - gone:
                return
            await asyncio.sleep(MEETING_S)

    async def trial(self, arm: Arm) -> Trial:
        """The requests of an arm's points."""
        if arm not in self._trials:
            workload = self.sweep.workload
            prompts = workload.prompts() or await sized_prose(self.engines[arm], workload)
            settings = self.sweep.settings
            early = Precision(settings.relative_error, min_window_s=settings.min_point_seconds)
            self._trials[arm] = Trial(arm, prompts, workload.answers(), early)
        return self._trials[arm]

    async def measure(
        self, trial: Trial, step: SweepStep, text: str | None = None, replicate: str | None = None
    ) -> None:
        """Measure a point and hand it over."""
        arm, workload, done = trial.arm, self.sweep.workload, len(loads_of(self.points))
        left_s, total = self.left_s, step.total * len(self.sweep.own_arms)

        def report(point_s: float) -> None:
            if self.on_progress is not None:
                self.on_progress(SweepProgress(arm, step, done, total, point_s, max(0.0, left_s - point_s)))

        report(0.0)
        # One seed for all arms: they meet the same arrivals (common random numbers), each load its own.
        window = await measure(self.engines[arm], trial, step, workload.seed * 1000 + step.number, report)
        # The driver does not know the schedule of the engine, so any schedule stands for it.
        point = replace(window.point(), schedule=some_schedule(arm), text_source=text or workload.text)
        self.points.append(replace(point, replicate=replicate))
        await self.on_point(self.points[-1])

    async def next_turn(self) -> tuple[Arm, SweepStep] | Finished:
        """The next arm and load, once each arm has what it needs at other lengths."""
        sweep, known = self.sweep, self.known
        able = {arm for arm in sweep.own_arms if not arm.scheduled}
        if sweep.lengths and able <= {point.arm for point in known}:
            if not isinstance(sweep.next_step(known), Finished):
                await self._measure_other_lengths()
            self.sweep = sweep = replace(sweep, lengths=False)
        used_s = time.monotonic() - self.begun_s
        self.left_s = sweep.seconds_left(known, used_s)
        return sweep.next_step(known, used_s)

    async def _measure_other_lengths(self) -> None:
        """Measure what is missing of the points at other lengths, by at least one point of each arm at its own lengths."""
        sweep, prompts = self.sweep, dict[Arm, Prompts]()
        left_s = (sweep.of_loads.max_seconds or math.inf) - (time.monotonic() - self.begun_s)
        # Their number is fixed: a window ends with its requests, neither with a time nor with a precision.
        precision = Precision(math.inf, LONE_REQUESTS, 0.0, LONE_REQUESTS)
        missing = [
            (arm, step)
            for arm in sweep.own_arms
            if not arm.scheduled
            for step in missing_probes(
                [point for point in self.points if point.arm == arm],
                sweep.settings,
                left_s / len(sweep.own_arms),
            )
        ]
        for arm, step in sorted(missing, key=lambda one: sweep.place_of(one[0], one[1].number)):
            # Too long for the model: the arm is measured as before, and other lengths stay a range. An engine that is gone fails
            # the sweep's next point.
            with contextlib.suppress(EngineError):
                tokens = sweep.workload.output_tokens
                if arm not in prompts:
                    # Made-up prose of one length without a shared prefix: a cached prompt would hide the cost of prefill.
                    plain = SentWorkload(step.prompt_tokens or 1, tokens, sweep.workload.seed)
                    prompts[arm] = await sized_prose(self.engines[arm], plain)
                lengths = LogNormalLengths(1, LONE_TOKENS if step.load.clients == 1 else tokens)
                await self.measure(Trial(arm, prompts[arm], lengths, precision), step, SYNTHETIC)

    # Pairs of windows next to each other, no speculation and one arm with the same arrivals and prompts, in the order A B, B A.
    # The state of the machine is the same in both windows of a pair, and a slow drift cancels in two pairs.

    async def measure_pairs(self) -> list[str]:
        """Measure pairs of no speculation and the fastest arm; returns why there are none at a rate, or no more."""
        sweep, known, why = self.sweep, loads_of(self.points), list[str]()
        own = {arm: [point for point in known if point.arm == arm] for arm in sweep.arms}
        rates = sweep.paired_rps or _middle_rate(own)
        most_s, until_s = sweep.settings.max_seconds, time.monotonic()
        until_s = until_s + sweep.pairs_s(self.points) if most_s is None else self.begun_s + most_s
        for index, rate in enumerate(rates):
            load = ImposedLoad(sweep.settings.arrivals, significant(rate))
            able = [arm for arm in sweep.arms if carries(own[arm], load)]
            question, window_s = Question(sweep.arms, sweep.settings), sweep.settings.point_seconds
            guesses = sorted(believed(question, known, able, load, window_s), key=lambda one: one.latency_s)
            none, others = (
                [one for one in guesses if (one.arm == NO_SPECULATION) == wanted] for wanted in (True, False)
            )
            if not (none and others):
                why.append(
                    f"no pairs at {load}: beyond 80 % of the capacity of no speculation or of all others"
                )
                continue
            left_s = (until_s - time.monotonic()) / (len(rates) - index)
            if ended := await self._pairs_at(load, (none[0], others[0]), time.monotonic() + left_s):
                found = _gains(self.points, others[0].arm, load)
                error = f", standard error {_error(found):.1%}" if len(found) > 1 else ""
                why.append(
                    f"{len(found) or 'no'} {'pair' if len(found) == 1 else 'pairs'} at {load}{error}: {ended}"
                )
        return why

    async def _pairs_at(self, load: ImposedLoad, both: tuple[Purchase, Purchase], until_s: float) -> str:
        """Measure pairs until their ratio is known well enough, or return why no more are: their number is the points' replicate."""
        settings, arm = self.sweep.settings, both[1].arm
        # The same warm-up and window for both, because arrivals are drawn for the two together; no window ends early.
        warmup_s = max(one.warmup_s for one in both)
        around_s = warmup_s + max(one.latency_s for one in both)
        window_s = (until_s - time.monotonic()) / (2 * FEWEST_PAIRS) - around_s
        window_s = max(min(settings.point_seconds, window_s), settings.min_point_seconds)
        precision = Precision(min_window_s=math.inf)
        number = max(
            (int(p.replicate) for p in self.points if p.replicate and p.replicate.isdecimal()), default=0
        )
        found, wasted = _gains(self.points, arm, load), 0
        while len(found) < FEWEST_PAIRS or _error(found) > PAIRED_ERROR:
            # Where windows of two pairs were not usable, a third one will not be.
            if wasted > 1:
                return "two pairs had windows that are not usable"
            self.left_s = until_s - time.monotonic()
            if self.left_s < 2 * (window_s + around_s):
                return "the time is used"
            number, before = number + 1, len(found)
            for one in both if number % 2 else both[::-1]:
                times = warmup_s, window_s, window_s, _FIRST_PAIR + number, settings.loads
                step = SweepStep(load, one.latency_s, one.inflight, 0.0, *times)
                try:
                    trial = replace(await self.trial(one.arm), precision=precision)
                    await self.measure(trial, step, replicate=str(number))
                except EngineError as error:
                    return f"{one.arm}: {error}"
            found = _gains(self.points, arm, load)
            wasted += len(found) == before
        return ""


@dataclass(frozen=True, slots=True)
class Speedup:
    """Latency without speculation over latency of an arm at one rate, from pairs of windows.

    `interval` holds it in 90 % of all cases by Student's t, because the pairs are few; None from one pair.
    """

    arm: Arm
    load: ImposedLoad
    pairs: int
    ratio: float
    interval: tuple[float, float] | None


def speedups_of(points: Sequence[Point]) -> list[Speedup]:
    """The speedups that the pairs among these points show."""
    from scipy.special import stdtrit  # noqa: PLC0415  commands that do not ask for it start faster

    found = list[Speedup]()
    for arm, load in dict.fromkeys((point.arm, point.load) for point in points if point.replicate):
        if arm != NO_SPECULATION and (gains := _gains(points, arm, load)):
            mean, bounds = statistics.fmean(gains), None
            if len(gains) > 1:
                half = float(stdtrit(len(gains) - 1, 0.95)) * _error(gains)
                bounds = math.exp(mean - half), math.exp(mean + half)
            found.append(Speedup(arm, load, len(gains), math.exp(mean), bounds))
    return found


def _gains(points: Sequence[Point], arm: Arm, load: ImposedLoad) -> list[float]:
    """Ln of the speedup by each pair of usable windows."""
    pairs = dict[str, dict[Arm, float]]()
    for point in points:
        if point.replicate and point.load == load and point.usable:
            pairs.setdefault(point.replicate, {})[point.arm] = math.log(point.mean_latency_s)
    return [
        pair[NO_SPECULATION] - pair[arm] for pair in pairs.values() if {NO_SPECULATION, arm} <= pair.keys()
    ]


def _error(gains: Sequence[float]) -> float:
    return statistics.stdev(gains) / math.sqrt(len(gains))


def _middle_rate(own: Mapping[Arm, Sequence[Point]]) -> list[float]:
    """The middle one of the rates that were measured with and without speculation."""
    faster = {point.load for arm, points in own.items() if arm != NO_SPECULATION for point in points}
    shared = {point.load for point in own[NO_SPECULATION]} & faster
    rates = sorted(load.rps for load in shared if load.rps)
    return rates[len(rates) // 2 :][:1]


async def check_arm(client: EngineClient, arm: Arm) -> None:
    """Refuse to measure an engine that does not run the arm: speculation lost on the way looks like a slow drafter.

    Says nothing about an engine without a metrics page.
    """
    page = await client.metrics_page()
    if page is None:
        return
    counters = read_counters(page)
    speculates = "drafts" in counters.stats
    if arm.k == 0 and speculates:
        raise EngineError(
            "the engine speculates (its metrics have vllm:spec_decode_*); expected no speculation"
        )
    if arm.k > 0 and "generated" in counters.stats and not speculates:
        raise EngineError(f"the engine does not speculate (no vllm:spec_decode_* metrics); expected {arm}")
    positions = max(counters.accepted, default=-1) + 1
    if arm.k > 0 and positions not in {0, arm.k}:
        raise EngineError(f"the engine drafts up to {positions} tokens per step; expected {arm.k} for {arm}")


async def sized_prose(client: EngineClient, workload: SentWorkload) -> ProsePrompts:
    """Made-up prose of the wanted number of tokens: a few requests show how the engine's tokenizer counts words."""
    prose = workload.prose()
    counted, asked = 0, 0.0
    for index in range(_SIZING_REQUESTS):
        record = RequestRecord(scheduled_s=time.monotonic(), sent_s=time.monotonic())
        await client.complete(prose.prompt(index), 1, record)
        if not record.complete:
            raise EngineError(
                f"a first request with about {workload.prompt_tokens} prompt tokens failed ({record.error}); expected an"
                " answer (is the model long enough, is an API key needed?)"
            )
        counted += record.prompt_tokens
        asked += prose.relative_length(index)
    return prose.resized(workload.prompt_tokens, counted / asked)
