"""The course of one arm's sweep, step by step: loads spread evenly, or bought for their value to a decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from breakeven.arm import Arm
from breakeven.load_driver.design import (
    Finished,
    SweepSettings,
    SweepStep,
    closing_step,
    first_half,
    has_first_half,
    next_step,
    seconds_left,
)
from breakeven.load_driver.next_point import Purchase, believed_point, next_point, planned
from breakeven.load_driver.question import Question
from breakeven.points.point import ImposedLoad, LoadMode, Point


@dataclass(frozen=True, slots=True)
class Course:
    """The loads of one arm's sweep, by points of this arm and of others.

    Attributes:
        question: the decision that its points serve, with this arm alone; None if loads are spread evenly.
        before: points of the arm's first start, if this is its second one; the measured points begin with them.
    """

    settings: SweepSettings
    question: Question | None = None
    others: tuple[Point, ...] = ()
    before: tuple[Point, ...] = ()

    def next_step(self, measured: Sequence[Point], spent_s: float = 0.0) -> SweepStep | Finished:
        """The next load to measure, or the reason why there is none.

        `measured` are points of this arm, flagged ones included; `spent_s` is the time that the sweep has taken so far.
        """
        if self.settings.halved and has_first_half(self.settings, measured):
            loads = self.settings.loads
            reason = f"{first_half(loads)} of {loads} loads measured; a second start measures the others"
            return Finished(complete=False, reason=reason)
        if self.question is None:
            return next_step(self.settings, measured, spent_s)
        step = next_point(self.question, [*measured, *self.others], self._left_s(spent_s))
        if isinstance(step, Finished):
            return step
        return self._step(
            step, len(measured) + 1, len(measured) + len(self._plan(measured, spent_s)), spent_s
        )

    def step_or_last(self, measured: Sequence[Point], spent_s: float = 0.0) -> SweepStep | Finished:
        """The next load to measure; after all others one of them again, which shows how starts and minutes differ."""
        step = self.next_step(measured, spent_s)
        return (self.last_step(measured, spent_s, step) or step) if isinstance(step, Finished) else step

    def last_step(self, measured: Sequence[Point], spent_s: float, ended: Finished) -> SweepStep | None:
        """The step after all others; None if the sweep ended before it had what it wanted, or the step was measured."""
        at_end = ended.complete or (self.before and not ended.out_of_time)
        return closing_step(self.settings, measured, spent_s, self.before) if at_end and measured else None

    def seconds_left(self, measured: Sequence[Point], spent_s: float = 0.0) -> float:
        """Estimate of the time to the end of the sweep (s)."""
        if self.question is None:
            return seconds_left(self.settings, measured, spent_s)
        return sum(step.measuring_s for step in self._plan(measured, spent_s))

    def steps(
        self, arm: Arm, measured: Sequence[Point], lone_s: float, spent_s: float = 0.0
    ) -> tuple[SweepStep, ...]:
        """All steps that are left, if every point comes out as expected now.

        `lone_s` is a guess at a lone request's latency without speculation (s), used while there is no point.
        """
        if self.question is not None:
            plan = self._plan(measured, spent_s)
            total = len(measured) + len(plan)
            bought = tuple(
                self._step(step, number, total, spent_s)
                for number, step in enumerate(plan, len(measured) + 1)
            )
            seen = [*measured, *self.others]
            points = [
                *measured,
                *(believed_point(self.question, seen, one.load, one.window_s) for one in plan),
            ]
            spent_s += sum(one.measuring_s for one in plan)
            last = self.last_step(points, spent_s, Finished(complete=True, reason="all are bought"))
            course = [*bought, *([] if last is None else [last])]
            return tuple(replace(step, total=len(measured) + len(course)) for step in course)
        question = self._asked(arm, lone_s)
        points, steps = list(measured), list[SweepStep]()
        while isinstance(step := self.next_step(points, spent_s), SweepStep):
            point = believed_point(question, [*points, *self.others], step.load, step.window_s)
            steps.append(replace(step, latency_s=point.mean_latency_s))
            points.append(point)
            spent_s += steps[-1].expected_s
        steps += [last] if (last := self.last_step(points, spent_s, step)) is not None else []
        return tuple(replace(step, total=len(measured) + len(steps)) for step in steps)

    def latency_s(self, arm: Arm, measured: Sequence[Point], clients: int, lone_s: float) -> float:
        """Expected latency (s) of an arm's requests among so many clients; for the arguments see `steps`."""
        load, question = ImposedLoad(LoadMode.CLOSED, clients), self._asked(arm, lone_s)
        window_s = self.settings.min_point_seconds
        return believed_point(question, [*measured, *self.others], load, window_s).mean_latency_s

    def _asked(self, arm: Arm, lone_s: float) -> Question:
        return self.question or Question((arm,), self.settings, running=arm, lone_s=lone_s)

    def _left_s(self, spent_s: float) -> float:
        most_s = self.settings.max_seconds
        return math.inf if most_s is None else most_s - spent_s

    def _plan(self, measured: Sequence[Point], spent_s: float) -> tuple[Purchase, ...]:
        if self.question is None:
            return ()
        return planned(self.question, [*measured, *self.others], self._left_s(spent_s))

    def _step(self, step: Purchase, number: int, total: int, spent_s: float) -> SweepStep:
        rest_s = self._left_s(spent_s) - (step.measuring_s - step.window_s)
        return SweepStep(
            load=step.load,
            latency_s=step.latency_s,
            inflight=step.inflight,
            company_s=step.company_s,
            warmup_s=step.warmup_s,
            window_s=step.window_s,
            longest_s=min(10.0 * max(step.window_s, self.settings.point_seconds), rest_s),
            number=number,
            total=max(total, number),
        )
