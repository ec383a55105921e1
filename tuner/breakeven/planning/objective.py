"""Objectives of a service (SLO), the limits that an arm misses, and strain: the ratio of an arm's figures to their limits.

Strain makes objectives part of an arm's cost: request time at a load that misses one counts several times. An arm that keeps an
objective that another one misses is then worth entering although it is slower. If both miss it, the faster one is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from breakeven.arm import Arm
from breakeven.laws.arrays import FloatArray
from breakeven.phrases import latency_text
from breakeven.profile import Bounds, LoadPoint, Prediction, Profile
from breakeven.profile.curves import Curve

_MISSED_COUNTS = 10.0
"""Factor on request time if an objective is missed: an objective outweighs any speedup of speculation."""
_KNOTS = 12


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit with the figure it is about; `field` is that figure's name in a prediction."""

    name: str
    field: str
    value: float | None
    limit: float


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits that requests are to keep; None without a limit.

    Attributes:
        e2e_s: end-to-end latency (s).
        ttft_s: time to first token (s).
        tpot_s: time per output token (s). Not the inter-token latency, which speculation makes longer while it makes
            requests faster.
        quantile: which quantile of requests is to keep them, in (0, 1); None for the mean.
    """

    e2e_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    quantile: float | None = None

    def __post_init__(self) -> None:
        for name in ("e2e_s", "ttft_s", "tpot_s"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ValueError(f"{name}: {limit!r} is not above 0")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise ValueError(f"quantile: {self.quantile!r} is not between 0 and 1")

    @property
    def is_set(self) -> bool:
        """Whether there is any objective."""
        return any(limit is not None for limit in (self.e2e_s, self.ttft_s, self.tpot_s))

    def missed(self, at: Prediction) -> tuple[str, ...]:
        """Name the limits that these latencies do not keep, as `TPOT p95 48 ms > 40 ms`; a saturated arm keeps none.

        Where a quantile was not measured its mean counts, which is then named, as `TPOT mean 48 ms > 40 ms`; a figure
        that was never measured (None while the latency exists) cannot be held against the arm. `unmeasured` names both.
        """
        if at.latency_s is None:
            return ("saturated",) if self.is_set else ()
        return tuple(
            f"{one.name}{self._kind(one, at)} {latency_text(one.value)} > {latency_text(one.limit)}"
            for one in self._limits(at)
            if one.value is not None and one.value > one.limit
        )

    def worst_ratio(self, at: Prediction) -> float:
        """The largest ratio of a figure to its limit: above 1 a limit is missed; 0 without a figure, NaN if any is not a number."""
        ratios = [one.value / one.limit for one in self._limits(at) if one.value is not None]
        return math.nan if any(map(math.isnan, ratios)) else max(ratios, default=0.0)

    def unmeasured(self, at: Prediction) -> tuple[str, ...]:
        """One phrase for each limit whose own figure was not measured: which figure was checked instead, if any."""
        if at.latency_s is None:
            return ()
        return tuple(
            f"{one.name} was not measured: nothing is held against its objective"
            if one.value is None
            else f"{self._statistic} of {one.name} was not measured: its mean is held against the objective"
            for one in self._limits(at)
            if one.value is None or one.field in at.means
        )

    def lacks(self, at: Prediction) -> bool:
        """Whether the figure of a limit was not measured at all."""
        return at.latency_s is not None and any(one.value is None for one in self._limits(at))

    def _limits(self, at: Prediction) -> tuple[_Limit, ...]:
        everything = (
            ("E2E", "latency_s", at.latency_s, self.e2e_s),
            ("TTFT", "ttft_s", at.ttft_s, self.ttft_s),
            ("TPOT", "tpot_s", at.tpot_s, self.tpot_s),
        )
        return tuple(
            _Limit(name, field, value, limit) for name, field, value, limit in everything if limit is not None
        )

    def _kind(self, one: _Limit, at: Prediction) -> str:
        if self.quantile is None:
            return ""
        return " mean" if one.field in at.means else f" {self._statistic}"

    @property
    def _statistic(self) -> str:
        """`p95` for 0.95, `mean` without a quantile."""
        return "mean" if self.quantile is None else f"p{100.0 * self.quantile:g}"


@dataclass(frozen=True, slots=True, eq=False)
class ObjectiveStrain:
    """The worst ratio of a figure to its limit, above 1 if an objective is missed, at K numbers of others in flight.

    `alone_share` is the share of C1 in the latency there; shape (K,) each.
    """

    others: FloatArray
    ratio: FloatArray
    alone_share: FloatArray

    def weights(self, inflight: FloatArray, factors: FloatArray, tails: FloatArray) -> FloatArray:
        """Weight of a request in flight, among a mean number that is drawn at several loads; shape (M, X).

        Factors on C1 and C2 have shape (M, 2), the factor on the ratio (`tail_factor` of the arm in place) has (M, 1).
        """
        return np.where(tails * self.at(inflight, factors) > 1.0, _MISSED_COUNTS, 1.0)

    def at(self, inflight: FloatArray, factors: FloatArray) -> FloatArray:
        """The ratio by laws with these factors, as learned from mean latency; shapes as in `weights`."""
        ratio = np.interp(inflight, self.others, self.ratio)
        alone = np.interp(inflight, self.others, self.alone_share)
        return np.asarray(ratio * (factors[:, :1] * alone + factors[:, 1:] * (1.0 - alone)))


def tail_factor(expected: FloatArray, measured: Bounds | None) -> FloatArray:
    """Factor that brings a predicted ratio of the arm in place within the bounds of the measured one; 1 if nothing was measured.

    It is as near to 1 as these bounds allow: a prediction within them stays. Long answers and bursts stretch the tail
    whichever arm runs, so the factor holds for all arms; an error of one arm alone shows in its mean.
    """
    if measured is None:
        return np.ones_like(expected)
    lower, upper = measured
    within = np.clip(expected, lower, np.inf if upper is None else upper)
    return np.asarray(np.divide(within, expected, out=np.ones_like(expected), where=expected > 0.0))


def objective_strain(profile: Profile, arm: Arm, curve: Curve, slo: Slo) -> ObjectiveStrain:
    """The strain tabulated from a lone request to close to saturation; a figure that was never measured does not count."""
    line = curve.line
    most = 20.0 * line.c1_s / line.c2_s
    others = np.concatenate([[0.0], np.geomspace(most * 1e-3, most, _KNOTS - 1)])
    worst = [
        slo.worst_ratio(profile.predict_along(arm, curve, LoadPoint(others=float(n)), quantile=slo.quantile))
        for n in others
    ]
    return ObjectiveStrain(others, np.array(worst), np.asarray(line.c1_s / (line.c1_s + line.c2_s * others)))
