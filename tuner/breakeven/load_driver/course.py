"""The course of a sweep, load by load with all arms inside: loads spread evenly, or bought for their value to a decision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from breakeven.arm import Arm
from breakeven.load_driver.design import (
    Finished,
    SweepSettings,
    SweepStep,
    carries,
    closing_step,
    has_first_half,
    line_of_ends,
    next_step,
    seconds_left,
    step_at,
)
from breakeven.load_driver.next_point import Purchase, believed, imagined, next_point
from breakeven.load_driver.question import Question
from breakeven.points.point import ImposedLoad, LoadMode, Point, first_half

_MOST_STEPS = 500


@dataclass(frozen=True, slots=True)
class Course:
    """The loads of a sweep: every arm that carries a load is measured at it before the next load is chosen.

    A machine that drifts then moves all arms at one load alike, and their ratio stays. The order of the arms is reversed at
    each load, so that none of them is always the later one.

    Attributes:
        arms: arms whose engines are up.
        question: the decision that its points serve; None if loads are spread evenly.
        others: points of other arms, by which loads are chosen.
        before: points of the first start, if this is the second one of an arm's engine; the measured points begin with them.
    """

    arms: tuple[Arm, ...]
    settings: SweepSettings
    question: Question | None = None
    others: tuple[Point, ...] = ()
    before: tuple[Point, ...] = ()

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
        if self.settings.halved and all(has_first_half(self.settings, points) for points in own.values()):
            first, all_loads = first_half(self.settings.loads), self.settings.loads
            reason = f"{first} of {all_loads} loads measured; a second start measures the others"
            return Finished(complete=False, reason=reason)
        found = self._next_load(own, spent_s)
        if isinstance(found, Finished):
            at_end = found.complete or (self.before and not found.out_of_time)
            return (self._last(own, len(loads) + 1, spent_s) if at_end else None) or found
        chosen = self._at(own, found.load, len(loads) + 1, spent_s, found)
        return chosen or Finished(complete=False, reason=f"{found.load} was measured")

    def left_out(self, measured: Sequence[Point]) -> dict[Arm, list[ImposedLoad]]:
        """Loads of the sweep that are beyond the capacity of an arm, by arm."""
        found = dict[Arm, list[ImposedLoad]]()
        for arm, load in product(self.arms, dict.fromkeys(point.load for point in measured)):
            own = [point for point in measured if point.arm == arm]
            if not carries(self.settings, own, load) and all(point.load != load for point in own):
                found.setdefault(arm, []).append(load)
        return found

    def seconds_left(self, measured: Sequence[Point], spent_s: float = 0.0) -> float:
        """Estimate of the time to the end of the sweep (s)."""
        if self.question is not None:
            return sum(step.expected_s for _, step in self.steps(measured, self.question.lone_s, spent_s))
        own = ([point for point in measured if point.arm == arm] for arm in self.arms)
        left_s = sum(seconds_left(self.settings, points) for points in own)
        return max(0.0, min(left_s, self._left_s(spent_s)))

    def steps(
        self, measured: Sequence[Point], lone_s: float, spent_s: float = 0.0
    ) -> tuple[tuple[Arm, SweepStep], ...]:
        """All steps that are left, if every point comes out as expected now.

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

    def latency_s(self, arm: Arm, measured: Sequence[Point], clients: int, lone_s: float) -> float:
        """Expected latency (s) of an arm's requests among so many clients; for the arguments see `steps`."""
        load = ImposedLoad(LoadMode.CLOSED, clients)
        seen, window_s = [*measured, *self.others], self.settings.min_point_seconds
        return self._believed(seen, [arm], load, window_s, lone_s)[0].latency_s

    def _at(
        self,
        own: Mapping[Arm, Sequence[Point]],
        load: ImposedLoad,
        number: int,
        spent_s: float,
        chosen: _Chosen | None = None,
    ) -> tuple[Arm, SweepStep] | Finished | None:
        """The next arm at a load; None if every arm that carries it was measured."""
        able = [
            arm
            for arm in (self.arms if number % 2 else self.arms[::-1])
            if carries(self.settings, own[arm], load) or (chosen and chosen.arm == arm)
        ]
        left = [arm for arm in able if all(point.load != load for point in own[arm])]
        if not left:
            return None
        steps: list[SweepStep | Finished]
        if self.question is not None:
            there = (point.window_s for point in self._seen(own) if point.load == load)
            window_s = (chosen.window_s if chosen else next(there, None)) or self.settings.point_seconds
            bought = self._believed(self._seen(own), able, load, window_s)
            steps = [self._bought(one, self._left_s(spent_s)) for one in bought]
        else:
            steps = [step_at(self.settings, own[arm], load, spent_s, len(left)) for arm in able]
        step = steps[able.index(left[0])]
        if isinstance(step, Finished):
            return step
        # One warm-up for all: arrivals are drawn for warm-up and window together.
        warmup_s = max(one.warmup_s for one in steps if isinstance(one, SweepStep))
        total = max(self.settings.loads, number)
        return left[0], replace(step, warmup_s=warmup_s, number=number, total=total)

    def _next_load(self, own: Mapping[Arm, Sequence[Point]], spent_s: float) -> _Chosen | Finished:
        """A load that no arm has yet."""
        if self.question is not None:
            asked = replace(self.question, arms=self.arms, running=self.arms[0])
            one = next_point(asked, self._seen(own), self._left_s(spent_s))
            return one if isinstance(one, Finished) else _Chosen(one.arm, one.load, one.window_s)
        capacities = {arm: line.saturation_rps for arm in self.arms if (line := line_of_ends(own[arm]))}
        # The arm of the highest capacity carries all loads; the lowest rate is as easy for the arm of the lowest capacity.
        first = max(capacities, key=lambda arm: capacities[arm], default=self.arms[0])
        slower = min(capacities.values(), default=1.0) / capacities.get(first, 1.0)
        settings = replace(self.settings, lowest_utilisation=self.settings.lowest_utilisation * slower)
        step = next_step(settings, own[first], spent_s)
        return step if isinstance(step, Finished) else _Chosen(first, step.load)

    def _last(
        self, own: Mapping[Arm, Sequence[Point]], number: int, spent_s: float
    ) -> tuple[Arm, SweepStep] | None:
        """A load once more, on every arm."""
        for arm in self.arms if number % 2 else self.arms[::-1]:
            if own[arm] and (step := closing_step(self.settings, own[arm], spent_s, self.before)):
                return arm, step if self.before else replace(step, number=number, total=number)
        return None

    def _left_s(self, spent_s: float) -> float:
        most_s = self.settings.max_seconds
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
        question = self.question or Question(self.arms, self.settings, lone_s=lone_s)
        question = replace(question, arms=self.arms, running=self.arms[0])
        return believed(question, seen, arms, load, window_s)

    def _bought(self, step: Purchase, left_s: float) -> SweepStep | Finished:
        if step.measuring_s > left_s:
            reason = f"nothing more fits into {left_s:.0f} s"
            return Finished(complete=False, reason=reason, out_of_time=True)
        rest_s = left_s - (step.measuring_s - step.window_s)
        longest_s = min(10.0 * max(step.window_s, self.settings.point_seconds), rest_s)
        means = step.latency_s, step.inflight, step.company_s
        return SweepStep(step.load, *means, step.warmup_s, step.window_s, longest_s, number=0, total=0)


class _Chosen(NamedTuple):
    """The next load, the arm for which it was chosen, and its window if it was bought."""

    arm: Arm
    load: ImposedLoad
    window_s: float | None = None
