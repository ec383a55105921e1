"""What a service promises (SLO), and which of it an arm does not keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Latencies(Protocol):
    """Latencies at one load; `None` where the arm is saturated (latency) or the figure was not measured."""

    @property
    def latency_s(self) -> float | None:
        """End to end (s)."""

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token (s)."""

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first (s)."""


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
        """Whether anything is promised."""
        return any(limit is not None for limit in (self.e2e_s, self.ttft_s, self.tpot_s))

    def missed(self, at: Latencies) -> tuple[str, ...]:
        """Name the limits that these latencies do not keep, as `TPOT 48 ms > 40 ms`; a saturated arm keeps none.

        A figure that was never measured (`None` while the latency exists) cannot be held against the arm.
        """
        if at.latency_s is None:
            return ("saturated",) if self.is_set else ()
        pairs = (
            ("E2E", at.latency_s, self.e2e_s),
            ("TTFT", at.ttft_s, self.ttft_s),
            ("TPOT", at.tpot_s, self.tpot_s),
        )
        return tuple(
            f"{name} {_milliseconds(value)} > {_milliseconds(limit)}"
            for name, value, limit in pairs
            if limit is not None and value is not None and value > limit
        )

    def keeps(self, at: Latencies) -> bool:
        """Whether no limit is missed."""
        return not self.missed(at)


def _milliseconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
