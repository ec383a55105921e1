"""Mixture of experts: a step loads the experts that its tokens touch, so a nearly idle engine is cheaper than the law.

    phi(T) = 1 - (1 - m/M)^T          share of experts touched by T tokens, m of M each
    L = C1u + phi*C1s + n*(C2u + phi*C2s)

T is the in-flight number times the tokens verified per request (1 without speculation, kd + 1 with), never less than
one request's: a step that does something has a request in it. In a closed loop with C clients T = C*(kd + 1) is given;
in an open loop phi depends on L through n = RPS*L, a fixed point of which the smallest root is the state that a fleet
starting empty settles in. (Kong et al., arXiv 2605.15051, for phi.)

An arm can cross no speculation several times as load grows: what it has is intervals of load, not one break-even.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from breakeven.laws.arrays import FloatArray, at_least, nonnegative


def touched_share(tokens: ArrayLike, active: ArrayLike, experts: ArrayLike) -> FloatArray:
    """phi: share of `experts` that `tokens` tokens touch when each is routed to `active` of them.

    Raises:
        ValueError: tokens is negative, or active is not between 1 and experts.
    """
    m, total = at_least("active", active, 1.0), at_least("experts", experts, 1.0)
    if np.any(m > total):
        raise ValueError(f"active: {active!r} is more than experts")
    count = nonnegative("tokens", tokens)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = -np.expm1(count * np.log1p(-m / total))
    # All experts active: 0 * log(0) at zero tokens.
    return np.where(m == total, (count > 0).astype(float), share)


@dataclass(frozen=True, slots=True)
class ExpertLaw:
    """The law of an arm on a mixture of experts.

    Attributes:
        c1u_s: latency of a lone request without any expert loaded (s).
        c1s_s: what all experts add to it (s).
        c2u_s: cost of one other request (s).
        c2s_s: what all experts add to that (s).
        active: experts per token, m.
        experts: experts per layer, M.
        verified: tokens verified per request-step, kd + 1; 1 without speculation.
    """

    c1u_s: float
    c1s_s: float
    c2u_s: float
    c2s_s: float
    active: float
    experts: float
    verified: float = 1.0

    def __post_init__(self) -> None:
        for name in ("c1u_s", "c1s_s", "c2u_s", "c2s_s"):
            nonnegative(name, getattr(self, name))
        at_least("verified", self.verified, 1.0)
        touched_share(1.0, self.active, self.experts)
        if not self.c1u_s + self.c1s_s > 0:
            raise ValueError("c1u_s + c1s_s is not above 0: a lone request takes time")

    @property
    def _rate(self) -> float:
        """How fast phi fills per request in flight: (kd + 1)*|ln(1 - m/M)|."""
        return (
            np.inf
            if self.active == self.experts
            else -self.verified * float(np.log1p(-self.active / self.experts))
        )

    @property
    def saturation_rps(self) -> float:
        """Rate (1/s) that a long queue is served at, all experts touched: 1/(C2u + C2s)."""
        cost = self.c2u_s + self.c2s_s
        return np.inf if cost == 0 else 1.0 / cost

    def latency_s(self, others: ArrayLike, inflight: ArrayLike) -> FloatArray:
        """L (s) of a request that meets `others` while `inflight` requests share its steps (at least one does).

        Raises:
            ValueError: an argument is negative.
        """
        sharing = np.maximum(nonnegative("inflight", inflight), 1.0)
        phi = touched_share(sharing * self.verified, self.active, self.experts)
        n = nonnegative("others", others)
        return np.asarray(self.c1u_s + phi * self.c1s_s + n * (self.c2u_s + phi * self.c2s_s))

    def closed_loop_latency(self, concurrency: ArrayLike) -> FloatArray:
        """L (s) with `concurrency` requests always in flight.

        Raises:
            ValueError: concurrency is below 1.
        """
        clients = at_least("concurrency", concurrency, 1.0)
        return self.latency_s(clients - 1.0, clients)

    def open_loop_latency(self, rps: ArrayLike) -> FloatArray:
        """L (s) under Poisson arrivals at `rps` (1/s): the smallest root; NaN where there is none (saturation).

        Raises:
            ValueError: rps is negative.
        """
        rate = nonnegative("rps", rps)
        low, high = self._bracket(rate)
        # n/L(n) rises on the bracket, so halving finds the only root in it.
        for _ in range(200):
            middle = 0.5 * (low + high)
            below = self._rate_at(middle) < rate
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return self._open(0.5 * (low + high))

    @property
    def is_unique(self) -> bool:
        """Whether the open loop has one steady state at every rate; otherwise a queue can persist after a peak.

        n/L(n) must rise: with u = (kd+1)*|ln(1-m/M)|*n, C1u + (1 - e^-u*(1+u))*C1s >= u^2*e^-u*C2s/((kd+1)*|ln(1-m/M)|).
        The left side less the right is lowest at u = 2 - C1s*(kd+1)*|ln|/C2s, not at u = 2 (where it reads C1u +
        0.594*C1s >= 0.541*C2s/(...)), which is only the special case C1s = 0.
        """
        return self._fold() is None

    def _open(self, others: FloatArray) -> FloatArray:
        """Open loop: the time average in flight is what an arrival meets."""
        return self.latency_s(others, others)

    def _rate_at(self, others: FloatArray) -> FloatArray:
        """Rate (1/s) at which n others are met: n/L(n); unknown n stays unknown."""
        known = np.where(np.isnan(others), 0.0, others)
        return np.where(np.isnan(others), np.nan, known / self._open(known))

    def _slope_sign(self, others: float) -> float:
        """Sign of d(n/L)/dn, as L - n*L'."""
        a = self._rate
        u = a * max(others, 1.0)
        decay = float(np.exp(-u))
        if others < 1.0:
            # Fewer than one in flight on average: phi stands still at one request's.
            return self.c1u_s + (1.0 - decay) * self.c1s_s
        return self.c1u_s + (1.0 - decay * (1.0 + u)) * self.c1s_s - u * u * decay * self.c2s_s / a

    def _fold(self) -> tuple[float, float] | None:
        """The n between which n/L(n) falls; `None` where it never does."""
        a = self._rate
        if self.c2s_s == 0 or not np.isfinite(a):
            return None
        lowest = max(2.0 / a - self.c1s_s / self.c2s_s, 1.0)
        if self._slope_sign(lowest) >= 0:
            return None
        far = lowest + 1.0
        while self._slope_sign(far) < 0:
            far *= 2.0
        return self._sign_change(1.0, lowest), self._sign_change(far, lowest)

    def _sign_change(self, rising: float, falling: float) -> float:
        if self._slope_sign(rising) < 0:
            return rising
        for _ in range(100):
            middle = 0.5 * (rising + falling)
            rising, falling = (middle, falling) if self._slope_sign(middle) >= 0 else (rising, middle)
        return rising

    def _bracket(self, rate: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Ends of a range of n on which n/L rises and that holds the smallest root; NaN where there is no root."""
        carried = rate < self.saturation_rps
        fold = self._fold()
        begin, first_end = (0.0, 0.0) if fold is None else (fold[1], fold[0])
        early = (fold is not None) & (rate <= self._rate_at(np.asarray(first_end)))
        # Beyond the fold n/L approaches saturation as 1/n does: the cost of a lone request bounds the root.
        lone = self.c1u_s + self.c1s_s
        with np.errstate(divide="ignore", invalid="ignore"):
            far = begin + 1.0 + rate * lone / np.where(carried, 1.0 - rate / self.saturation_rps, np.nan)
        low = np.where(early, 0.0, np.where(carried, begin, np.nan))
        return low, np.where(early, first_end, np.where(carried, far, np.nan))
