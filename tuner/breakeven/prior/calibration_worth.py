"""Whether a calibration is worth its GPU time: the past's law of no speculation, the prior's ratios and the loads that were seen.

The gain is the share of request time that an arm would save if it ran at the loads at which it pays. Nothing here is a reason for
a roll: an arm that was never run is marked `FromPrior`, and only a measurement takes the mark off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.estimate import Estimate
from breakeven.laws.arrays import FloatArray
from breakeven.phrases import figure
from breakeven.prior.expected_ratios import AskedArm, ExpectedRatios
from breakeven.profile.fits import ArmFit

DRAWS = 4000
DEFAULT_ARMS = (AskedArm(Arm("eagle3", 3)), AskedArm(Arm("mtp", 2)), AskedArm(Arm("ngram", 3)))
"""Arms that are asked about if nobody names any: a drafter of its own, one inside the checkpoint, and none."""
LEAST_GAIN = 0.05
"""Share of request time below which a gain is taken for nothing: engines differ by as much from start to start."""
_LEAST_ADDED = 0.01
"""Mean gain that an arm adds to those bought before it, below which it is not bought beside them."""
_BINS = 24
"""Loads that are looked at; more are gathered by rate, because draws times loads fill the memory."""
_FULLEST = 0.97
"""Share of saturation up to which a law is followed."""
_ERROR_IF_UNKNOWN = 0.3
"""Relative error of C2 if a fit has no degrees of freedom."""
_LARGEST_ERROR = 1.0
"""Relative error of C2 beyond which no fit is followed, and that of a fit that is not believed."""
_DAY_H = 24.0
_DRAWN_FROM = 20_261_127


class WorthWord(StrEnum):
    """Answer to whether a calibration is worth it, and the mark of what the prior says."""

    FROM_PRIOR = "FromPrior"
    CALIBRATION_PAYS = "CalibrationPays"
    CALIBRATION_MAY_PAY = "CalibrationMayPay"
    CALIBRATION_PAYS_NOTHING = "CalibrationPaysNothing"
    NO_LAW_OF_NONE = "NoLawOfNone"
    NO_LOAD_SEEN = "NoLoadSeen"
    ALL_ARMS_RAN = "AllArmsRan"


WORTH_MEANINGS = {
    WorthWord.FROM_PRIOR: "the figure comes from other people's measurements: it never starts a roll",
    WorthWord.CALIBRATION_PAYS: "even the low end of the bounds is a gain",
    WorthWord.CALIBRATION_MAY_PAY: "the bounds hold both a gain and nothing",
    WorthWord.CALIBRATION_PAYS_NOTHING: "even the high end of the bounds is no gain: spend no GPU on it",
    WorthWord.NO_LAW_OF_NONE: "the past has no law of no speculation to compare with",
    WorthWord.NO_LOAD_SEEN: "no load was seen that a gain could be counted at",
    WorthWord.ALL_ARMS_RAN: "every arm that was asked about ran: its break-even is measured",
}
"""Meaning of each word."""


class SeenLoads(NamedTuple):
    """Loads of one replica: rates (1/s), above 0, and the time (any unit) that each lasted; both of one length."""

    rates_rps: tuple[float, ...]
    lasted: tuple[float, ...]


class CalibrationCost(NamedTuple):
    """Time that the calibration of one arm takes of its GPUs.

    Attributes:
        startup_s: until the engine serves.
        measuring_s: of its sweep; eight loads and two lengths, a minute each with warm-up.
        gpus: of one replica.
    """

    startup_s: float = 300.0
    measuring_s: float = 650.0
    gpus: int = 1

    @property
    def gpu_s(self) -> float:
        """GPUs times seconds."""
        return self.gpus * (self.startup_s + self.measuring_s)


@dataclass(frozen=True, slots=True)
class ArmWorth:
    """An arm that was never run. Every figure is `FromPrior`.

    Attributes:
        arm: the arm.
        lone_ratio, slope_ratio: C1 and C2 over those of no speculation.
        break_even_rps: rate per replica up to which the arm pays; 0: at no low rate, None or an open end: up to saturation.
        gain: share of the request time that it saves at the loads at which it pays; the value is the mean.
        chance: that the gain is worth having.
        adds: mean gain beyond that of the arms before it.
    """

    arm: Arm
    lone_ratio: Estimate
    slope_ratio: Estimate
    break_even_rps: Estimate
    gain: Estimate
    chance: float
    adds: float


@dataclass(frozen=True, slots=True)
class CalibrationWorth:
    """The answer.

    Attributes:
        word: its word.
        sentence: the figures behind it, without a full stop.
        arms: in the order in which a calibration should buy them; empty if nothing can be said.
        gain: share of request time that the best of all arms saves.
        saved_hours: hours of request time that this is, for each replica and day.
        buy: arms that a calibration should measure, in that order; empty if none is worth it.
        gpu_s: GPU-seconds that these cost.
        cost_of_arm: of one arm.
        confidence: level of all bounds.
    """

    word: WorthWord
    sentence: str
    arms: tuple[ArmWorth, ...]
    gain: Estimate
    saved_hours: Estimate
    buy: tuple[Arm, ...]
    gpu_s: float
    cost_of_arm: CalibrationCost
    confidence: float


def calibration_worth(
    none: ArmFit | None,
    seen: SeenLoads,
    expected: ExpectedRatios | None,
    *,
    cost: CalibrationCost | None = None,
    least_gain: float = LEAST_GAIN,
    confidence: float = 0.9,
) -> CalibrationWorth:
    """Say whether measuring arms is worth it, and which one first. Pure: equal arguments give equal answers.

    Args:
        none: fit of no speculation, such as `Profile.arm(NO_SPECULATION)` of a past; None: there is none.
        seen: loads of one replica; empty: none was seen.
        expected: ratios of the arms that were never run, as `expected_ratios` gives them; None: every arm ran.
        cost: of one arm; None: the usual one.
        least_gain: share of request time from which a gain is worth having.
        confidence: two-sided level of the bounds.

    Raises:
        InputError: a load that is none.
    """
    cost = cost or CalibrationCost()
    if expected is None:
        return _without(WorthWord.ALL_ARMS_RAN, cost, confidence)
    if not seen.rates_rps:
        return _without(WorthWord.NO_LOAD_SEEN, cost, confidence)
    rates, shares = _checked(seen)
    if none is None or not none.c1_s or not none.c2_s:
        return _without(WorthWord.NO_LAW_OF_NONE, cost, confidence)
    ratios = expected.draws(DRAWS)
    slope_s = _drawn_slopes(none, max(seen.rates_rps))
    gains = _gains(ratios, slope_s, rates, shares)
    arms = _in_order(expected, ratios, slope_s, gains, least_gain, confidence)
    best = gains.max(axis=1)
    gain = _between(best, confidence, float(best.mean()))
    saved = gain.times(_DAY_H * _in_flight(none, rates, shares))
    worth = [one for one in arms if (one.gain.upper or 0.0) >= least_gain]
    buy = tuple(one.arm for place, one in enumerate(worth) if not place or one.adds >= _LEAST_ADDED)
    word = _word(buy, gain, least_gain)
    return CalibrationWorth(
        word,
        _sentence(word, gain, saved, buy, cost),
        arms,
        gain,
        saved,
        buy,
        len(buy) * cost.gpu_s,
        cost,
        confidence,
    )


def _word(buy: Sequence[Arm], gain: Estimate, least_gain: float) -> WorthWord:
    if not buy:
        return WorthWord.CALIBRATION_PAYS_NOTHING
    pays = (gain.lower or 0.0) >= least_gain
    return WorthWord.CALIBRATION_PAYS if pays else WorthWord.CALIBRATION_MAY_PAY


def _in_order(
    expected: ExpectedRatios,
    ratios: FloatArray,
    slope_s: FloatArray,
    gains: FloatArray,
    least_gain: float,
    confidence: float,
) -> tuple[ArmWorth, ...]:
    """The arms in the order in which to buy them."""
    crossings = share_of_saturation(ratios) / slope_s[:, None]
    return tuple(
        ArmWorth(
            expected.arms[place],
            *expected.ratios(place, confidence),
            _between(crossings[:, place], confidence, float(np.median(crossings[:, place]))),
            _between(gains[:, place], confidence, float(gains[:, place].mean())),
            float(np.mean(gains[:, place] >= least_gain)),
            more,
        )
        for place, more in _bought_first(gains)
    )


def _checked(seen: SeenLoads) -> tuple[FloatArray, FloatArray]:
    """Rates and the share of requests' time that each stands for.

    Raises:
        InputError: a figure that is none, or another number of spans than of rates.
    """
    rates, lasted = np.array(seen.rates_rps, dtype=float), np.array(seen.lasted, dtype=float)
    if rates.shape != lasted.shape:
        raise InputError(
            "loads seen", f"{rates.size} rates and {lasted.size} spans", "as many spans as rates"
        )
    if not (np.all(np.isfinite(rates)) and np.all(rates > 0.0)):
        raise InputError("loads seen", "a rate that is 0, negative or no number", "rates above 0")
    if not (np.all(np.isfinite(lasted)) and np.all(lasted >= 0.0) and lasted.sum() > 0.0):
        raise InputError(
            "loads seen", "spans that are negative, no number or all 0", "times that the rates lasted"
        )
    return _gathered(rates, lasted / lasted.sum())


def _gathered(rates: FloatArray, shares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """At most 24 loads that stand for all: means over neighbours of like total time."""
    order = np.argsort(rates, kind="stable")
    rates, shares = rates[order], shares[order]
    if rates.size <= _BINS:
        return rates, shares
    place = np.minimum((np.cumsum(shares) * _BINS).astype(int), _BINS - 1)
    weight = np.bincount(place, shares, _BINS)
    total = np.bincount(place, shares * rates, _BINS)
    kept = weight > 0.0
    return np.asarray(total[kept] / weight[kept]), np.asarray(weight[kept], dtype=float)


def _without(word: WorthWord, cost: CalibrationCost, confidence: float) -> CalibrationWorth:
    return CalibrationWorth(word, WORTH_MEANINGS[word], (), Estimate(), Estimate(), (), 0.0, cost, confidence)


def _drawn_slopes(none: ArmFit, highest_rps: float) -> FloatArray:
    """Drawn C2 of no speculation (s), shape (DRAWS,); the loads were served, so that none lies beyond its saturation."""
    slope_s = float(none.c2_s or 0.0)
    error = math.sqrt(max(none.covariance[1][1], 0.0)) / slope_s if none.dof else _ERROR_IF_UNKNOWN
    if not none.believable:
        error = _LARGEST_ERROR
    random = np.random.default_rng(_DRAWN_FROM)
    normal = random.standard_normal(DRAWS)
    if none.dof:
        normal = normal * np.sqrt(none.dof / random.chisquare(none.dof, DRAWS))
    drawn = slope_s * np.exp(np.clip(min(error, _LARGEST_ERROR) * normal, -_LARGEST_ERROR, _LARGEST_ERROR))
    return np.minimum(drawn, _FULLEST / highest_rps)


def _in_flight(none: ArmFit, rates: FloatArray, shares: FloatArray) -> float:
    """Mean number of requests in flight at a replica without speculation, by the law."""
    used = np.minimum(rates * float(none.c2_s or 0.0), _FULLEST)
    return float((rates * float(none.c1_s or 0.0) / (1.0 - used)) @ shares)


def _gains(ratios: FloatArray, slope_s: FloatArray, rates: FloatArray, shares: FloatArray) -> FloatArray:
    """Share of request time that each arm saves at the loads at which it pays; (M, A, 2) to (M, A).

    By Little's law request time is requests in flight, which on the law are u*C1/C2/(1 - u) at a share u of saturation.
    """
    used = slope_s[:, None] * rates
    plain = used / (1.0 - used)
    lone, slope = ratios[:, :, 0, None], ratios[:, :, 1, None]
    of_arm = used[:, None, :] * slope
    with np.errstate(divide="ignore"):
        held = np.where(of_arm < 1.0, lone * used[:, None, :] / (1.0 - of_arm), np.inf)
    saved = np.maximum(plain[:, None, :] - held, 0.0) @ shares
    return np.asarray(saved / (plain @ shares)[:, None])


def share_of_saturation(ratios: FloatArray) -> FloatArray:
    """Share of saturation up to which an arm pays: 0 if not alone, infinite if everywhere; (M, A, 2) to (M, A)."""
    lone, slope = ratios[:, :, 0], ratios[:, :, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = (1.0 - lone) / (slope - lone)
    return np.where(lone >= 1.0, 0.0, np.where(slope <= 1.0, np.inf, inner))


def _between(drawn: FloatArray, confidence: float, value: float) -> Estimate:
    """A figure with the bounds of its draws; what is infinite is open."""
    low, high = np.quantile(drawn, (0.5 - 0.5 * confidence, 0.5 + 0.5 * confidence), method="nearest")
    return Estimate(*(None if math.isinf(end) else float(end) for end in (value, low, high)))


def _bought_first(gains: FloatArray) -> list[tuple[int, float]]:
    """Place and added mean gain of each arm, in the order in which each adds most to those before it."""
    left, found = list(range(gains.shape[1])), []
    have = np.zeros(gains.shape[0])
    while left:
        more = [float(np.mean(np.maximum(gains[:, place] - have, 0.0))) for place in left]
        place = left.pop(int(np.argmax(more)))
        have = np.maximum(have, gains[:, place])
        found.append((place, max(more)))
    return found


def _sentence(
    word: WorthWord, gain: Estimate, hours: Estimate, buy: Sequence[Arm], cost: CalibrationCost
) -> str:
    spent = hours.value or 0.0
    saved = (
        f"{gain.value or 0.0:.0%} of request time expected, {gain.lower or 0.0:.0%} to {gain.upper or 0.0:.0%};"
        f" {f'{spent:.0f}' if spent >= 10.0 else f'{figure(spent, 2)}'} request-hours a day and pod"
    )
    if word is WorthWord.CALIBRATION_PAYS_NOTHING:
        return f"{WORTH_MEANINGS[word]} ({saved})"
    bought = f"measure {', then '.join(map(str, buy))}: {figure(len(buy) * cost.gpu_s / 3600.0, 2)} GPU-hours"
    return f"{WORTH_MEANINGS[word]} ({saved}; {bought})"
