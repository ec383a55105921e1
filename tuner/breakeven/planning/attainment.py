"""Share of requests that kept a limit, and the latency that a share of them kept, from the buckets of a histogram.

A histogram has for each edge the number of requests that took at most that long, and nothing between two edges. A figure
read off it is therefore a band. Its ends are edges so far apart that sampling cannot have moved the figure beyond them.
The number in the middle is interpolated, as `histogram_quantile` of Prometheus does it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from breakeven.estimate import Estimate

CONFIDENCE = 0.9
"""Two-sided level of the bounds here, as of a profile's by default."""


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
