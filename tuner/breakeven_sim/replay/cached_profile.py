"""A profile that answers the same question once.

A week of windows asks for the same comparisons at nearly the same rates over and over, and a comparison with its
bounds costs a millisecond. Rates are rounded to a grid of 1 %, which moves a latency at most at utilisation 0.75 by
2 %: less than the load of a window is known by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from breakeven.arm import Arm
from breakeven.errors import BreakevenError
from breakeven.profile import ArmFit, Comparison, Prediction, Profile

_GRID = 0.01


@dataclass(slots=True)
class RememberingProfile:
    """Answers like the profile, from memory where it can; refusals are remembered as well.

    Attributes:
        profile: who knows.
    """

    profile: Profile
    _answers: dict[Any, Any] = field(default_factory=dict)

    @property
    def confidence(self) -> float:
        """Two-sided confidence of every interval."""
        return self.profile.confidence

    def arm(self, arm: Arm) -> ArmFit:
        """The arm's fit."""
        return self.profile.arm(arm)

    def predict(self, arm: Arm, *, rps: float | None = None, **conditions: Any) -> Prediction:
        """As `Profile.predict`, at the nearest rate of the grid."""
        rounded = _rounded(rps)
        key = (arm, rounded, *conditions.items())
        answer: Prediction = self._answer(key, lambda: self.profile.predict(arm, rps=rounded, **conditions))
        return answer

    def compare(self, arm: Arm, against: Arm, *, rps: float | None = None, **conditions: Any) -> Comparison:
        """As `Profile.compare`, at the nearest rate of the grid."""
        rounded = _rounded(rps)
        key = (arm, against, rounded, *conditions.items())
        answer: Comparison = self._answer(
            key, lambda: self.profile.compare(arm, against, rps=rounded, **conditions)
        )
        return answer

    def _answer(self, key: Any, ask: Any) -> Any:
        if key not in self._answers:
            try:
                self._answers[key] = ask()
            except BreakevenError as refusal:
                self._answers[key] = refusal
        answer = self._answers[key]
        if isinstance(answer, BreakevenError):
            raise answer
        return answer


def _rounded(rps: float | None) -> float | None:
    if rps is None or rps <= 0.0:
        return rps
    return math.exp(round(math.log(rps) / _GRID) * _GRID)
