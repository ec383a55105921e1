"""Laws of all arms learned from live latency: a factor on C1 and one on C2 of each, with their doubt.

A profile errs in three ways. Its fit has a covariance. Every arm has an error of its own (another day, another node). All
arms share one (other requests than those that were measured). The live latency of the arm in place is therefore
evidence about all of them, and most about itself. One factor per arm is not enough: a slope that is 20 % wrong looks
right at the load at which it was last seen, and saturates at the next.

The factors are Gaussian in their logarithms, kept in information form: each arm that ever ran has five numbers, and the
rest follows from the profile.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.laws.arrays import FloatArray
from breakeven.planning.decision_memory import ANOTHER_UNIT, Evidence
from breakeven.planning.evaluation import ArmEvaluation
from breakeven.planning.objective import ObjectiveStrain
from breakeven.planning.surprise import LASTS_S
from breakeven.profile.curves import Curve
from breakeven.serving.counted_window import Load

_SHARED_SD = 0.10
"""Standard deviation of the error that all arms share: live requests differ from the requests of the calibration."""
_FAMILY_SD = 0.03
"""Standard deviation of the error that the draft lengths of one drafter share."""
_OWN_SD = 0.02
"""Standard deviation of an arm's own error beside its fit's: two runs of the same engine differ by as much."""
_NOISE_SD = 0.04
_REQUEST_SD = 1.0
"""Relative standard deviation of the latency of one request: answers are of any length."""
INDEPENDENT_S = 1800.0
"""Live means of windows within this time err in the same way: their loads and texts are the same."""
_CONVERTED_SD = 0.5
"""Share of a conversion (of its logarithm) by which it may be wrong, beside its known errors."""
_NOTHING_KNOWN_SD = 3.0
"""Standard deviation (ln) of a coefficient of which nothing is known: a factor of twenty either way. Draws of a larger one overflow."""
_SURPRISING_SD = 3.0
_DRAWS = 16


def converted(seen: Evidence, level_s: tuple[float, float]) -> Evidence:
    """The evidence for the law converted to other conditions, with more doubt the further the conversion moved it.

    A latency measured at one acceptance is evidence there. At another one it rests on the profile's conversion. Without
    this doubt, hours at the one would outweigh measurements at the other.
    """
    doubt, precision = np.diag(_moved(seen, level_s)), _matrix(seen)
    kept = np.linalg.inv(np.eye(2) + precision @ doubt)
    (a, b), (_, c) = (kept @ precision).tolist()
    p, q = (kept @ np.asarray(seen.pull)).tolist()
    return replace(seen, precision=(a, b, c), pull=(p, q), level_s=level_s)


def _strayed(seen: Evidence, level_s: tuple[float, float]) -> bool:
    """Whether the doubt of the conversion outweighs the evidence."""
    return float(_moved(seen, level_s) @ np.diag(_matrix(seen))) > 1.0


def _matrix(seen: Evidence) -> FloatArray:
    a, b, c = seen.precision
    return np.array([[a, b], [b, c]])


def _moved(seen: Evidence, level_s: tuple[float, float]) -> FloatArray:
    """Variances of the error of a conversion since then."""
    return np.asarray((_CONVERTED_SD * np.log(np.divide(level_s, seen.level_s or level_s))) ** 2)


_KNOTS = 48
FULL = 0.97
"""Share of saturation up to which the law's number in flight is reached while a load lasts; beyond it a queue grows."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedLaw:
    """One arm's law as the profile knows it under the conditions of a service, tabulated once at K numbers of others from 0.

    Attributes:
        c1_s, c2_s: C1 and C2 (s).
        relative_covariance: of both, each over its value, shape (2, 2).
        others, latency_s: the table, shape (K,) each.
        alone_share: share of C1 in that latency; shape (K,).
        saturation_rps: rate beyond which there is no steady state (1/s).
        strain: ratio of its figures to their limits; None without objectives.
        tokens_per_step: E that was measured live; None as calibrated.
        calibrated_tokens_per_step: E when the arm was measured; None if it was not.
    """

    arm: Arm
    c1_s: float
    c2_s: float
    relative_covariance: FloatArray
    others: FloatArray
    latency_s: FloatArray
    alone_share: FloatArray
    saturation_rps: float
    strain: ObjectiveStrain | None = None
    tokens_per_step: float | None = None
    calibrated_tokens_per_step: float | None = None

    @classmethod
    def of(cls, arm: Arm, curve: Curve) -> FittedLaw:
        """The law of a curve, from a lone request to well beyond where its rate has reached saturation."""
        line = curve.line
        most = 2.0 * line.c1_s / line.c2_s / (1.0 - FULL)
        others = np.concatenate([[0.0], np.geomspace(most * 1e-5, most, _KNOTS)])
        return cls(
            arm,
            line.c1_s,
            line.c2_s,
            line.covariance / np.outer((line.c1_s, line.c2_s), (line.c1_s, line.c2_s)),
            others,
            curve.met_latencies(others),
            np.asarray(line.c1_s / (line.c1_s + line.c2_s * others)),
            curve.saturation_rps,
        )

    @property
    def level_s(self) -> tuple[float, float]:
        """Both coefficients (s)."""
        return self.c1_s, self.c2_s

    def parts_s(self, others: float) -> tuple[float, float]:
        """Latency (s) among others in flight: of a lone request, and the part that the others add."""
        alone_s = float(np.interp(others, self.others, self.latency_s * self.alone_share))
        latency_s = float(np.interp(others, self.others, self.latency_s))
        # A table that is constant beyond its end would make an engine with a long queue look slower than it is.
        beyond = max(others - float(self.others[-1]), 0.0) / self.saturation_rps
        return alone_s, latency_s + beyond - alone_s

    def saturations(self, factors: FloatArray) -> FloatArray:
        """Rates (1/s) beyond which there is no steady state, for drawn factors on C1 and C2: shape (M, 2) to (M,)."""
        return np.asarray(self.saturation_rps / factors[:, 1])

    def at(self, rps: FloatArray, factors: FloatArray, lasts_s: float = LASTS_S) -> FloatArray:
        """Requests in flight per replica: `in_flight` of this arm alone, factors of shape (M, 2) to (M, X)."""
        return np.asarray(in_flight([self], rps, factors[:, None, :], lasts_s)[0])


def fitted_law(one: ArmEvaluation) -> FittedLaw:
    """An arm's evaluation reduced to what the rule needs."""
    return replace(
        FittedLaw.of(one.arm, one.curve),
        strain=one.strain,
        tokens_per_step=one.tokens_per_step,
        calibrated_tokens_per_step=one.calibrated_tokens_per_step,
    )


def in_flight(
    laws: Sequence[FittedLaw], rps: FloatArray, factors: FloatArray, lasts_s: float = LASTS_S
) -> FloatArray:
    """Requests in flight per replica on each of A arms, in M draws; shape (A, M, X), finite at every one of X rates (1/s).

    Factors on C1 and C2 have shape (M, A, 2). While a load near or beyond saturation lasts, a queue grows.
    """
    alone, each = factors.T[..., None]
    others, latency_s, share = (
        np.array([getattr(one, name) for one in laws])[:, None, :]
        for name in ("others", "latency_s", "alone_share")
    )
    rates = others / (latency_s * (alone * share + each * (1.0 - share)))
    # Beyond it a queue grows.
    full = FULL * np.array([one.saturations(factors[:, i]) for i, one in enumerate(laws)])[..., None]
    asked = np.minimum(rps, full)
    # All draws in one look-up, each shifted beyond the one before it: one look-up per draw takes five times as long.
    shift = (
        np.arange(full.size).reshape(full.shape)
        * 2.0
        * (float(rates.max()) + float(asked.max(initial=0.0)) + 1.0)
    )
    held = np.interp(
        (asked + shift).ravel(), (rates + shift).ravel(), np.broadcast_to(others, rates.shape).ravel()
    )
    held = held.reshape(asked.shape)
    return np.asarray(held + np.maximum(rps - full, 0.0) * (lasts_s / 2.0) if lasts_s else held)


@dataclass(frozen=True, slots=True, eq=False)
class LearnedLaws:
    """Logarithms of the factors of all arms, jointly Gaussian; order (u1, u2) of the first arm, of the second, ..."""

    arms: tuple[Arm, ...]
    mean: FloatArray
    covariance: FloatArray

    def draws(self) -> FloatArray:
        """Factors on C1 and C2, drawn: shape (M, A, 2); the same for every decision, and for every order of the arms."""
        # By Cholesky, not by eigenvectors: these turn, or change sign, if the covariance moves a little, and costs would jump
        # with them. The rows of Cholesky depend on the order of the arms, so they are sorted.
        order = sorted(range(len(self.arms)), key=lambda place: self.arms[place].name)
        places = np.array([[2 * place, 2 * place + 1] for place in order]).ravel()
        spread = np.linalg.cholesky(self.covariance[np.ix_(places, places)])
        drawn = np.empty((_DRAWS, len(self.mean)))
        drawn[:, places] = np.hstack([_standard(self.arms[place].name) for place in order]) @ spread.T
        return np.asarray(np.exp(self.mean + drawn).reshape(_DRAWS, -1, 2))


_LEVELS = np.array([NormalDist().inv_cdf(0.5 + (place + 0.5) / _DRAWS) for place in range(_DRAWS // 2)])
_LEVELS /= math.sqrt(float((_LEVELS**2).mean()))


@lru_cache(maxsize=1024)
def _standard(name: str) -> FloatArray:
    """Standard normal numbers for both factors of an arm, in pairs of opposite sign; shape (M, 2).

    They depend on the arm's name and not on its position, so that the order of the arms does not matter. The name decides the
    order of levels that all arms share, because eight random numbers would have half the variance or twice.
    """
    random = np.random.default_rng(zlib.crc32(name.encode()))
    half = np.stack(
        [random.permutation(_LEVELS) * random.choice([-1.0, 1.0], len(_LEVELS)) for _ in range(2)]
    )
    return np.concatenate([half.T, -half.T])


def learned(laws: Sequence[FittedLaw], evidence: Mapping[Arm, Evidence], now_s: float) -> LearnedLaws:
    """Laws of all arms from the profile and the live evidence."""
    size = 2 * len(laws)
    levels_s = {one.arm: one.level_s for one in laws}
    seen = {
        arm: converted(one.faded(now_s), levels_s[arm]) for arm, one in evidence.items() if arm in levels_s
    }
    family_variance = _family_variances(laws, seen)
    prior = np.full((size, size), _SHARED_SD**2)
    for i, one in enumerate(laws):
        for j, other in enumerate(laws):
            if one.arm.family == other.arm.family and one.arm != NO_SPECULATION:
                prior[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] += family_variance[one.arm.family]
        own = slice(2 * i, 2 * i + 2)
        prior[own, own] += _bounded(one.relative_covariance) + _OWN_SD**2 * np.eye(2)
    precision = np.linalg.inv(prior)
    pull = np.zeros(size)
    for i, one in enumerate(laws):
        if (found := seen.get(one.arm)) is None:
            continue
        precision[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] += _matrix(found)
        pull[2 * i : 2 * i + 2] += found.pull
    covariance = np.linalg.inv(precision)
    return LearnedLaws(tuple(one.arm for one in laws), covariance @ pull, covariance)


def _bounded(covariance: FloatArray) -> FloatArray:
    sd = np.sqrt(np.diag(covariance))
    share = np.minimum(1.0, _NOTHING_KNOWN_SD / np.maximum(sd, 1e-9))
    return np.asarray(covariance * np.outer(share, share))


def _family_variances(laws: Sequence[FittedLaw], seen: Mapping[Arm, Evidence]) -> dict[str, float]:
    """Variance of the error that the draft lengths of a drafter share, alone and among others.

    The error of a drafter seen against no speculation is possible at loads that were not seen yet too: a drafter that is half
    as fast alone as measured does not carry its measured load. The usual 3 % would hardly allow such an error.
    """
    none = _level(seen.get(NO_SPECULATION))
    variances: dict[str, float] = {}
    for one in laws:
        level = _level(seen.get(one.arm))
        shown = (level[0] - none[0]) ** 2 - level[1] - none[1] if level[1] else 0.0
        variances[one.arm.family] = max(variances.get(one.arm.family, _FAMILY_SD**2), shown)
    return variances


def _level(seen: Evidence | None) -> tuple[float, float]:
    """Logarithm of one factor on both coefficients that fits the evidence, and its variance; (0, 0) without any."""
    if seen is None:
        return 0.0, 0.0
    a, b, c = seen.precision
    precision = a + 2.0 * b + c
    return (sum(seen.pull) / precision, 1.0 / precision) if precision > 0.0 else (0.0, 0.0)


def slowdown(seen: Evidence, now_s: float, confidence: float) -> float:
    """Factor by which live latency shows an arm slower than its profile's law; 1 unless it excludes what every profile errs by.

    An arm that is faster alone than its law carries no larger load for that: only a rate that is carried shows one.
    """
    level, variance = _level(seen.faded(now_s))
    doubt = math.sqrt(variance + _SHARED_SD**2 + _FAMILY_SD**2 + _OWN_SD**2)
    return math.exp(level) if level > NormalDist().inv_cdf(0.5 + confidence / 2.0) * doubt else 1.0


def with_latency(
    evidence: Mapping[Arm, Evidence], known: LearnedLaws, law: FittedLaw, live: Load, now_s: float
) -> Mapping[Arm, Evidence]:
    """The evidence with one more window's mean latency of the arm in place, if it has one.

    `known` are the laws before this window, which ends at `now_s`; `law` is the arm's law as converted to the present
    acceptance and lengths. The latency expected of it comes from the arm's curve: with a straight line near it, a bend
    would look like an engine that changed.
    """
    arm, level_s = law.arm, law.level_s
    among = live.inflight if live.met_inflight is None else live.met_inflight
    if live.inflight is None or among is None or not live.latency_s or not live.requests > 0.0:
        return evidence
    place = 2 * known.arms.index(arm)
    mean = known.mean[place : place + 2]
    parts = np.asarray(law.parts_s(among)) * np.exp(mean)
    predicted_s = float(parts.sum())
    if not predicted_s > 0.0:
        return evidence
    share = parts / predicted_s
    surprise = math.log(live.latency_s / predicted_s)
    towards = surprise + float(share @ mean)
    if abs(towards) > ANOTHER_UNIT:
        return evidence
    before = evidence.get(arm)
    if before is None:
        # The first window of an arm counts as a whole half hour: its windows err in the same way.
        news = 1.0
    else:
        since_s = max(now_s - before.at_s, 0.0)
        # At another acceptance, or at other lengths, a window counts for as long as itself: half an hour of them overturns what
        # was known, and a single one does not, however long nothing was added.
        since_s = min(since_s, live.window_s) if _strayed(before, level_s) else since_s
        news = -math.expm1(-since_s / INDEPENDENT_S)
    if news <= 0.0:
        return evidence
    variance = _NOISE_SD**2 / news + _REQUEST_SD**2 / live.requests
    doubt = float(share @ known.covariance[place : place + 2, place : place + 2] @ share)
    if abs(surprise) > _SURPRISING_SD * math.sqrt(doubt + variance):
        # One surprising window counts less; several in a row show that the engine has changed.
        variance *= 4.0
    before = (before or Evidence(level_s=level_s)).faded(now_s)
    if before.level_s is None or _strayed(before, level_s):
        before = converted(before, level_s)
    (a, b, c), (p, q) = before.precision, before.pull
    (s1, s2), weight = share.tolist(), 1.0 / variance
    after = replace(
        before,
        precision=(a + s1 * s1 * weight, b + s1 * s2 * weight, c + s2 * s2 * weight),
        pull=(p + s1 * towards * weight, q + s2 * towards * weight),
    )
    return {**evidence, arm: after}
