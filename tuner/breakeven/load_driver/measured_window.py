"""One load as clients and engine saw it, and the point that follows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from breakeven.arm import Arm
from breakeven.load_driver.window import WindowStatistics
from breakeven.points.point import COLUMNS, ImposedLoad, Point, significant
from breakeven.points.quality import (
    few_generations,
    few_requests,
    lagging,
    leaves_unanswered,
    piling_up,
    queueing,
    unsteady,
)
from breakeven.reasons import Reason
from breakeven.serving.counted_window import Window


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """One window of one arm under one load.

    Attributes:
        arm: what was measured.
        load: what was imposed.
        clients: what the clients saw.
        engine: what the engine counted.
        queued_ratio: mean share of the engine's requests that waited, of the gauges seen; None without metrics.
        kv_usage_max: highest share of the KV pool in use that was seen.
        overloaded: the load was cut short because requests piled up.
    """

    arm: Arm
    load: ImposedLoad
    clients: WindowStatistics
    engine: Window
    queued_ratio: float | None = None
    kv_usage_max: float | None = None
    overloaded: bool = False

    @property
    def flags(self) -> tuple[Reason, ...]:
        """Every reason against the point, gravest first; empty if it is good."""
        seen = self.clients
        latency_s = seen.latency.mean_s
        queues = self.load.clients is not None and queueing(self.engine.queue_s, latency_s)
        too_few = few_generations(seen.requests, seen.mean_inflight)
        verdicts = {
            Reason.DRIVER_LAGGING: lagging(seen.send_lag_mean_s, seen.send_lag_p99_s, latency_s),
            Reason.REQUESTS_FAILED: seen.failed > 0,
            Reason.SATURATED_POINT: self.overloaded or self._piles_up or (queues and not too_few),
            Reason.NOT_STEADY: self.load.rps is not None and unsteady(seen.little_residual, self._chance),
            Reason.PREEMPTING: bool(self.engine.preemptions),
            Reason.POINT_TOO_SHORT: few_requests(seen.requests) or (queues and too_few),
        }
        return tuple(flag for flag, raised in verdicts.items() if raised)

    @property
    def _piles_up(self) -> bool:
        """Whether an open loop answers significantly less than it was planned to ask for.

        An open loop queues in every burst, and sends more than planned in some windows: neither is saturation. Only a large
        number of unanswered requests shows saturation.
        """
        seen, asked_rps = self.clients, self.load.rps
        if asked_rps is None:
            return False
        pile = (seen.offered_rps - seen.achieved_rps) * seen.seconds
        return leaves_unanswered(asked_rps, seen.achieved_rps, seen.requests) and piling_up(
            pile, seen.mean_inflight
        )

    @property
    def _chance(self) -> float:
        """Standard deviation of the Little residual in a steady state.

        What separates N from rate * L is the work in flight at the window's two edges, which differ by chance: about
        N requests with half their latency to go, scattering by sqrt(N / (1 - utilisation)), against N * T in all.
        """
        seen = self.clients
        return 1.5 * seen.latency.mean_s / seen.seconds / math.sqrt(max(seen.mean_inflight, 1e-9))

    @property
    def answered_rps(self) -> float:
        """Answers per second.

        In a closed loop this is in-flight over latency (Little's law). Its clients come in waves: a window of one and a
        half latencies counts one wave or two.
        """
        seen = self.clients
        return seen.achieved_rps if self.load.clients is None else seen.mean_inflight / seen.latency.mean_s

    @property
    def inflight(self) -> float:
        """Number in flight for the fit: in an open loop the others that a request met, in a closed loop the request included."""
        others = self.clients.others_met
        if others is None:
            return self.clients.mean_inflight
        # At a very low rate no request met another one, but the column must be positive.
        return max(others, 1e-6) if self.load.clients is None else others + 1

    def point(self) -> Point:
        """The point, in the digits that a points file keeps, so that going on from a file is the same as going on."""
        seen, engine, k = self.clients, self.engine, self.arm.k
        figures: dict[str, float | None] = {
            "concurrency": self.load.clients,
            "request_rate_rps": self.load.rps,
            "mean_latency_s": seen.latency.mean_s,
            "mean_inflight": self.inflight,
            "achieved_rps": self.answered_rps,
            "p50_latency_s": seen.latency.p50_s,
            "p95_latency_s": seen.latency.p95_s,
            "p99_latency_s": seen.latency.p99_s,
            "ttft_mean_s": seen.ttft.mean_s,
            "ttft_p50_s": seen.ttft.p50_s,
            "ttft_p95_s": seen.ttft.p95_s,
            "ttft_p99_s": seen.ttft.p99_s,
            "tpot_mean_s": seen.tpot.mean_s,
            "tpot_p50_s": seen.tpot.p50_s,
            "tpot_p95_s": seen.tpot.p95_s,
            "tpot_p99_s": seen.tpot.p99_s,
            "tokens_per_second": seen.tokens_per_second,
            "prompt_tokens": seen.prompt_tokens,
            "output_tokens": seen.output_tokens,
            "output_tokens_sq": seen.output_tokens_sq,
            "tokens_per_step": engine.tokens_per_step,
            "drafted_per_step": engine.drafted_per_step if k else None,
            "drafts": engine.drafts,
            "requests": seen.requests,
            "preemptions": engine.preemptions,
            "window_s": seen.seconds,
            "failed": seen.failed,
            "send_lag_p99_s": seen.send_lag_p99_s,
            "little_residual": seen.little_residual if self.load.rps is not None else None,
            "relative_error": seen.relative_error,
            "queued_ratio": self.queued_ratio,
            "kv_usage_max": self.kv_usage_max,
            "prefix_hit_ratio": engine.prefix_hit_ratio,
        }
        return Point(
            method=self.arm.method,
            k=k,
            candidate=self.arm.candidate,
            load_mode=self.load.mode,
            flag=" ".join(self.flags) or None,
            accept=tuple(significant(share) for share in engine.survival),
            **_within_range(figures),
        )


def _within_range(figures: dict[str, float | None]) -> dict[str, Any]:
    """The figures that are measurements: no answer inside a window gives no rate, an answer in one piece no TPOT."""
    kept = {name: significant(value) for name, value in figures.items() if value is not None}
    return {name: value for name, value in kept.items() if COLUMNS[name].holds(value)}
