"""The door through which every law is judged: fitted to points, asked for latencies and break-evens.

Another law needs one more class with `name` and `fit`, whose result has the four methods of `AskedLaw`, and its place in
`LAWS`. It raises `BreakevenError` where it gives no answer, as the library does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from breakeven.arm import Arm
from breakeven.errors import NotIdentifiedError
from breakeven.fitting import fit_points
from breakeven.points.point import Point
from breakeven.profile import Conditions, Curve, LoadPoint, Prediction, Profile
from breakeven.tiers import Schedule

CONFIDENCE = 0.9
"""Level of all bounds that are judged."""


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
class _FittedProfile:
    profile: Profile
    curves: dict[tuple[Arm, Conditions], Curve] = field(default_factory=dict)

    def latency(self, arm: Arm, load: LoadPoint, conditions: Conditions) -> BoundedFigure:
        """The answer of `breakeven predict`."""
        key = arm, conditions
        if key not in self.curves:
            self.curves[key] = self.profile.curve(arm, conditions)
        found = self.profile.predict_along(arm, self.curves[key], load, confidence=CONFIDENCE)
        return _bounded(found)

    def scheduled_latency(self, method: str, schedule: Schedule, load: LoadPoint) -> BoundedFigure:
        """The law's own answer: k and E follow the number of requests that decode."""
        members = [fit for fit in self.profile.arms if fit.arm.family == method]
        if not members:
            raise NotIdentifiedError(f"{method}/{schedule}: its drafter is not in the profile")
        longest = max(members, key=lambda fit: fit.k)
        member = replace(longest, k=schedule.num_speculative_tokens, schedule=str(schedule))
        known = replace(self.profile, arms=(*self.profile.arms, member))
        return _bounded(known.predict_along(member.arm, known.curve(member.arm), load, confidence=CONFIDENCE))

    def break_even_rps(self, arm: Arm) -> BoundedFigure | None:
        """The break-even that `breakeven plan` prints."""
        low = self.profile.arm(arm).measured_range
        found = self.profile.compare(arm, rps=low.rps[0] if low else 0.0, confidence=CONFIDENCE)
        if found.break_even_rps is None:
            return None
        return BoundedFigure(found.break_even_rps, *(found.break_even_ci_rps or (None, None)))

    def saturation_rps(self, arm: Arm) -> float:
        """The saturation of a profile's curve."""
        return float(self.profile.curve(arm).saturation_rps)


@dataclass(frozen=True, slots=True)
class LawOfSteps:
    """The product's law: the duration of an engine step, one for all arms."""

    name: str = "steps"

    def fit(self, points: Sequence[Point]) -> AskedLaw:
        """The fit of `breakeven fit`."""
        return _FittedProfile(fit_points(points, CONFIDENCE))


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


LAWS: dict[str, LawUnderTest] = {law.name: law for law in (LawOfSteps(),)}
