"""Acceptance: several numbers go by this name; each function says which one it takes and gives.

- survival s_i: P(first i drafts all accepted), i = 1..k, unconditional. vLLM counts it per *draft*
  (`spec_decode_num_accepted_tokens_per_pos_total` / `spec_decode_num_drafts_total`).
- tokens per step E: per *request-step*, bonus token included; 1 without speculation. Equal to 1 + sum of survival
  where the drafter drafts at every step; n-gram and suffix lookup do not, and E is lower (3.09 where 1 +
  accepted/drafts said 3.92 on a real vLLM page).
- acceptance rate: accepted/drafted = (sum of survival)/k. It is *not* alpha.
- alpha: the rate of independent, equally likely acceptances that gives the same E.

Profiles are not geometric and shift as a whole with k (`breakeven.laws.mixture`). An argument outside its range raises a
ValueError that names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from breakeven.laws.arrays import FloatArray, at_least, nonnegative, probability
from breakeven.laws.mixture import TwoPointMixture, checked_survival, default_decay, tokens_per_step_bounds
from breakeven.methods import LOOKUP_METHODS


def tokens_per_step_iid(alpha: ArrayLike, k: ArrayLike) -> FloatArray:
    """E (tokens) at draft length k of independent acceptances: (1 - alpha^(k+1))/(1 - alpha); k + 1 at alpha = 1.

    Accepted drafts are E - 1 = alpha*(1 - alpha^k)/(1 - alpha); the form with alpha^(k+1) there, printed in some
    texts, counts one too many. Leviathan et al., arXiv 2211.17192, eq. 1.
    """
    rate, length = np.broadcast_arrays(probability("alpha", alpha), nonnegative("k", k))
    return _iid(rate, length)


def _iid(rate: FloatArray, length: FloatArray) -> FloatArray:
    rejected = 1.0 - rate
    with np.errstate(divide="ignore", invalid="ignore"):
        # 1 - alpha^(k+1) cancels for alpha near 1, expm1(.. log1p ..) does not.
        total = -np.expm1((length + 1.0) * np.log1p(-rejected)) / rejected
    return np.where(rejected == 0, length + 1.0, total)


def alpha_from_tokens_per_step(tokens_per_step: ArrayLike, k: ArrayLike) -> FloatArray:
    """The alpha of independent acceptances that gives E at draft length k: inverse of `tokens_per_step_iid`."""
    e, length = np.broadcast_arrays(at_least("tokens_per_step", tokens_per_step, 1.0), at_least("k", k, 1.0))
    if np.any(e > length + 1.0):
        raise ValueError(f"tokens_per_step: {tokens_per_step!r} is more than k + 1")
    low, high = np.zeros(e.shape), np.ones(e.shape)
    # E rises with alpha, but its slope at 0 is 1 and at 1 is k(k+1)/2: halving needs no start and cannot overshoot.
    for _ in range(64):
        middle = 0.5 * (low + high)
        below = _iid(middle, length) < e
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(
        np.isnan(e), np.nan, np.select([e <= 1.0, e >= length + 1.0], [0.0, 1.0], 0.5 * (low + high))
    )


def survival_per_step(survival_per_draft: ArrayLike, tokens_per_step: float) -> FloatArray:
    """Survival per request-step, shape (k,): per draft times the share of steps that drafted.

    The share is what makes 1 + sum of survival equal to the measured E. An E more than 2 % above what a draft at every step
    would give is refused.
    """
    s = checked_survival(survival_per_draft)
    accepted = float(at_least("tokens_per_step", tokens_per_step, 1.0)) - 1.0
    total = float(s.sum())
    if accepted > 1.02 * total + 0.02:
        raise ValueError(
            f"tokens_per_step: {tokens_per_step!r} is more than 1 + the sum of survival, {1 + total:.4g}"
        )
    return np.asarray(s * min(accepted / total, 1.0) if total > 0 else s)


def interpolate_tokens_per_step(measured_k: ArrayLike, measured: ArrayLike, k: ArrayLike) -> FloatArray:
    """E at draft lengths between measured ones: monotone cubic (PCHIP) of ln E in ln(k + 1) through E(0) = 1.

    NaN beyond the largest measured draft length, where a profile is needed instead.
    """
    lengths, values = at_least("measured_k", measured_k, 1.0), at_least("measured", measured, 1.0)
    order = np.argsort(lengths)
    lengths, values = lengths[order], values[order]
    if np.any(np.diff(lengths) == 0):
        raise ValueError(f"measured_k: {measured_k!r} names a draft length twice")
    x, y = np.log1p(np.concatenate([[0.0], lengths])), np.log(np.concatenate([[1.0], values]))
    return np.asarray(np.exp(_monotone_cubic(x, y, np.log1p(nonnegative("k", k)))), dtype=float)


def _monotone_cubic(x: FloatArray, y: FloatArray, at: FloatArray) -> FloatArray:
    """PCHIP through two or more points of ascending x; NaN outside. scipy.interpolate would load 40 MB for it."""
    width = np.diff(x)
    slope = np.diff(y) / width
    tangent = np.repeat(slope[:1], y.size)
    if slope.size > 1:
        # Fritsch and Butland: the weighted harmonic mean of the slopes on both sides, 0 at a turn.
        left, right = width[:-1] + 2.0 * width[1:], 2.0 * width[:-1] + width[1:]
        same = slope[:-1] * slope[1:] > 0.0
        before, after = np.where(same, slope[:-1], 1.0), np.where(same, slope[1:], 1.0)
        tangent[1:-1] = np.where(same, (left + right) / (left / before + right / after), 0.0)
        tangent[0] = _end_tangent(width[0], width[1], slope[0], slope[1])
        tangent[-1] = _end_tangent(width[-1], width[-2], slope[-1], slope[-2])
    piece = np.clip(np.searchsorted(x, at, side="right") - 1, 0, slope.size - 1)
    first, last, chord = tangent[piece], tangent[piece + 1], slope[piece]
    t = (at - x[piece]) / width[piece]
    rise = first + t * (3.0 * chord - 2.0 * first - last + t * (first + last - 2.0 * chord))
    return np.where((at < x[0]) | (at > x[-1]), np.nan, y[piece] + width[piece] * t * rise)


def _end_tangent(near: float, far: float, slope: float, beyond: float) -> float:
    """The tangent of three points at an outer one, bounded so that the curve turns nowhere between them."""
    tangent = slope + near * (slope - beyond) / (near + far)
    if tangent * slope <= 0.0:
        return 0.0
    return 3.0 * slope if slope * beyond <= 0.0 and abs(tangent) > 3.0 * abs(slope) else tangent


FORM_ERROR = {"lookup": (0.006, 0.006, 0.006), "model": (0.08, 0.035, 0.017)}
"""Largest relative error of E at an unseen draft length from profiles of one, two, and three or more positions, on
recorded sequences (n-gram; EAGLE). It widens the bounds of the mixture."""

INTERPOLATION_ERROR = 0.014
"""Relative distance by which E between two measured draft lengths may lie outside the two ways of interpolating it. For
five drafters it was at most 1.0 % in 99 of 100 pairs."""

BELOW_ERROR = 0.025
"""Relative distance likewise, below the shortest measured draft length."""

_TREND = 0.5
"""Share of the trend of rates between the two longest measured draft lengths that goes on beyond them: none left E at
up to 8 % off, all of it 10 %, half of it 4 % (n-gram, EAGLE and a block drafter)."""

Basis = Literal["measured", "interpolated", "mixture", "one-rate"]


@dataclass(frozen=True, slots=True)
class TokensPerStep:
    """E at one draft length, with the bounds of what was assumed to get there (no sampling error).

    Attributes:
        basis: `measured`; `interpolated` between measured k; `mixture` from the profile of one k; `one-rate` where
            only E is known there, not the positions.
        positions: positions of the profile that was used; below 3 the bounds are wide.
    """

    value: float
    lower: float
    upper: float
    basis: Basis
    positions: int

    def widened(self, error: float, k: int) -> TokensPerStep:
        """The same with bounds wider by a relative error; everything between 1 and k + 1."""
        value, lower, upper = (
            float(np.clip(x, 1.0, k + 1.0))
            for x in (self.value, self.lower * (1.0 - error), self.upper * (1.0 + error))
        )
        return replace(self, value=value, lower=min(lower, value), upper=max(upper, value))


@dataclass(frozen=True)
class AcceptanceModel:
    """E at any draft length from what was measured at some: E by draft length, and survival per request-step where it is known.

    The method is vLLM's name; lookup methods have no decay with depth.
    """

    method: str
    tokens_per_step: Mapping[int, float]
    survival: Mapping[int, Sequence[float]]

    def __post_init__(self) -> None:
        if not self.tokens_per_step:
            raise ValueError("tokens_per_step: no draft length was measured")
        for k, e in self.tokens_per_step.items():
            if not 1.0 <= e <= k + 1.0 + 1e-6:
                raise ValueError(f"tokens_per_step: {e!r} at k = {k} is not between 1 and {k + 1}")

    def at(self, k: int) -> TokensPerStep:
        """E at draft length k, by the best basis there is: measured, interpolated, then from one profile.

        With two or more measured draft lengths those between (and below: E(0) = 1) are interpolated in two ways, whose
        errors have opposite signs: ln E (PCHIP) lies low between distant lengths, the i.i.d. rate lies high. The middle
        is taken and the bounds hold both. Longer ones come from the profile at the longest.
        """
        if k == 0:
            return TokensPerStep(1.0, 1.0, 1.0, "measured", 0)
        measured = self.tokens_per_step.get(int(at_least("k", k, 1.0)))
        if measured is not None:
            return TokensPerStep(measured, measured, measured, "measured", len(self.survival.get(k, ())))
        known = sorted(self.tokens_per_step)
        if len(known) > 1 and k < known[-1]:
            first = float(interpolate_tokens_per_step(known, [self.tokens_per_step[j] for j in known], k))
            second = self._by_rate(k)
            error = INTERPOLATION_ERROR if k > known[0] else BELOW_ERROR
            ends = min(first, second), max(first, second)
            return TokensPerStep((first * second) ** 0.5, *ends, "interpolated", 0).widened(error, k)
        return self._from_profile(min(known, key=lambda j: (abs(np.log((j + 1) / (k + 1))), j)), k)

    def likeliest_first(self, k: int) -> tuple[FloatArray, FloatArray]:
        """Of k drafts, those verified for a request on average, ascending from 0 to k, and E with so many; both of shape (n,).

        The likeliest drafts of a batch come first, as adaptive verification has them. The profile nearest to k is used, else that
        of text whose easy part is as large as in recorded sequences.
        """
        e = self.at(k).value
        known = {j: s for j, s in self.survival.items() if len(s) > 2 and np.sum(s) > 0.0}
        if known:
            nearest = min(known, key=lambda j: (abs(np.log((j + 1) / (k + 1))), j))
            mixture = TwoPointMixture.fit(known[nearest], default_decay(self.method))
        else:
            mixture = TwoPointMixture.partly_easy(e, k, default_decay(self.method))
        verified, accepted = mixture.likeliest_first(k)
        return verified, 1.0 + accepted * (e - 1.0) / max(float(accepted[-1]), 1e-12)

    def _by_rate(self, k: int) -> float:
        """E from the i.i.d. rate, which moves slowly with ln(k + 1): interpolated, beyond the ends its trend goes on."""
        known = np.array(sorted(self.tokens_per_step), dtype=float)
        rates = np.array(
            [float(alpha_from_tokens_per_step(min(self.tokens_per_step[int(j)], j + 1.0), j)) for j in known]
        )
        at, places = np.log1p(k), np.log1p(known)
        rate = float(np.interp(at, places, rates))
        if known.size > 1 and k < known[0]:
            rate += (at - places[0]) * (rates[1] - rates[0]) / (places[1] - places[0])
        elif known.size > 1 and k > known[-1]:
            rate += _TREND * (at - places[-1]) * (rates[-1] - rates[-2]) / (places[-1] - places[-2])
        e = float(tokens_per_step_iid(np.clip(rate, 0.0, 1.0), k))
        # A longer draft yields no less, which rates that fall steeply would deny.
        least = max((e_j for j, e_j in self.tokens_per_step.items() if j < k), default=1.0)
        most = min((e_j for j, e_j in self.tokens_per_step.items() if j > k), default=k + 1.0)
        return min(max(e, least), most)

    def _from_profile(self, measured_k: int, k: int) -> TokensPerStep:
        e = self.tokens_per_step[measured_k]
        survival = np.asarray(self.survival.get(measured_k, ()), dtype=float)
        basis: Basis = "mixture"
        if survival.size == 0 or survival.sum() == 0:
            # Only E is known: the lone rate that gives it, with the bounds of a one-position profile.
            survival = alpha_from_tokens_per_step(e, measured_k).reshape(1)
            basis = "one-rate"
            value = self._by_rate(k)
            lower, upper = value, value
        else:
            mixture = TwoPointMixture.fit(survival, default_decay(self.method))
            # The counters' E and the profile's may differ by sampling: the measured one stays where it was measured.
            scale = (e - 1.0) / max(float(mixture.tokens_per_step(measured_k)) - 1.0, 1e-12)
            ends = (mixture.tokens_per_step(k), *tokens_per_step_bounds(survival, k, self.method))
            value, lower, upper = (1.0 + scale * (float(x) - 1.0) for x in ends)
        kind = "lookup" if self.method in LOOKUP_METHODS else "model"
        error = FORM_ERROR[kind][min(survival.size, 3) - 1] if basis == "mixture" else FORM_ERROR["model"][0]
        return TokensPerStep(value, lower, upper, basis, survival.size).widened(error, k)
