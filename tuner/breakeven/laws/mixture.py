"""Acceptance at other draft lengths: text is a mixture of easy and hard stretches.

Let w(a) be the share of *tokens* in stretches whose first draft is accepted with rate a, the rate decaying with depth
as a_i = a*exp(-d*(i-1)). Long drafts cross easy text in fewer steps, so a step falls into a stretch with probability
proportional to w(a)/E(a, k), and

    E(k)   = 1 / sum w(a)/E(a, k)                       a harmonic mean
    s_i(k) = E(k) * sum w(a) * a^i * exp(-d*i*(i-1)/2) / E(a, k)

with E(a, k) = 1 + sum_i a^i exp(-d*i*(i-1)/2). The two satisfy E(k) = 1 + sum_i s_i(k) (renewal).

A profile measured at k fixes the first k moments of the *steps'* distribution over a, and E at another k is a linear
functional of that distribution. So E has sharp bounds, attained by distributions on few points
(Krein and Nudelman, The Markov Moment Problem). Their width, not a covariance of the two points, is the uncertainty of
extrapolating; the two-point form is one member of that set.

Errors at unseen k from profiles at k = 3 of recorded sequences (mean/worst): n-gram 0.15/0.6 %, EAGLE 0.6/1.6 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from breakeven.laws.arrays import FloatArray, nonnegative, probability
from breakeven.methods import LOOKUP_METHODS

MODEL_DECAY = 0.02
"""Decay with depth of model drafters, per position (measured on EAGLE); lookup drafters (n-gram, suffix) have none."""

MODEL_DECAY_BAND = (0.0, 0.03)
"""Decays of model drafters seen in recorded sequences."""

EASY = 0.24
"""Share of tokens in stretches whose first draft is always accepted: .05, .23 and .45 in three recorded profiles of seven drafts."""


@dataclass(frozen=True, slots=True)
class TwoPointMixture:
    """Two kinds of stretches of text: acceptance rates of the first position, ascending, and shares of tokens, which add up to 1.

    The decay d is per position; 0 for lookup drafters.
    """

    rates: tuple[float, float]
    token_shares: tuple[float, float]
    decay: float

    def __post_init__(self) -> None:
        probability("rates", self.rates)
        probability("token_shares", self.token_shares)
        nonnegative("decay", self.decay)
        if abs(sum(self.token_shares) - 1.0) > 1e-9:
            raise ValueError(f"token_shares: {self.token_shares!r} do not add up to 1")

    @classmethod
    def fit(cls, survival: ArrayLike, decay: float) -> TwoPointMixture:
        """Fit to the unconditional survival s_1..s_k measured at one k, shape (k,).

        Three positions determine the two rates and their shares; more are fitted by least squares; two leave the
        third moment open (the middle of what it may be is taken), one gives a single rate.
        """
        s = checked_survival(survival)
        moments = _moments(s, decay)
        points = _two_points(moments) if len(s) <= 3 else None
        rates, step_shares = points if points is not None else _closest_two_points(s, decay)
        per_step = 1.0 + _depths(rates, len(s), decay).sum(axis=-1)
        tokens = step_shares * per_step
        shares = tokens / tokens.sum()
        return cls((float(rates[0]), float(rates[1])), (float(shares[0]), float(1.0 - shares[0])), decay)

    @classmethod
    def partly_easy(cls, tokens_per_step: float, k: int, decay: float) -> TwoPointMixture:
        """Text that yields E at draft length k, with a usual share of stretches whose first draft is always accepted."""
        low, high = 0.0, 1.0
        for _ in range(40):
            found = cls((0.5 * (low + high), 1.0), (1.0 - EASY, EASY), decay)
            below = float(found.tokens_per_step(k)) < tokens_per_step
            low, high = (found.rates[0], high) if below else (low, found.rates[0])
        return found

    def tokens_per_step(self, k: ArrayLike) -> FloatArray:
        """E at draft lengths `k` (whole numbers of at least 0), bonus token included; shape of `k`."""
        return _tokens_per_step(np.asarray(self.rates), np.asarray(self.token_shares), self.decay, k)

    def survival(self, k: int) -> FloatArray:
        """Unconditional survival s_1..s_k at draft length `k`, shape (k,)."""
        depths = _depths(np.asarray(self.rates), k, self.decay)
        per_step = 1.0 + depths.sum(axis=-1)
        step_shares = np.asarray(self.token_shares) / per_step
        return np.asarray(step_shares @ depths / step_shares.sum())

    def likeliest_first(self, k: int) -> tuple[FloatArray, FloatArray]:
        """Drafts verified for a request on average, ascending from 0 to k, and the accepted ones among them, both of shape (n,).

        The likeliest drafts of a large batch come first: each draft is as likely as its stretch of text and its depth make it.
        """
        rates, tokens = np.asarray(self.rates), np.asarray(self.token_shares)
        depths = _depths(rates, k, self.decay)
        steps = tokens / (1.0 + depths.sum(axis=-1))
        order = np.argsort(-depths, axis=None, kind="stable")
        shares = np.repeat(steps / steps.sum(), k)[order]
        verified, accepted = np.cumsum(shares), np.cumsum(shares * depths.ravel()[order])
        return np.concatenate([[0.0], verified]), np.concatenate([[0.0], accepted])


_SCAN = 201


def default_decay(method: str) -> float:
    """Decay with depth to assume for a vLLM method: 0 for lookup, 0.02 for model drafters."""
    return 0.0 if method in LOOKUP_METHODS else MODEL_DECAY


def checked_survival(survival: ArrayLike) -> FloatArray:
    """Survival as a float vector of shape (k,), of at least one known position."""
    s = np.atleast_1d(probability("survival", survival))
    if np.any(np.diff(s, axis=-1) > 1e-9):
        raise ValueError(f"survival: {survival!r} rises with position; conditional rates are not survival")
    if s.ndim != 1 or s.size == 0 or np.any(np.isnan(s)):
        raise ValueError(f"survival: {survival!r} is not a list of at least one known position")
    return s


def tokens_per_step_bounds(survival: ArrayLike, k: ArrayLike, method: str) -> tuple[FloatArray, FloatArray]:
    """Lowest and highest E at draft lengths `k` that a profile measured at one k leaves possible; each of `k`'s shape.

    Over all mixtures w with the measured first three moments and the decays seen for the kind of method. Under 1.4 %
    wide from three positions between k = 3 and 7, 2.6 % from two, 7-19 % from one. Sampling error is not in it.
    """
    s = checked_survival(survival)
    lowest, highest = [], []
    for decay in (0.0,) if method in LOOKUP_METHODS else (*MODEL_DECAY_BAND, MODEL_DECAY):
        fitted = TwoPointMixture.fit(s, decay)
        possible = [fitted.tokens_per_step(k)[None]]
        # Moments of the fitted steps are moments of some distribution; measured ones need not be (noise).
        moments = _moments(fitted.survival(len(s)) if len(s) >= 3 else s, decay)[:4]
        for rates in _extreme_points(moments):
            usable, step_shares = _shares_with(moments, rates)
            tokens = step_shares * (1.0 + _depths(rates[usable], len(s), decay).sum(axis=-1))
            shares = tokens / tokens.sum(axis=-1, keepdims=True)
            possible.append(_tokens_per_step(rates[usable], shares, decay, k))
        together = np.concatenate(possible)
        lowest.append(together.min(axis=0))
        highest.append(together.max(axis=0))
    return np.asarray(np.min(lowest, axis=0)), np.asarray(np.max(highest, axis=0))


def _damping(count: int, decay: float) -> FloatArray:
    """exp(-d*i*(i-1)/2) for i = 1..count: the product of the first i rates over a^i."""
    i = np.arange(1, count + 1)
    return np.asarray(np.exp(-decay * i * (i - 1) / 2.0))


def _depths(rates: FloatArray, count: int, decay: float) -> FloatArray:
    """Survival a^i exp(-d*i*(i-1)/2) of each rate, shape (..., count)."""
    return np.asarray(rates[..., None] ** np.arange(1, count + 1) * _damping(count, decay))


def _tokens_per_step(rates: FloatArray, token_shares: FloatArray, decay: float, k: ArrayLike) -> FloatArray:
    """E of mixtures with points on the last axis, shape (..., *shape of k)."""
    lengths = nonnegative("k", k).astype(int)
    most = int(np.max(lengths, initial=0))
    # E(a, k) for every k at once: running sums over positions, shape (..., points, most + 1).
    sums = np.cumsum(_depths(rates, most, decay), axis=-1)
    upto = np.concatenate([np.zeros((*rates.shape, 1)), sums], axis=-1)
    by_length: FloatArray = 1.0 / (token_shares[..., None] / (1.0 + upto)).sum(axis=-2)
    return np.asarray(by_length[..., lengths])


def _moments(survival: FloatArray, decay: float) -> FloatArray:
    """Moments 0..k over steps of the first-position rate; made to fall, as moments on [0, 1] do."""
    raw = np.concatenate([[1.0], survival / _damping(len(survival), decay)])
    return np.minimum.accumulate(np.minimum(raw, 1.0))


def _two_points(moments: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Rates and step shares of two points with moments 0..3 (fewer: see `fit`); None where none exist."""
    m = list(moments)
    variance = m[2] - m[1] ** 2 if len(m) > 2 else 0.0
    if variance <= 1e-12:
        single = m[1] if len(m) < 3 or variance > -1e-9 else None
        return None if single is None else (np.array([single, single]), np.array([0.5, 0.5]))
    if len(m) == 3:
        lowest = m[2] ** 2 / m[1]
        highest = m[2] - (m[1] - m[2]) ** 2 / (1.0 - m[1])
        m.append(0.5 * (lowest + highest))
    # Nodes of the Gauss rule: roots of the polynomial orthogonal to 1 and a.
    total = (m[3] - m[1] * m[2]) / variance
    product = total * m[1] - m[2]
    gap = total * total - 4.0 * product
    if not gap > 0:
        return None
    low, high = 0.5 * (total - np.sqrt(gap)), 0.5 * (total + np.sqrt(gap))
    if low < -1e-9 or high > 1.0 + 1e-9:
        return None
    low, high = max(low, 0.0), min(high, 1.0)
    share = (high - m[1]) / (high - low)
    return np.array([low, high]), np.array([share, 1.0 - share])


def _closest_two_points(survival: FloatArray, decay: float) -> tuple[FloatArray, FloatArray]:
    """Least-squares rates and step shares: exhaustive on a grid that is refined around its best cell.

    A descent would need a start and can end in a local minimum; 24 rounds of 21 x 21 pairs take a millisecond.
    """
    low, high, width = 0.5, 0.5, 0.5
    damping = _damping(len(survival), decay)
    powers = np.arange(1, len(survival) + 1)
    share = 0.5
    for _ in range(24):
        first = np.clip(np.linspace(low - width, low + width, 21), 0.0, 1.0)
        second = np.clip(np.linspace(high - width, high + width, 21), 0.0, 1.0)
        a, b = (x[..., None] for x in np.meshgrid(first, second, indexing="ij"))
        of_a, of_b = a**powers * damping, b**powers * damping
        # The last residual belongs to E itself: the profile's sum matters more than any one position.
        away, span = survival - of_b, of_a - of_b
        away, span = (np.concatenate([x, x.sum(-1, keepdims=True)], axis=-1) for x in (away, span))
        norm = (span * span).sum(-1)
        p = np.clip((away * span).sum(-1) / np.where(norm > 0, norm, 1.0), 0.0, 1.0)
        error = ((away - p[..., None] * span) ** 2).sum(-1)
        i, j = np.unravel_index(np.argmin(error), error.shape)
        low, high, share = float(first[i]), float(second[j]), float(p[i, j])
        width *= 0.4
    if low > high:
        low, high, share = high, low, 1.0 - share
    return np.array([low, high]), np.array([share, 1.0 - share])


def _extreme_points(moments: FloatArray) -> list[FloatArray]:
    """Sets of rates that distributions with moments 0..n (n = 1 to 3) may consist of where a functional is extreme.

    Families with one free rate (two with one moment only), scanned; each array has shape (sets, points).
    """
    m = moments
    if len(m) > 2 and m[2] - m[1] ** 2 <= 1e-12:
        return []
    free = np.linspace(0.0, 1.0, _SCAN)
    nothing, certain = np.zeros(_SCAN), np.ones(_SCAN)
    with np.errstate(divide="ignore", invalid="ignore"):
        if len(m) == 2:
            low, high = np.meshgrid(np.linspace(0.0, m[1], 41), np.linspace(m[1], 1.0, 41))
            return [np.stack([low.ravel(), high.ravel()], axis=-1)]
        if len(m) == 3:
            partner = (m[2] - m[1] * free) / (m[1] - free)
            return [np.stack([free, partner], axis=-1), np.stack([nothing, free, certain], axis=-1)]
        # Without the point at 0 (or 1) the measure a*dp (or (1 - a)*dp) has one moment less to meet.
        above = (m[3] - m[2] * free) / (m[2] - m[1] * free)
        below = ((m[2] - m[3]) - (m[1] - m[2]) * free) / ((m[1] - m[2]) - (1.0 - m[1]) * free)
    return [np.stack([nothing, free, above], axis=-1), np.stack([free, below, certain], axis=-1)]


def _shares_with(moments: FloatArray, rates: FloatArray) -> tuple[NDArray[np.bool_], FloatArray]:
    """Mask of the sets of rates that have these moments with shares that are not negative, and those shares."""
    points = rates.shape[-1]
    possible = np.all((rates >= 0.0) & (rates <= 1.0), axis=-1)
    gaps = np.abs(np.diff(np.sort(np.where(possible[:, None], rates, 0.0), axis=-1), axis=-1))
    possible &= np.all(gaps > 1e-7, axis=-1)
    safe = np.where(possible[:, None], rates, np.arange(points) / points)
    powers = safe[:, None, :] ** np.arange(points)[:, None]
    shares = np.linalg.solve(powers, np.broadcast_to(moments[:points, None], (len(rates), points, 1)))[..., 0]
    usable = possible & np.all(shares > -1e-9, axis=-1)
    return usable, np.clip(shares[usable], 0.0, None)
