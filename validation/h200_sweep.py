"""Compare one profile of a real GPU with points that were kept apart: `.venv/bin/python -m validation.h200_sweep`.

Points: vLLM 0.26.0 on one NVIDIA H200, 27 November 2026 (docs/validation.md says how); flagged ones are not judged.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from breakeven.arm import Arm
from breakeven.cli.output import print_table
from breakeven.fitting.profiles import fit_points
from breakeven.readers.reading import read_file

_FOLDER = Path(__file__).parent / "h200"


@dataclass(frozen=True, slots=True)
class KeptApart:
    """One load that no fit has seen.

    Attributes:
        arm: what the engine ran.
        rps: offered, Poisson.
        measured_s: mean latency.
        predicted_s: by the profile of the fitted points; infinite beyond saturation.
        bounds_s: of 90 %; infinite where saturation lies within them.
    """

    arm: Arm
    rps: float
    measured_s: float
    predicted_s: float
    bounds_s: tuple[float, float]

    @property
    def error(self) -> float:
        """Relative error of the prediction; negative: too fast."""
        return self.predicted_s / self.measured_s - 1

    @property
    def held(self) -> bool:
        """Whether the bounds hold the measured latency."""
        return self.bounds_s[0] <= self.measured_s <= self.bounds_s[1]


def kept_apart() -> tuple[KeptApart, ...]:
    """Usable points kept apart, each with its prediction."""
    profile = fit_points(read_file(_FOLDER / "points.csv"))
    found = []
    for point in read_file(_FOLDER / "kept_apart.csv"):
        rps = point.load.rps
        if rps is None or not point.usable:
            continue
        predicted = profile.predict(point.arm, rps=rps)
        low_s, high_s = predicted.latency_ci_s or (None, None)
        found.append(
            KeptApart(
                point.arm,
                rps,
                point.mean_latency_s,
                _or_never(predicted.latency_s),
                (_or_never(low_s), _or_never(high_s)),
            )
        )
    return tuple(found)


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def main() -> int:
    """Print the table."""
    rows = [
        (one.arm.name, f"{one.rps:.1f}", f"{one.measured_s:.3f}", f"{one.predicted_s:.3f}",
         f"{one.bounds_s[0]:.3f} to {one.bounds_s[1]:.3f}", f"{100 * one.error:+.1f}", "yes" if one.held else "no")
        for one in kept_apart()
    ]  # fmt: skip
    print_table(("arm", "rps", "measured s", "predicted s", "bounds of 90 %", "error %", "held"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
