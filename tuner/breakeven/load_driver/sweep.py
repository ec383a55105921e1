"""One arm's sweep: ask the design what to measure, measure it, hand the point over, until the design has no more."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from breakeven.arm import Arm
from breakeven.load_driver.client import EngineClient, EngineError
from breakeven.load_driver.counters import read_counters
from breakeven.load_driver.course import Course
from breakeven.load_driver.design import Finished, SweepSettings, SweepStep, of_the_sweep
from breakeven.load_driver.lengths import LogNormalLengths
from breakeven.load_driver.measuring import Precision, Trial, measure
from breakeven.load_driver.question import Question
from breakeven.load_driver.records import RequestRecord
from breakeven.load_driver.sent_workload import SYNTHETIC, Prompts, ProsePrompts, SentWorkload
from breakeven.points.point import ImposedLoad, LoadMode, Point
from breakeven.points.quality import FEWEST_GENERATIONS

_SIZING_REQUESTS = 5
LONGER = 4
"""The second prompt length over the first: live lengths up to four times the calibrated ones are then between points."""
CLIENTS = 16
LONE_REQUESTS = 5
LONE_TOKENS = 2
_FIRST_NUMBER = 900


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """Progress of a sweep; points of an earlier start count as done, and the seconds left are an estimate."""

    step: SweepStep
    done: int
    total: int
    point_seconds: float
    seconds_left: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """Everything that describes one arm's sweep.

    Attributes:
        prompts: in place of the workload's own.
        lengths: also measure the few points at other lengths, from which the cost of a step follows.
        question: the decision that the points serve; None if loads are spread evenly.
        others: points of other arms, by which the loads are chosen.
        before: points of the arm's first start at its own lengths, if its engine was started a second time.
    """

    arm: Arm
    workload: SentWorkload = field(default_factory=SentWorkload)
    settings: SweepSettings = field(default_factory=SweepSettings)
    prompts: Prompts | None = None
    lengths: bool = False
    question: Question | None = None
    others: tuple[Point, ...] = ()
    before: tuple[Point, ...] = ()

    @property
    def course(self) -> Course:
        """Choice of its loads."""
        return Course(self.settings, self.question, self.others, self.before)

    @property
    def probes(self) -> bool:
        """Whether points at other lengths are measured; those of a schedule would be a mixture over its tiers."""
        return self.lengths and not self.arm.scheduled

    def steps(self, measured: Sequence[Point], lone_s: float) -> tuple[SweepStep, ...]:
        """All steps that are left, those at other lengths included, if every point comes out as it is believed now.

        `measured` are points of this arm and workload from earlier starts; `lone_s` is a guess at a lone request's latency without
        speculation (s), used while there is no point.
        """
        own, course = of_the_sweep(measured), self.course
        if not self.probes or isinstance(course.next_step(own), Finished):
            return course.steps(self.arm, own, lone_s)
        probes = planned_probes(
            measured,
            self.workload,
            self.settings,
            self.settings.max_seconds or math.inf,
            lambda clients: course.latency_s(self.arm, own, clients, lone_s),
        )
        steps = course.steps(self.arm, own, lone_s, sum(probe.expected_s for probe in probes))
        # The first point shows how long prompts are.
        first = 0 if own else 1
        return (*steps[:first], *probes, *steps[first:])

    @property
    def precision(self) -> Precision:
        """Conditions under which windows may end early."""
        return Precision(
            self.settings.relative_error, self.settings.min_requests, self.settings.min_point_seconds
        )


async def run_sweep(
    client: EngineClient,
    sweep: Sweep,
    measured: Sequence[Point],
    *,
    on_point: Callable[[Point], Awaitable[None]],
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> Finished:
    """Measure what is missing of a sweep, and return what ended it; `measured` are points of this arm and workload from earlier starts.

    A point is handed over, and made durable, before the next one starts; stopping the sweep (cancellation) loses at most the point
    under way, and starting it again with the points so far goes on where it stopped.

    Raises:
        EngineError: the engine is not there, does not run the arm, or answers nothing.
    """
    await client.model()
    await check_arm(client, sweep.arm)
    points = of_the_sweep(measured)
    begun_s = time.monotonic()
    if isinstance(nothing := sweep.course.step_or_last(points), Finished):
        return nothing
    trial = await _trial(client, sweep)
    probing = sweep.probes

    def report(left_s: float, step: SweepStep, point_s: float) -> None:
        if on_progress is not None:
            on_progress(SweepProgress(step, len(points), step.total, point_s, max(0.0, left_s - point_s)))

    while True:
        used_s = time.monotonic() - begun_s
        left_s = sweep.course.seconds_left(points, used_s)
        if probing and points:
            probing = False
            longest_s = (sweep.settings.max_seconds or math.inf) - used_s
            known = measured or points
            await _measure_other_lengths(client, sweep, known, longest_s, on_point, partial(report, left_s))
            continue
        step = sweep.course.step_or_last(points, used_s)
        if isinstance(step, Finished):
            return step
        report(left_s, step, 0.0)
        # One seed for all arms: they meet the same arrivals (common random numbers), each load its own.
        seed = sweep.workload.seed * 1000 + step.number
        window = await measure(client, trial, step, seed, partial(report, left_s, step))
        point = replace(window.point(), text_source=sweep.workload.text)
        await on_point(point)
        points.append(point)


async def _trial(client: EngineClient, sweep: Sweep) -> Trial:
    """The requests of a sweep's points."""
    workload = sweep.workload
    prompts = sweep.prompts or workload.prompts() or await sized_prose(client, workload)
    return Trial(sweep.arm, prompts, workload.answers(), sweep.precision)


async def _measure_other_lengths(
    client: EngineClient,
    sweep: Sweep,
    measured: Sequence[Point],
    left_s: float,
    on_point: Callable[[Point], Awaitable[None]],
    report: Callable[[SweepStep, float], None],
) -> None:
    """Measure what is missing of the points at other lengths, by at least one point of the arm at its own lengths.

    `left_s` is for the rest of the sweep; infinite without a limit.
    """
    missing = missing_probes(measured, sweep.workload, sweep.settings)
    if not missing:
        return
    # Made-up prose of one length without a shared prefix: a cached prompt would hide the cost of prefill.
    plain = SentWorkload(missing[0].prompt_tokens, sweep.workload.output_tokens, sweep.workload.seed)
    # Their number is fixed: a window ends with its requests, neither with a time nor with a precision.
    precision = Precision(math.inf, LONE_REQUESTS, 0.0, LONE_REQUESTS)
    # Too long for the model: the arm is measured as before, and other lengths stay a range. An engine that is gone fails
    # the sweep's next point.
    with contextlib.suppress(EngineError):
        prompts = await sized_prose(client, plain)
        for probe in missing:
            step = probe.step(sweep.settings, left_s)
            if step is None:
                return
            asked = Trial(sweep.arm, prompts, LogNormalLengths(1, probe.output_tokens), precision)
            seed = sweep.workload.seed * 1000 + probe.number
            window = await measure(client, asked, step, seed, partial(report, step))
            await on_point(replace(window.point(), text_source=SYNTHETIC))


async def check_arm(client: EngineClient, arm: Arm) -> None:
    """Refuse to measure an engine that does not run the arm: speculation lost on the way looks like a slow drafter.

    Says nothing about an engine without a metrics page.
    """
    page = await client.metrics_page()
    if page is None:
        return
    counters = read_counters(page)
    if arm.k == 0 and counters.speculates:
        raise EngineError(
            "the engine speculates (its metrics have vllm:spec_decode_*); expected an engine without"
        )
    if arm.k > 0 and "generated" in counters.counted and not counters.speculates:
        raise EngineError(f"the engine does not speculate (no vllm:spec_decode_* metrics); expected {arm}")
    positions = len(counters.accepted_at or ())
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


# A few points at other lengths that show the costs of an engine's steps: without them other lengths are a guess.
#
# Each arm has two, as soon as its first point shows how long prompts are by the engine's own count. Lone requests with a
# longer prompt and answers of two tokens give prefill per prompt token: a few times the lone time to first token. A few
# clients with the longer prompt give what context adds to a step: about six request latencies. With 512 prompt and 256
# output tokens that is one second and up to 20 on the simulated H100. A sweep with little time left skips them.


@dataclass(frozen=True, slots=True)
class LengthProbe:
    """One point at other lengths; its number, far from the numbers of the other points, determines prompts and arrivals."""

    prompt_tokens: int
    output_tokens: int
    clients: int
    number: int

    def step(self, settings: SweepSettings, left_s: float) -> SweepStep | None:
        """The step of this probe; None if the sweep's own loads need all of the time that is left (infinite without a limit)."""
        longest_s = min(settings.point_seconds, left_s / settings.loads)
        if longest_s < settings.min_point_seconds:
            return None
        return SweepStep(
            load=ImposedLoad(LoadMode.CLOSED, self.clients),
            latency_s=None,
            inflight=float(self.clients),
            company_s=0.0,
            warmup_s=0.0,
            window_s=longest_s,
            longest_s=longest_s,
            number=self.number,
            total=settings.loads,
            prompt_tokens=self.prompt_tokens,
        )


def probes_of(
    prompt_tokens: float, output_tokens: int, settings: SweepSettings
) -> tuple[LengthProbe, LengthProbe]:
    """The points at other lengths that an arm needs, by the mean lengths of its sweep."""
    longer = round(LONGER * prompt_tokens)
    clients = max(min(CLIENTS, settings.max_concurrency // 2), 2)
    return (
        LengthProbe(longer, LONE_TOKENS, 1, _FIRST_NUMBER),
        LengthProbe(longer, output_tokens, clients, _FIRST_NUMBER + 1),
    )


def missing_probes(
    points: Sequence[Point], workload: SentWorkload, settings: SweepSettings
) -> tuple[LengthProbe, ...]:
    """The points at other lengths that are still to be measured; none before a point shows how long prompts are."""
    own = of_the_sweep(points)
    known = [point.prompt_tokens for point in own if point.prompt_tokens]
    if not known:
        return ()
    there = {point.concurrency for point in points if point not in own}
    return tuple(
        probe for probe in probes_of(known[0], workload.output_tokens, settings) if probe.clients not in there
    )


def planned_probes(
    measured: Sequence[Point],
    workload: SentWorkload,
    settings: SweepSettings,
    left_s: float,
    latency_s: Callable[[int], float],
) -> tuple[SweepStep, ...]:
    """The steps at other lengths that are left, as long as they are expected to take.

    Before any point the workload says how long prompts are. `latency_s` is the believed latency (s) of the sweep's requests among
    so many clients; `left_s` is infinite without a limit.
    """
    missing = (
        missing_probes(measured, workload, settings)
        if of_the_sweep(measured)
        else probes_of(workload.prompt_tokens, workload.output_tokens, settings)
    )
    steps = []
    for probe in missing:
        step = probe.step(settings, left_s)
        if step is None:
            break
        asked_s = (
            _lone_s(measured, latency_s(1), workload) if probe.clients == 1 else latency_s(probe.clients)
        )
        answers = max(LONE_REQUESTS / probe.clients, FEWEST_GENERATIONS if probe.clients > 1 else 0.0)
        window_s = min(answers * asked_s, step.window_s)
        steps.append(replace(step, latency_s=asked_s, warmup_s=asked_s, window_s=window_s))
    return tuple(steps)


def _lone_s(measured: Sequence[Point], lone_s: float, workload: SentWorkload) -> float:
    """Latency of a lone request with the longer prompt and a short answer; a prompt that was not timed takes a step."""
    step_s = lone_s / workload.output_tokens
    first_s = next((point.ttft_mean_s for point in of_the_sweep(measured) if point.ttft_mean_s), step_s)
    return LONGER * first_s + (LONE_TOKENS - 1) * step_s
