"""The door through which every law is judged: fitted to points, asked for latencies and break-evens.

Another law needs one more class with `name` and `fit`, whose result has the four methods of `AskedLaw`, and its place in
`LAWS`. It raises `BreakevenError` where it gives no answer, as the library does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import NotIdentifiedError
from breakeven.fitting import fit_points
from breakeven.laws.step_law import Tier
from breakeven.points.point import Point
from breakeven.profile import Conditions, Curve, LoadPoint, Prediction, Profile
from breakeven.profile.predictions import predict_on
from breakeven.profile.step_curves import step_conditions, step_curve
from breakeven.tiers import Schedule

CONFIDENCE = 0.9
"""Of all bounds that are judged."""


class BoundedFigure(NamedTuple):
    """A figure and its bounds; None is an open end. An infinite latency is that of a saturated arm."""

    value: float
    lower: float | None
    upper: float | None

    def holds(self, truth: float) -> bool:
        """Whether the truth lies within the bounds."""
        return (self.lower is None or self.lower <= truth) and (self.upper is None or truth <= self.upper)


class AskedLaw(Protocol):
    """A law fitted to the points of one engine. Every method raises `BreakevenError` where it has no answer."""

    def latency(self, arm: Arm, load: LoadPoint, conditions: Conditions) -> BoundedFigure:
        """Mean latency (s) at a load; the arm need not have been measured."""
        ...

    def scheduled_latency(self, method: str, schedule: Schedule, load: LoadPoint) -> BoundedFigure:
        """Mean latency (s) of a schedule that was not measured."""
        ...

    def break_even_rps(self, arm: Arm) -> BoundedFigure | None:
        """The rate at which the arm stops or begins to pay; None where it sees none."""
        ...

    def saturation_rps(self, arm: Arm) -> float:
        """The rate that the arm carries."""
        ...


class LawUnderTest(Protocol):
    """A law that can be fitted."""

    @property
    def name(self) -> str:
        """Its name in tables."""
        ...

    def fit(self, points: Sequence[Point]) -> AskedLaw:
        """Fit all arms of an engine."""
        ...


def _bounded(found: Prediction) -> BoundedFigure:
    if found.latency_s is None:
        return BoundedFigure(math.inf, None, None)
    return BoundedFigure(found.latency_s, *(found.latency_ci_s or (None, None)))


@dataclass(frozen=True, slots=True)
class _FittedArms:
    profile: Profile
    curves: dict[tuple[Arm, Conditions], Curve] = field(default_factory=dict)

    def latency(self, arm: Arm, load: LoadPoint, conditions: Conditions) -> BoundedFigure:
        """The answer of `breakeven predict`; none for an arm that `plan` would not believe."""
        if self.profile.measured(arm) and not (fit := self.profile.arm(arm)).believable:
            raise NotIdentifiedError(f"{arm}: {fit.reason}")
        key = arm, conditions
        if key not in self.curves:
            self.curves[key] = self.profile.curve(arm, conditions)
        found = self.profile.predict_along(arm, self.curves[key], load, conditions, confidence=CONFIDENCE)
        return _bounded(found)

    def scheduled_latency(self, method: str, schedule: Schedule, load: LoadPoint) -> BoundedFigure:
        """A schedule must be measured."""
        raise NotIdentifiedError(f"{method}/{schedule} at {load}: a schedule must be measured")

    def break_even_rps(self, arm: Arm) -> BoundedFigure | None:
        """The break-even that `breakeven plan` prints."""
        for one in (arm, NO_SPECULATION):
            if not (fit := self.profile.arm(one)).believable:
                raise NotIdentifiedError(f"{one}: {fit.reason}")
        low = self.profile.arm(arm).measured_range
        found = self.profile.compare(arm, rps=low.rps[0] if low else 0.0, confidence=CONFIDENCE)
        if found.break_even_rps is None:
            return None
        return BoundedFigure(found.break_even_rps, *(found.break_even_ci_rps or (None, None)))

    def saturation_rps(self, arm: Arm) -> float:
        """The saturation of a profile's curve."""
        return float(self.profile.curve(arm).saturation_rps)


@dataclass(frozen=True, slots=True)
class LawsOfArms:
    """The product's laws: two numbers for each arm and conversions between them."""

    name: str = "today"

    def fit(self, points: Sequence[Point]) -> AskedLaw:
        """The fit of `breakeven fit`."""
        return _FittedArms(fit_points(points, CONFIDENCE))


@dataclass(frozen=True, slots=True)
class _FittedSteps(_FittedArms):
    def scheduled_latency(self, method: str, schedule: Schedule, load: LoadPoint) -> BoundedFigure:
        """The law's own answer: k and E follow the number of requests that decode."""
        family = next((one for one in self.profile.pooled if one.method == method), None)
        arm = Arm(method, schedule.num_speculative_tokens, scheduled=True)
        fixed = step_conditions(Arm(method, arm.k), self.profile.arms, self.profile.pooled, Conditions())
        if self.profile.steps is None or fixed is None or family is None or family.acceptance is None:
            raise NotIdentifiedError(f"{arm}: nothing is known of its steps or its acceptance")
        accepts = family.acceptance
        tiers = tuple(
            Tier(first, np.asarray(float(k)), np.asarray(accepts.at(k).value if k else 1.0))
            for first, k in schedule.tiers
        )
        asked = fixed._replace(demand=fixed.demand._replace(tiers=tiers))
        curve = step_curve(self.profile.steps, arm, asked)
        return _bounded(predict_on(arm, curve, load, CONFIDENCE))


@dataclass(frozen=True, slots=True)
class LawOfSteps:
    """The duration of an engine step, one law for all arms."""

    name: str = "steps"

    def fit(self, points: Sequence[Point]) -> AskedLaw:
        """The fit of `breakeven fit --law steps`."""
        return _FittedSteps(fit_points(points, CONFIDENCE, law="steps"))


class _NoAnswer:
    """Answers nothing."""

    def latency(self, arm: Arm, load: LoadPoint, conditions: Conditions) -> BoundedFigure:
        """None."""
        raise NotIdentifiedError(f"{arm} at {load}, {conditions}: not fitted")

    def scheduled_latency(self, method: str, schedule: Schedule, load: LoadPoint) -> BoundedFigure:
        """None."""
        raise NotIdentifiedError(f"{method}/{schedule} at {load}: not fitted")

    def break_even_rps(self, arm: Arm) -> BoundedFigure | None:
        """None."""
        raise NotIdentifiedError(f"{arm}: not fitted")

    def saturation_rps(self, arm: Arm) -> float:
        """None."""
        raise NotIdentifiedError(f"{arm}: not fitted")


@dataclass(frozen=True, slots=True)
class NoLaw:
    """Answers nothing: what is asked of it is asked of the engine alone, which makes the engine's figures."""

    name: str = "no law"

    def fit(self, points: Sequence[Point]) -> AskedLaw:
        """Nothing, from however many points."""
        del points
        return _NoAnswer()


LAWS: dict[str, LawUnderTest] = {law.name: law for law in (LawsOfArms(), LawOfSteps())}
