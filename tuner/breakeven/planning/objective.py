"""Objectives of a service (SLO), the limits that an arm misses, and strain: the ratio of an arm's figures to their limits.

Strain makes objectives part of an arm's cost: request time at a load that misses one counts several times. An arm that keeps an
objective that another one misses is then worth entering although it is slower. If both miss it, the faster one is.

A policy adds the gain that a decision requires, its risk, and how often the arm may change.

A histogram tells whether requests kept a limit. It has for each edge the number of requests that took at most that long, and
nothing between two edges. A figure read off it is therefore a band. Its ends are edges so far apart that sampling cannot have
moved the figure beyond them. The number in the middle is interpolated, as `histogram_quantile` of Prometheus does it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist

import numpy as np

from breakeven.arm import Arm
from breakeven.estimate import Estimate
from breakeven.laws.arrays import FloatArray
from breakeven.phrases import latency_text
from breakeven.planning.decision_memory import DAY_S
from breakeven.profile import Bounds, LoadPoint, Prediction, Profile
from breakeven.profile.curves import Curve

_MISSED_COUNTS = 10.0
"""Factor on request time if an objective is missed: an objective outweighs any speedup of speculation."""
_KNOTS = 12


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
            f"{name}{self._kind(field, at)} {latency_text(value)} > {latency_text(limit)}"
            for name, field, value, limit in self._limits(at)
            if value is not None and value > limit
        )

    def worst_ratio(self, at: Prediction) -> float:
        """The largest ratio of a figure to its limit: above 1 a limit is missed; 0 without a figure, NaN if any is not a number."""
        ratios = [value / limit for _, _, value, limit in self._limits(at) if value is not None]
        return math.nan if any(map(math.isnan, ratios)) else max(ratios, default=0.0)

    def unmeasured(self, at: Prediction) -> tuple[str, ...]:
        """One phrase for each limit whose own figure was not measured: which figure was checked instead, if any."""
        if at.latency_s is None:
            return ()
        return tuple(
            f"{name} was not measured: nothing is held against its objective"
            if value is None
            else f"{self._statistic} of {name} was not measured: its mean is held against the objective"
            for name, field, value, _ in self._limits(at)
            if value is None or field in at.means
        )

    def lacks(self, at: Prediction) -> bool:
        """Whether the figure of a limit was not measured at all."""
        return at.latency_s is not None and any(value is None for _, _, value, _ in self._limits(at))

    def _limits(self, at: Prediction) -> list[tuple[str, str, float | None, float]]:
        """Of each limit its name, the name of its figure in a prediction, that figure and the limit."""
        everything = (
            ("E2E", "latency_s", at.latency_s, self.e2e_s),
            ("TTFT", "ttft_s", at.ttft_s, self.ttft_s),
            ("TPOT", "tpot_s", at.tpot_s, self.tpot_s),
        )
        return [(name, field, value, limit) for name, field, value, limit in everything if limit is not None]

    def _kind(self, field: str, at: Prediction) -> str:
        if self.quantile is None:
            return ""
        return " mean" if field in at.means else f" {self._statistic}"

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


_KNOWN_SHARE = 0.9
"""Share of the lookback, or of a day of it, whose loads must be known before a service is not young any more."""
_MOST_AWAY = 0.95


class Follow(StrEnum):
    """What an arm follows once it was chosen: the load across its break-even, or changes of the service alone.

    Either way an arm is left for its exits: a break-even passed for long or by much, overload, a missed objective.
    """

    LOAD = "Load"
    CHANGES = "Changes"


@dataclass(frozen=True, slots=True)
class Policy:
    """Gain that a change of arm requires, and its risk; the defaults are for production.

    Attributes:
        min_gain: least saving, as a share of the request time on the arm that is entered (1).
        day_risk: share of a day's request time without speculation by which the worst hours that the day may bring may make it
            longer (1); from 1 on only ten days together are bounded.
        cooldown_s: least time between two switches (s); no arm is left for no speculation later because of it.
        dwell_s: time for which entering a speculative arm must have been worth it (s).
        slo: the objectives; request time at a load that misses one counts several times.
        roll_seconds: capacity that one roll costs each replica, its start-up time (s).
        roll_away_share: share of the replicas that are away at a time during a roll; 0 where new ones come first.
        lookback_s: how far back loads are known at the most (s); 0: the present load is taken to last.
        follow: with Changes one arm is entered for a profile, and after that only left.
    """

    min_gain: float = 0.03
    day_risk: float = 0.05
    cooldown_s: float = 3600.0
    dwell_s: float = 300.0
    slo: Slo = field(default_factory=Slo)
    roll_seconds: float = 300.0
    roll_away_share: float = 0.0
    horizon_s: float = 14400.0
    lookback_s: float = 259200.0
    follow: Follow = Follow.LOAD

    @property
    def day_s(self) -> float:
        """A day, or the lookback if that is shorter (s)."""
        return min(DAY_S, self.lookback_s)

    @property
    def young_s(self) -> float:
        """Length of a known past (s) with which a surprise may exceed it twice as far as with a long one; thrice with half of it."""
        return _KNOWN_SHARE * self.day_s

    @property
    def away_share(self) -> float:
        """Share of the replicas that are away during a roll: with none left every figure of it is infinite."""
        return min(self.roll_away_share, _MOST_AWAY)

    @property
    def roll_s(self) -> float:
        """Duration of a roll (s)."""
        return self.roll_seconds / self.away_share if self.away_share else self.roll_seconds

    def __post_init__(self) -> None:
        for name in ("min_gain", "day_risk", "cooldown_s", "dwell_s", "roll_seconds", "lookback_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: {value!r} is not a finite number of at least 0")
        if not 0 <= self.roll_away_share <= 1:
            raise ValueError(f"roll_away_share: {self.roll_away_share!r} is not between 0 and 1")
        if not self.horizon_s > 0:
            raise ValueError(f"horizon_s: {self.horizon_s!r} is not above 0")


CONFIDENCE = 0.9
"""Two-sided level of the bounds of a histogram, as of a profile's by default."""


def added_up(histograms: Sequence[Mapping[float, float]]) -> dict[float, float]:
    """The sum of several histograms, each given as cumulative counts by upper edge (s).

    Native histograms leave out buckets that are empty, and have other edges than classic histograms. An edge stays if
    the count below it is known in every histogram: it has that edge, or no values between the edges around it.
    """
    edges_s = sorted({edge_s for one in histograms for edge_s in one})
    found = {}
    for edge_s in edges_s:
        below = [_up_to(one, edge_s) for one in histograms]
        known = [count for count in below if count is not None]
        if len(known) == len(below):
            found[edge_s] = math.fsum(known) if all(map(math.isfinite, known)) else math.nan
    return found


def _up_to(histogram: Mapping[float, float], edge_s: float) -> float | None:
    """Count of values up to an edge; None if the values of a bucket lie on both sides, or may."""
    if edge_s in histogram:
        return histogram[edge_s]
    before = max((one for one in histogram if one < edge_s), default=None)
    after = min((one for one in histogram if one > edge_s), default=None)
    low = 0.0 if before is None else histogram[before]
    return low if after is not None and histogram[after] == low else None


@dataclass(frozen=True, slots=True)
class Histogram:
    """Latencies of requests: upper edges (s), ascending, the last one infinite, with the requests that took at most so long."""

    edges_s: tuple[float, ...]
    counts: tuple[float, ...]

    @classmethod
    def of(cls, counts: Mapping[float, float]) -> Histogram | None:
        """The histogram with these counts by upper edge (s); None where the count of all requests is not among them.

        Prometheus extrapolates every bucket to the ends of the window by itself, so that one may come out a little below the
        one before it: it then counts as much as that one, as in `histogram_quantile`.
        """
        edges_s = tuple(sorted(counts))
        if not edges_s or not math.isinf(edges_s[-1]):
            return None
        most, ascending = 0.0, []
        for edge_s in edges_s:
            most = max(most, counts[edge_s])
            ascending.append(most)
        return cls(edges_s, tuple(ascending))

    @property
    def requests(self) -> float:
        """Number of all requests."""
        return self.counts[-1]

    def missed(self, limit_s: float) -> float:
        """Requests that certainly took longer: those above the first edge that is not below the limit."""
        return self.requests - self.counts[bisect_left(self.edges_s, limit_s)]

    def within(self, limit_s: float) -> Estimate:
        """Share of requests that kept a limit (s); nothing without requests.

        Between two edges every request of that bucket may have kept it, or none. Sampling widens that by Wilson's interval, which
        stays within 0 and 1 also where all requests did.
        """
        if not self.requests > 0.0:
            return Estimate()
        above = bisect_left(self.edges_s, limit_s)
        low_s, before = (self.edges_s[above - 1], self.counts[above - 1]) if above else (0.0, 0.0)
        low = self.counts[above] if self.edges_s[above] == limit_s else before
        lower, _ = _wilson(low / self.requests, self.requests)
        _, upper = _wilson(self.counts[above] / self.requests, self.requests)
        # The last bucket has no upper end: its requests count as missed.
        part = (limit_s - low_s) / (self.edges_s[above] - low_s)
        return Estimate((before + part * (self.counts[above] - before)) / self.requests, lower, upper)

    def quantile(self, share: float) -> Estimate:
        """Latency (s) that a share of requests kept, in (0, 1); nothing without requests.

        The upper bound is open, and there is no value, where it lies beyond the last finite edge.
        """
        if not self.requests > 0.0:
            return Estimate()
        below, above = (rank * self.requests for rank in _wilson(share, self.requests))
        first, last = bisect_left(self.counts, below), bisect_left(self.counts, above)
        upper_s = self.edges_s[min(last, len(self.edges_s) - 1)]
        return Estimate(
            self._at(share * self.requests),
            self.edges_s[first - 1] if first else 0.0,
            upper_s if math.isfinite(upper_s) else None,
        )

    def _at(self, rank: float) -> float | None:
        i = min(bisect_left(self.counts, rank), len(self.counts) - 1)
        if math.isinf(self.edges_s[i]):
            return None
        low_s, before = (self.edges_s[i - 1], self.counts[i - 1]) if i else (0.0, 0.0)
        inside = self.counts[i] - before
        return low_s + (self.edges_s[i] - low_s) * ((rank - before) / inside if inside > 0.0 else 1.0)


def _wilson(share: float, requests: float) -> tuple[float, float]:
    """Wilson's interval of a share that was observed over so many requests."""
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0)
    middle = (share + z * z / (2.0 * requests)) / (1.0 + z * z / requests)
    spread = z * math.sqrt(share * (1.0 - share) / requests + (z / (2.0 * requests)) ** 2)
    half = spread / (1.0 + z * z / requests)
    return max(middle - half, 0.0), min(middle + half, 1.0)
