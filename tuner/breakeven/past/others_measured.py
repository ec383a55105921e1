"""Arms that did not run in a past, each beside the nearest measurement of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple
from typing import NamedTuple

from breakeven.arm import ADAPTIVE, NO_SPECULATION, Arm
from breakeven.past.past_reading import KnownPast
from breakeven.phrases import figure
from breakeven.prior.public_table import RatioRow, ServiceFacts, nearest_row

FROM_PRIOR = "FromPrior"
"""Mark of a figure that others measured: it starts no roll and holds no calibration back."""
USUAL_ARMS = (Arm("eagle3", 3), Arm("mtp", 2), Arm("ngram_gpu", 3))
"""Arms that are looked up if nobody names any: a drafter of its own, one inside the checkpoint, and none."""


class OthersMeasured(NamedTuple):
    """An arm that never ran, beside the nearest measurement of others.

    It would pay up to a rate per pod with these ratios: 0 if not even alone, infinite if up to saturation, None if the past has
    no law of no speculation, or the row no slope.
    """

    arm: Arm
    row: RatioRow
    pays_until_rps: float | None

    @property
    def sentence(self) -> str:
        """The measurement in words, without a full stop."""
        row, slope = self.row, self.row.slope_ratio
        on = " on ".join(one for one in (row.model, row.facts.gpu or "") if one)
        company = "" if slope is None else f", each other request {figure(slope, 2)} times as much"
        alone = f"a lone request takes {figure(row.lone_ratio or math.nan, 2)} times as long{company}"
        return f"{FROM_PRIOR}: {self.arm}: {row.method}/{ADAPTIVE if row.adaptive else row.k} of {on or row.source}: {alone}"


def others_measured(past: KnownPast, asked: Sequence[Arm], facts: ServiceFacts) -> tuple[OthersMeasured, ...]:
    """Look the arms up that might be calibrated (the usual ones if none is asked for) and did not run; methods without a row are left out."""
    fits = past.profile.arms if past.profile is not None else ()
    ran = {one.arm for one in fits if one.measurements}
    none = next((one for one in fits if one.arm == NO_SPECULATION), None)
    pairs = [(arm, nearest_row(facts, arm)) for arm in asked or USUAL_ARMS if arm.k and arm not in ran]
    return tuple(
        OthersMeasured(
            arm, row, pays_until_rps(row.lone_ratio, row.slope_ratio, none.c2_s if none is not None else None)
        )
        for arm, row in pairs
        if row is not None
    )


def pays_until_rps(lone: float | None, slope: float | None, c2_s: float | None) -> float | None:
    """The rate at which C1/(1 - rps*C2) is the same for both, by the ratios of C1 and C2 and the C2 of no speculation.

    0 if the arm is not faster even alone, infinite if up to saturation, None if something is not known.
    """
    if lone is None or slope is None or not c2_s:
        return None
    if lone >= 1.0:
        return 0.0
    return math.inf if slope <= 1.0 else (1.0 - lone) / (slope - lone) / c2_s


def facts_of_past(past: KnownPast, given: ServiceFacts) -> ServiceFacts:
    """Facts of the service: those given, else those that the model's name and the pods' GPU say."""
    known = past.arms[0].kind.fingerprint
    said = ServiceFacts.of_name((known.model or "").rsplit("/", 1)[-1], known.gpu)
    pairs = zip(astuple(given), astuple(said), strict=True)
    return ServiceFacts(*(theirs if own in (None, "") else own for own, theirs in pairs))
