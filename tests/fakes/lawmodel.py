"""A profile of known laws: what the guard sees of a fit, with as much noise as a test wants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.laws.arrays import FloatArray
from breakeven.laws.fieller import Interval
from breakeven.laws.law import Law
from breakeven.laws.speedup import (
    break_even_interval_rps,
    break_even_rps,
    c1_ratio_interval,
    c2_ratio,
    c2_ratio_interval,
    speedup_at_rps,
    speedup_interval_at_rps,
)


@dataclass(frozen=True)
class ArmLaw:
    c1_s: float
    c2_s: float
    tokens_per_step: float | None = None
    noise: float = 0.0
    believable: bool = True
    measured_saturation_rps: float | None = None
    measured_to_rps: float = math.inf
    p95_over_mean: float | None = None

    @property
    def saturation_rps(self) -> float:
        return min(1.0 / self.c2_s, self.measured_saturation_rps or math.inf)

    def at(self, tokens_per_step: float | None) -> Law:
        factor = 1.0
        if tokens_per_step is not None and self.tokens_per_step:
            factor = self.tokens_per_step / tokens_per_step
        c1, c2 = self.c1_s * factor, self.c2_s * factor
        return Law(c1, c2, (((self.noise * c1) ** 2, 0.0), (0.0, (self.noise * c2) ** 2)))


@dataclass(frozen=True)
class Predicted:
    latency_s: float | None
    latency_ci_s: tuple[float | None, float | None] | None
    ttft_s: float | None
    tpot_s: float | None
    utilisation: float
    outside_measured: bool
    saturated: bool
    means: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compared:
    speedup: float | None
    speedup_ci: tuple[float | None, float | None] | None
    c1_ratio_ci: tuple[float | None, float | None] | None
    c2_ratio_ci: tuple[float | None, float | None] | None
    c2_ratio: float | None
    break_even_rps: float | None
    break_even_ci_rps: tuple[float | None, float | None] | None


@dataclass(frozen=True)
class LawModel:
    """Answers like a profile; E other than calibrated scales a whole arm, and TPOT is a hundredth of the latency.

    Any quantile is `p95_over_mean` times the mean, or was not measured where that is None.
    """

    laws: Mapping[Arm, ArmLaw]
    confidence: float = 0.9
    t: float = 1.8

    def arm(self, arm: Arm) -> ArmLaw:
        return self.laws[arm]

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
    ) -> Predicted:
        rate = rps or 0.0
        law = self.laws[arm].at(tokens_per_step)
        left = 1.0 - rate * float(law.c2)
        used = rate / min(1.0 / float(law.c2), self.laws[arm].measured_saturation_rps or math.inf)
        if left <= 0:
            return Predicted(None, None, None, None, used, outside_measured=True, saturated=True)
        latency = float(law.c1) / left
        spread = self.t * self.laws[arm].noise / left
        bounds = (max(latency * (1 - spread), 0.0), latency * (1 + spread))
        far = rate > self.laws[arm].measured_to_rps
        means: tuple[str, ...] = ()
        if quantile is not None:
            over = self.laws[arm].p95_over_mean
            means = ("latency_s", "ttft_s", "tpot_s") if over is None else ()
            latency *= over or 1.0
        return Predicted(
            latency,
            bounds,
            0.1 * latency,
            0.01 * latency,
            used,
            outside_measured=far,
            saturated=False,
            means=means,
        )

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
    ) -> Compared:
        rate = rps or 0.0
        mine, other = self.laws[arm].at(tokens_per_step), self.laws[against].at(against_tokens_per_step)
        speedup = float(speedup_at_rps(other, mine, rate))
        return Compared(
            speedup=None if math.isnan(speedup) else speedup,
            speedup_ci=None
            if math.isnan(speedup) or speedup in (0.0, math.inf)
            else _bounds(speedup_interval_at_rps(other, mine, rate, self.t)),
            c1_ratio_ci=_bounds(c1_ratio_interval(other, mine, self.t)),
            c2_ratio_ci=_bounds(c2_ratio_interval(other, mine, self.t)),
            c2_ratio=float(c2_ratio(other, mine)),
            break_even_rps=_figure(break_even_rps(other, mine)),
            break_even_ci_rps=_bounds(break_even_interval_rps(other, mine, self.t)),
        )


def _figure(value: FloatArray) -> float | None:
    return float(value) if np.isfinite(value) else None


def _bounds(interval: Interval) -> tuple[float | None, float | None]:
    return (_figure(interval.lower), _figure(interval.upper))


EAGLE = Arm("eagle3", 7, "eagle")
EAGLE_2 = Arm("eagle3", 2, "eagle")
LOOKUP = Arm("ngram", 4, "lookup")


def chat(noise: float = 0.01, **changes: ArmLaw) -> LawModel:
    """No speculation (1.10 s, 29.3 ms), eagle/7 (0.53 s, 43.4 ms): pays until 18.7 requests per second."""
    laws = {
        NO_SPECULATION: ArmLaw(1.10, 0.0293, noise=noise),
        EAGLE: ArmLaw(0.53, 0.0434, tokens_per_step=3.0, noise=noise),
    }
    names = {"none": NO_SPECULATION, "eagle": EAGLE, "eagle_2": EAGLE_2, "lookup": LOOKUP}
    return LawModel({**laws, **{names[name]: law for name, law in changes.items()}})
