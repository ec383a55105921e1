"""Objectives of a service (SLO), and those that an arm does not keep."""

from __future__ import annotations

import math
from dataclasses import dataclass

from breakeven.phrases import latency_text
from breakeven.profile import Prediction


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit with the figure it is about; `field` is that figure's name in a prediction."""

    name: str
    field: str
    value: float | None
    limit: float


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits that requests are to keep; `None`: no limit.

    Attributes:
        e2e_s: end-to-end latency (s).
        ttft_s: time to first token (s).
        tpot_s: time per output token (s). Not the inter-token latency, which speculation makes longer while it makes
            requests faster.
        quantile: which quantile of requests is to keep them, in (0, 1); `None`: the mean.
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
        that was never measured (`None` while the latency exists) cannot be held against the arm. `unmeasured` names both.
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
        """The limits that are set, each with the figure it is about."""
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
