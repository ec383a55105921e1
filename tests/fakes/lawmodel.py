"""Profiles of known laws: fits as a calibration writes them, with as much noise as a test wants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import ArmFit, Conditions, Curve, LineFit, Profile
from breakeven.profile.curves import in_bursts
from breakeven.profile.fits import Acceptance, Measurement
from fakes.straight_curve import Law, straight_curve

_DOF = 11
_FAR = 1e6
"""Others in flight up to which an arm counts as measured unless a test says otherwise."""


@dataclass(frozen=True)
class ArmLaw:
    """L = C1 + C2*n of one arm; TTFT is a tenth of it, TPOT a hundredth.

    Attributes:
        noise: relative standard deviation of C1 and of C2.
        measured_to_rps: highest rate at which it was measured.
        p95_over_mean: p95 of each figure over its mean; None: no quantile was measured.
    """

    c1_s: float
    c2_s: float
    tokens_per_step: float | None = None
    noise: float = 0.0
    measured_saturation_rps: float | None = None
    measured_to_rps: float = math.inf
    p95_over_mean: float | None = None

    @property
    def saturation_rps(self) -> float:
        return min(1.0 / self.c2_s, self.measured_saturation_rps or math.inf)

    def scaled(self, factor: float) -> LineFit:
        c1, c2 = self.c1_s * factor, self.c2_s * factor
        return LineFit(c1, c2, (((self.noise * c1) ** 2, 0.0), (0.0, (self.noise * c2) ** 2)), _DOF)

    def fitted(self, arm: Arm) -> ArmFit:
        to = self.measured_to_rps
        left = 1.0 - to * self.c2_s
        most = to * self.c1_s / left if math.isfinite(to) and left > 0 else _FAR
        p95 = {} if self.p95_over_mean is None else {"0.95": self.p95_over_mean}
        return ArmFit(
            arm.method,
            arm.k,
            arm.candidate,
            c1_s=self.c1_s,
            c2_s=self.c2_s,
            saturation_rps=self.saturation_rps,
            ttft=self.scaled(0.1),
            tpot=self.scaled(0.01),
            quantiles={q: self.scaled(over) for q, over in p95.items()},
            ttft_quantiles={q: self.scaled(0.1 * over) for q, over in p95.items()},
            tpot_quantiles={q: self.scaled(0.01 * over) for q, over in p95.items()},
            acceptance=None if self.tokens_per_step is None else Acceptance(self.tokens_per_step),
            measured_saturation_rps=self.measured_saturation_rps,
            measurements=tuple(
                Measurement(row, "laws.csv", "closed", n, n + 1.0, 0.0, self.c1_s + n * self.c2_s)
                for row, n in enumerate((0.0, most))
            ),
        )


@dataclass(frozen=True)
class LawModel(Profile):
    """A profile, and the laws that it was made of."""

    laws: Mapping[Arm, ArmLaw] = field(default_factory=dict)

    def curve(self, arm: Arm, conditions: Conditions | None = None) -> Curve:
        """The line of a law; another acceptance moves all of it, because nothing here is prefill."""
        fit, wanted = self.arm(arm), conditions or Conditions()
        wanted.check(arm)
        wanted.check_measured(fit)
        law = self.laws[arm]
        e = wanted.tokens_per_step if arm.k else None
        slower = (law.tokens_per_step or 1.0) / e if e is not None else 1.0
        at = list(self.laws).index(arm)
        line = law.scaled(slower)
        found = straight_curve(
            Law(line.c1_s, line.c2_s, line.covariance),
            _DOF,
            0.0,
            own=2 * at,
            sources=2 * len(self.laws),
            others_range=(0.0, max(one.others for one in fit.measurements)),
            ceiling_rps=law.measured_saturation_rps,
            ttft=law.scaled(0.1),
            tpot=law.scaled(0.01),
        )
        return in_bursts(found, wanted.dispersion)


def law_model(laws: Mapping[Arm, ArmLaw], confidence: float = 0.9) -> LawModel:
    return LawModel(confidence, tuple(law.fitted(arm) for arm, law in laws.items()), laws=laws)


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
    return law_model({**laws, **{names[name]: law for name, law in changes.items()}})
