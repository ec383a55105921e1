"""A sweep, and the course that it takes: load by load with all arms inside, spread evenly or bought for their value to a decision.

Beside its loads it may have a few points at other lengths, and pairs of windows at the end.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.load_driver.design import (
    Finished,
    SweepSettings,
    SweepStep,
    carries,
    closing_step,
    has_first_half,
    line_of_ends,
    next_step,
    of_the_sweep,
    seconds_left,
    step_at,
)
from breakeven.load_driver.next_point import Purchase, believed, imagined, next_point
from breakeven.load_driver.question import Question
from breakeven.load_driver.sent_workload import SentWorkload
from breakeven.points.point import ImposedLoad, LoadMode, Point, first_half
from breakeven.points.quality import FEWEST_GENERATIONS

_MOST_STEPS = 500
LONGER = 4
"""The second prompt length over the first: live lengths up to four times the calibrated ones are then between points."""
CLIENTS = 16
LONE_REQUESTS = 5
LONE_TOKENS = 2
_FIRST_NUMBER = 900
_PAIRED_SHARE = 0.2
"""Share of a sweep's time for pairs, if it measures no speculation and another arm."""


@dataclass(frozen=True, slots=True)
class Beside:
    """The arm of a sweep whose other arms are measured at the same time by sweeps elsewhere.

    `theirs` reads how far those are: points by arm, None until an engine is up; an arm that is over is not there.
    """

    mine: Arm
    theirs: Callable[[], Awaitable[Mapping[Arm, Sequence[Point] | None]]]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep: every arm that carries a load is measured at it before the next load is chosen.

    A machine that drifts then moves all arms at one load alike, and their ratio stays. The order of the arms is reversed at
    each load, so that none of them is always the later one.

    Attributes:
        arms: arms whose engines are up.
        lengths: also measure the few points at other lengths, from which the cost of a step follows.
        question: the decision that the points serve; None if loads are spread evenly.
        others: points of other arms, by which the loads are chosen.
        before: points of the first start at the arms' own lengths, if this is the second start of their engines; the measured points
            begin with them.
        beside: None if all arms take turns here.
        paired_rps: rates (1/s) for pairs of no speculation and another arm; empty for a load in the middle, None for no pairs.
    """

    arms: tuple[Arm, ...]
    workload: SentWorkload = field(default_factory=SentWorkload)
    settings: SweepSettings = field(default_factory=SweepSettings)
    lengths: bool = False
    question: Question | None = None
    others: tuple[Point, ...] = ()
    before: tuple[Point, ...] = ()
    beside: Beside | None = None
    paired_rps: tuple[float, ...] | None = None

    @property
    def own_arms(self) -> tuple[Arm, ...]:
        """The arms whose engines this sweep asks."""
        return self.arms if self.beside is None else (self.beside.mine,)

    @property
    def paired(self) -> bool:
        """Whether it ends with pairs of no speculation and the fastest arm."""
        return self.paired_rps is not None and NO_SPECULATION in self.arms and len(self.arms) > 1

    @property
    def of_loads(self) -> SweepSettings:
        """Settings of its loads, with the time for pairs left over."""
        most_s = self.settings.max_seconds
        if most_s is None or not self.paired:
            return self.settings
        return replace(self.settings, max_seconds=most_s * (1.0 - _PAIRED_SHARE))

    def pairs_s(self, measured: Sequence[Point], planned_s: float = 0.0) -> float:
        """Time for pairs (s) of a sweep without a limit, by their share of the whole; `planned_s` is for loads still to come."""
        warmup_s = self.settings.warmup_seconds
        loads_s = sum((point.window_s or 0.0) + warmup_s for point in measured if not point.replicate)
        return (loads_s + planned_s) * _PAIRED_SHARE / (1.0 - _PAIRED_SHARE)

    def place_of(self, arm: Arm, number: int) -> tuple[int, int]:
        """By which the points at other lengths are sorted: by their number, arms in reversed order at every second one."""
        place = self.arms.index(arm)
        return number, -place if number % 2 else place

    def steps(self, measured: Sequence[Point], lone_s: float) -> tuple[tuple[Arm, SweepStep], ...]:
        """All steps that are left, those at other lengths included, if every point comes out as it is believed now.

        `measured` are points of these arms and workload from earlier starts; `lone_s` is a guess at a lone request's latency without
        speculation (s), used while there is no point.
        """
        own = loads_of(measured)
        left_s = (self.of_loads.max_seconds or math.inf) / len(self.arms)
        probes = [
            (arm, step)
            for arm in self.arms
            if self.lengths and not arm.scheduled and not isinstance(self.next_step(own), Finished)
            for step in planned_probes(
                [point for point in measured if point.arm == arm],
                self.workload,
                self.settings,
                left_s,
                lambda clients, arm=arm: self._latency_s(arm, own, clients, lone_s),  # type: ignore[misc]
            )
        ]
        probes.sort(key=lambda turn: self.place_of(turn[0], turn[1].number))
        steps = self.load_steps(own, lone_s, sum(step.expected_s for _, step in probes))
        # The first point of each arm shows how long prompts are.
        first = next((i for i, (_, step) in enumerate(steps) if step.number > 1), len(steps))
        return (*steps[:first], *probes, *steps[first:])

    def next_step(self, measured: Sequence[Point], spent_s: float = 0.0) -> tuple[Arm, SweepStep] | Finished:
        """The next arm and load to measure, or the reason why there is none.

        `measured` are points of the sweep in the order in which they were measured, flagged ones included; `spent_s` is the time
        that the sweep has taken so far. After all other loads one of them comes again, which shows how starts and minutes differ.
        """
        own = {arm: [point for point in measured if point.arm == arm] for arm in self.arms}
        loads = list(dict.fromkeys(point.load for point in measured))
        for number, load in enumerate(loads, start=1):
            if step := self._at(own, load, number, spent_s):
                return step
        # A load beyond the capacity of one arm is left out of its half.
        if self.of_loads.halved and any(has_first_half(self.of_loads, points) for points in own.values()):
            first, all_loads = first_half(self.of_loads.loads), self.of_loads.loads
            reason = f"{first} of {all_loads} loads measured; a second start measures the others"
            return Finished(complete=False, reason=reason)
        found = self._next_load(own, spent_s)
        if isinstance(found, Finished):
            at_end = found.complete or (self.before and not found.out_of_time)
            return (self._last(own, len(loads) + 1, spent_s) if at_end else None) or found
        load = found[1].load
        chosen = self._at(own, load, len(loads) + 1, spent_s, found)
        return chosen or Finished(complete=False, reason=f"{load} was measured")

    def left_out(self, measured: Sequence[Point]) -> dict[Arm, list[ImposedLoad]]:
        """Loads of the sweep that are beyond the capacity of an arm, by arm."""
        found = dict[Arm, list[ImposedLoad]]()
        for arm, load in product(self.own_arms, dict.fromkeys(point.load for point in measured)):
            own = [point for point in measured if point.arm == arm]
            if not carries(own, load) and all(point.load != load for point in own):
                found.setdefault(arm, []).append(load)
        return found

    def seconds_left(self, measured: Sequence[Point], spent_s: float = 0.0) -> float:
        """Estimate of the time to the end of the sweep (s)."""
        if self.question is not None:
            steps = self.load_steps(measured, self.question.lone_s, spent_s)
            return sum(step.expected_s for arm, step in steps if arm in self.own_arms)
        own = ([point for point in measured if point.arm == arm] for arm in self.own_arms)
        left_s = sum(seconds_left(self.of_loads, points) for points in own)
        return max(0.0, min(left_s, self._left_s(spent_s)))

    def load_steps(
        self, measured: Sequence[Point], lone_s: float, spent_s: float = 0.0
    ) -> tuple[tuple[Arm, SweepStep], ...]:
        """All steps at loads that are left, if every point comes out as expected now.

        `lone_s` is a guess at a lone request's latency without speculation (s), used while there is no point.
        """
        points, steps = list(measured), list[tuple[Arm, SweepStep]]()
        while len(steps) < _MOST_STEPS:
            found = self.next_step(points, spent_s)
            if isinstance(found, Finished):
                break
            arm, step = found
            seen = [*points, *self.others]
            (expected,) = self._believed(seen, [arm], step.load, step.window_s, lone_s)
            points.append(imagined(expected))
            steps.append((arm, replace(step, latency_s=points[-1].mean_latency_s)))
            spent_s += steps[-1][1].expected_s
        return tuple((arm, replace(step, total=steps[-1][1].number)) for arm, step in steps)

    def _latency_s(self, arm: Arm, measured: Sequence[Point], clients: int, lone_s: float) -> float:
        """Expected latency (s) of an arm's requests among so many clients; for the arguments see `load_steps`."""
        load = ImposedLoad(LoadMode.CLOSED, clients)
        seen, window_s = [*measured, *self.others], self.of_loads.min_point_seconds
        return self._believed(seen, [arm], load, window_s, lone_s)[0].latency_s

    def _at(
        self,
        own: Mapping[Arm, Sequence[Point]],
        load: ImposedLoad,
        number: int,
        spent_s: float,
        chosen: tuple[Arm, Purchase | SweepStep] | None = None,
    ) -> tuple[Arm, SweepStep] | Finished | None:
        """The next arm at a load; None if every arm that carries it was measured."""
        able = [
            arm
            for arm in (self.arms if number % 2 else self.arms[::-1])
            if carries(own[arm], load) or (chosen and chosen[0] == arm)
        ]
        left = [arm for arm in able if all(point.load != load for point in own[arm])]
        if not left:
            return None
        steps: list[SweepStep | Finished]
        if self.question is not None:
            there = (point.window_s for point in self._seen(own) if point.load == load)
            window_s = (chosen[1].window_s if chosen else next(there, None)) or self.of_loads.point_seconds
            bought = self._believed(self._seen(own), able, load, window_s)
            steps = [self._bought(one, self._left_s(spent_s)) for one in bought]
        else:
            sharing = len(left) if self.beside is None else 1
            steps = [step_at(self.of_loads, own[arm], load, spent_s, sharing) for arm in able]
        # An arm that is measured elsewhere is next only where this engine's own arm has nothing to do.
        arm = next((one for one in left if one in self.own_arms), left[0])
        step = steps[able.index(arm)]
        if isinstance(step, Finished):
            return step
        # One warm-up for all: arrivals are drawn for warm-up and window together.
        warmup_s = max(one.warmup_s for one in steps if isinstance(one, SweepStep))
        total = max(self.of_loads.loads, number)
        return arm, replace(step, warmup_s=warmup_s, number=number, total=total)

    def _next_load(
        self, own: Mapping[Arm, Sequence[Point]], spent_s: float
    ) -> tuple[Arm, Purchase | SweepStep] | Finished:
        """A load that no arm has yet, and the arm for which it was chosen."""
        if self.question is not None:
            asked = replace(self.question, arms=self.arms, running=self.arms[0])
            one = next_point(asked, self._seen(own), self._left_s(spent_s))
            return one if isinstance(one, Finished) else (one.arm, one)
        capacities = {arm: line.saturation_rps for arm in self.arms if (line := line_of_ends(own[arm]))}
        # The arm of the highest capacity carries all loads; the lowest rate is as easy for the arm of the lowest capacity.
        first = max(capacities, key=lambda arm: capacities[arm], default=self.arms[0])
        slower = min(capacities.values(), default=1.0) / capacities.get(first, 1.0)
        settings = replace(self.of_loads, lowest_utilisation=self.of_loads.lowest_utilisation * slower)
        step = next_step(settings, own[first], spent_s)
        return step if isinstance(step, Finished) else (first, step)

    def _last(
        self, own: Mapping[Arm, Sequence[Point]], number: int, spent_s: float
    ) -> tuple[Arm, SweepStep] | None:
        """A load once more, on every arm."""
        for arm in self.own_arms if number % 2 else self.own_arms[::-1]:
            before = [point for point in self.before if point.arm == arm]
            if own[arm] and (step := closing_step(self.of_loads, own[arm], spent_s, before)):
                return arm, step if before else replace(step, number=number, total=number)
        return None

    def _left_s(self, spent_s: float) -> float:
        most_s = self.of_loads.max_seconds
        return math.inf if most_s is None else most_s - spent_s

    def _seen(self, own: Mapping[Arm, Sequence[Point]]) -> list[Point]:
        return [*(point for points in own.values() for point in points), *self.others]

    def _believed(
        self,
        seen: Sequence[Point],
        arms: Sequence[Arm],
        load: ImposedLoad,
        window_s: float,
        lone_s: float = 1.0,
    ) -> list[Purchase]:
        question = self.question or Question(self.arms, self.of_loads, lone_s=lone_s)
        question = replace(question, arms=self.arms, running=self.arms[0])
        return believed(question, seen, arms, load, window_s)

    def _bought(self, step: Purchase, left_s: float) -> SweepStep | Finished:
        if step.measuring_s > left_s:
            reason = f"nothing more fits into {left_s:.0f} s"
            return Finished(complete=False, reason=reason, out_of_time=True)
        rest_s = left_s - (step.measuring_s - step.window_s)
        longest_s = min(10.0 * max(step.window_s, self.of_loads.point_seconds), rest_s)
        means = step.latency_s, step.inflight, step.company_s
        return SweepStep(step.load, *means, step.warmup_s, step.window_s, longest_s, number=0, total=0)


def loads_of(points: Sequence[Point]) -> list[Point]:
    """The points of a sweep's loads: neither at other lengths nor of a pair."""
    return [point for point in of_the_sweep(points) if point.replicate is None]


# A few points at other lengths that show the costs of an engine's steps: without them other lengths are a guess.
#
# Each arm has two, as soon as its first point shows how long prompts are by the engine's own count. Lone requests with a
# longer prompt and answers of two tokens give prefill per prompt token: a few times the lone time to first token. A few
# clients with the longer prompt give what context adds to a step: about six request latencies. With 512 prompt and 256
# output tokens that is one second and up to 20 on the simulated H100. A sweep with little time left skips them.


def probes_of(
    prompt_tokens: float, settings: SweepSettings, left_s: float = math.inf
) -> tuple[SweepStep, ...]:
    """The points at other lengths that an arm needs, by the mean prompt length of its sweep.

    Their numbers, far from the numbers of the other points, determine prompts and arrivals. None are measured if the sweep's own
    loads need all of the time that is left (infinite without a limit).
    """
    longest_s = min(settings.point_seconds, left_s / settings.loads)
    if longest_s < settings.min_point_seconds:
        return ()
    busy = max(min(CLIENTS, settings.max_concurrency // 2), 2)
    return tuple(
        SweepStep(
            load=ImposedLoad(LoadMode.CLOSED, clients),
            latency_s=None,
            inflight=float(clients),
            company_s=0.0,
            warmup_s=0.0,
            window_s=longest_s,
            longest_s=longest_s,
            number=number,
            total=settings.loads,
            prompt_tokens=round(LONGER * prompt_tokens),
        )
        for number, clients in enumerate((1, busy), _FIRST_NUMBER)
    )


def missing_probes(
    points: Sequence[Point], settings: SweepSettings, left_s: float = math.inf
) -> tuple[SweepStep, ...]:
    """The points at other lengths that are still to be measured; none before a point shows how long prompts are."""
    own = of_the_sweep(points)
    known = [point.prompt_tokens for point in own if point.prompt_tokens]
    there = {point.concurrency for point in points if point not in own}
    steps = probes_of(known[0], settings, left_s) if known else ()
    return tuple(step for step in steps if step.load.clients not in there)


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
        missing_probes(measured, settings, left_s)
        if of_the_sweep(measured)
        else probes_of(workload.prompt_tokens, settings, left_s)
    )
    steps = []
    for step in missing:
        clients = step.load.clients or 1
        asked_s = latency_s(clients) if clients > 1 else _lone_s(measured, latency_s(1), workload)
        answers = max(LONE_REQUESTS / clients, FEWEST_GENERATIONS if clients > 1 else 0.0)
        window_s = min(answers * asked_s, step.window_s)
        steps.append(replace(step, latency_s=asked_s, warmup_s=asked_s, window_s=window_s))
    return tuple(steps)


def _lone_s(measured: Sequence[Point], lone_s: float, workload: SentWorkload) -> float:
    """Latency of a lone request with the longer prompt and a short answer; a prompt that was not timed takes a step."""
    step_s = lone_s / workload.output_tokens
    first_s = next((point.ttft_mean_s for point in of_the_sweep(measured) if point.ttft_mean_s), step_s)
    return LONGER * first_s + (LONE_TOKENS - 1) * step_s
