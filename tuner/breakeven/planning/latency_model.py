"""What deciding needs of a fitted model, and nothing more: `breakeven.profile` has it, and so has a fake of known laws."""

from __future__ import annotations

from typing import Protocol

from breakeven.arm import Arm
from breakeven.planning.objective import Latencies

Bounds = tuple[float | None, float | None]
"""Lower and upper end; `None`: open."""


class PredictionLike(Latencies, Protocol):
    """What a model says about one arm at one load."""

    @property
    def latency_ci_s(self) -> Bounds | None:
        """Interval of the latency (s)."""

    @property
    def utilisation(self) -> float:
        """Rate over saturation under these conditions; measured saturation counts where there is one."""

    @property
    def outside_measured(self) -> bool:
        """Whether the load or the lengths are outside what was measured."""

    @property
    def saturated(self) -> bool:
        """Whether there is no steady state."""


class ComparisonLike(Protocol):
    """What a model says about one arm against another at one load."""

    @property
    def speedup(self) -> float | None:
        """Latency of the other over latency of the arm (1)."""

    @property
    def speedup_ci(self) -> Bounds | None:
        """Interval of the speedup (1)."""

    @property
    def c1_ratio_ci(self) -> Bounds | None:
        """Interval of C1R."""

    @property
    def c2_ratio_ci(self) -> Bounds | None:
        """Interval of C2R."""

    @property
    def c2_ratio(self) -> float | None:
        """C2R: above 1 the gain shrinks with load."""

    @property
    def break_even_rps(self) -> float | None:
        """Rate at which both are equally fast (1/s)."""

    @property
    def break_even_ci_rps(self) -> Bounds | None:
        """Interval of the break-even (1/s)."""


class FittedArm(Protocol):
    """What a model knows of an arm apart from any load."""

    @property
    def believable(self) -> bool:
        """Whether the fit may be used."""

    @property
    def tokens_per_step(self) -> float | None:
        """E when it was calibrated."""


class LatencyModel(Protocol):
    """What deciding needs of a profile (`breakeven.profile.Profile`)."""

    @property
    def confidence(self) -> float:
        """Two-sided confidence of every interval."""

    def arm(self, arm: Arm) -> FittedArm:
        """Return the arm's fit; raise KeyError or a BreakevenError where the arm was not measured."""

    def predict(
        self,
        arm: Arm,
        *,
        rps: float | None = None,
        tokens_per_step: float | None = None,
        prompt_tokens: float | None = None,
        output_tokens: float | None = None,
        quantile: float | None = None,
        or_mean: bool = False,
    ) -> PredictionLike:
        """Predict latencies at `rps`: means, or a quantile; `None` elsewhere: as calibrated.

        With `or_mean` a figure whose quantile was not measured is its mean and named in `means`.
        """

    def compare(
        self,
        arm: Arm,
        against: Arm,
        *,
        rps: float | None = None,
        tokens_per_step: float | None = None,
        against_tokens_per_step: float | None = None,
        prompt_tokens: float | None = None,
        output_tokens: float | None = None,
    ) -> ComparisonLike:
        """Compare at equal rate; `None`: as calibrated."""
