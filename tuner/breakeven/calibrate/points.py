"""One measured operating point: its row in a points file, and when not to use it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from breakeven.arm import Arm
from breakeven.calibrate.counters import EngineWindow
from breakeven.calibrate.loads import Load
from breakeven.calibrate.window import WindowStatistics
from breakeven.points.point import FEWEST_GENERATIONS, LoadMode
from breakeven.reasons import Reason

_WORDS = {reason.value: reason for reason in Reason}


@dataclass(frozen=True, slots=True)
class Limits:
    """When a point is flagged.

    Attributes:
        mean_lag_ratio: tolerated mean send lag as a share of the mean latency; a driver that sends late also reads
            late, so this is about the bias of the latencies.
        send_lag_ratio: tolerated 99th percentile of the send lag as a share of the mean latency: more would bunch
            the arrivals into another process than the one imposed.
        send_lag_s: lags below this never matter.
        little_residual: tolerated |N - rate * L| / N in an open loop, beside what a steady one shows by chance.
        little_sigmas: how many standard deviations of that chance are tolerated.
        growth_ratio: an open loop whose answers per second stay below this share of the requests is saturated.
        queued_share: a closed loop whose requests wait for a place in the batch for more than this share of their
            latency is saturated: more clients would only wait longer.
        min_requests: fewer complete requests are too few.
    """

    mean_lag_ratio: float = 0.02
    send_lag_ratio: float = 0.25
    send_lag_s: float = 0.005
    little_residual: float = 0.10
    little_sigmas: float = 2.0
    growth_ratio: float = 0.85
    queued_share: float = 0.10
    min_requests: int = 5


@dataclass(frozen=True, slots=True)
class Point:
    """One operating point of one arm.

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
    load: Load
    clients: WindowStatistics
    engine: EngineWindow
    queued_ratio: float | None = None
    kv_usage_max: float | None = None
    overloaded: bool = False

    def flags(self, limits: Limits) -> tuple[Reason, ...]:
        """Every reason against the point, gravest first; empty if it is good."""
        seen = self.clients
        latency_s = seen.latency.mean_s
        lagging = seen.send_lag_mean_s > max(limits.send_lag_s, limits.mean_lag_ratio * latency_s)
        lagging = lagging or seen.send_lag_p99_s > max(limits.send_lag_s, limits.send_lag_ratio * latency_s)
        queueing = (
            self.load.clients is not None and (self.engine.queue_s or 0.0) > limits.queued_share * latency_s
        )
        too_few = seen.requests < FEWEST_GENERATIONS * seen.mean_inflight
        verdicts = {
            Reason.DRIVER_LAGGING: lagging,
            Reason.REQUESTS_FAILED: seen.failed > 0,
            Reason.SATURATED_POINT: self.overloaded or self._piling_up(limits) or (queueing and not too_few),
            Reason.NOT_STEADY: self.load.rps is not None
            and seen.little_residual > self._little_limit(limits),
            Reason.PREEMPTING: bool(self.engine.preemptions),
            Reason.POINT_TOO_SHORT: seen.requests < limits.min_requests or (queueing and too_few),
        }
        return tuple(flag for flag, raised in verdicts.items() if raised)

    def _piling_up(self, limits: Limits) -> bool:
        """Whether an open loop answers surely less than it was planned to ask for.

        An open loop queues in every burst, and sends more than planned in some windows: neither is saturation. A count of
        answers is uncertain by one over the root of it, and only a pile that is large in itself tells anything.
        """
        seen, asked_rps = self.clients, self.load.rps
        if asked_rps is None:
            return False
        unanswered = 1.0 - seen.achieved_rps / asked_rps
        pile = (seen.offered_rps - seen.achieved_rps) * seen.seconds
        doubt = max(1.0 - limits.growth_ratio, 2.0 / math.sqrt(seen.requests))
        return unanswered > doubt and pile > max(5, seen.mean_inflight)

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
        """Number in flight as the fit takes it: in an open loop the others a request met, in a closed loop with it."""
        others = self.clients.others_met
        if others is None:
            return self.clients.mean_inflight
        # Nobody met anybody at a very low rate; the column wants a positive number.
        return max(others, 1e-6) if self.load.clients is None else others + 1

    def _little_limit(self, limits: Limits) -> float:
        """Tolerated Little residual of this window.

        What separates N from rate * L is the work in flight at the window's two edges, which differ by chance: about
        N requests with half their latency to go, scattering by sqrt(N / (1 - utilisation)), against N * T in all.
        """
        seen = self.clients
        chance = 1.5 * seen.latency.mean_s / seen.seconds / math.sqrt(max(seen.mean_inflight, 1e-9))
        return limits.little_residual + limits.little_sigmas * chance

    def row(self, limits: Limits) -> dict[str, str]:
        """The point as a row of a points file; a figure that does not exist is an empty field.

        Columns that the fit does not use: `send_lag_p99_s`, `little_residual`, `relative_error`, `window_s`, `failed`,
        `queued_ratio`, `kv_usage_max`, `prefix_hit_ratio`.
        """
        seen, engine = self.clients, self.engine
        figures: dict[str, float | None] = {
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
            # Under load vLLM's front end merges outputs of consecutive steps into one and so counts a step too few
            # now and then (0.32: 3 in 10,000); more than k + 1 tokens in a step there are not.
            "tokens_per_step": _at_most(engine.tokens_per_step, self.arm.k + 1.0),
            "drafted_per_step": _at_most(engine.drafted_per_step, self.arm.k) if self.arm.k else None,
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
        figures |= {f"accept_{index}": share for index, share in enumerate(engine.survival, start=1)}
        words = {
            "method": self.arm.method,
            "k": str(self.arm.k),
            "candidate": self.arm.candidate or "",
            "load_mode": self.load.mode.value,
            "concurrency": "" if self.load.clients is None else str(self.load.clients),
            "request_rate_rps": "" if self.load.rps is None else decimal(self.load.rps),
            "flag": " ".join(self.flags(limits)),
        }
        return words | {name: decimal(value) for name, value in figures.items()}


def _at_most(value: float | None, bound: float) -> float | None:
    return None if value is None else min(value, bound)


def decimal(value: float | None) -> str:
    """A number in six significant digits without an exponent where that is readable; empty if there is none."""
    if value is None or not math.isfinite(value):
        return ""
    return (
        f"{value:.6g}"
        if 1e-4 <= abs(value) < 1e6 or value == 0
        else f"{value:.0f}"
        if abs(value) >= 1e6
        else f"{value:.3e}"
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """What the sweep's design needs to know of a point, measured now or read back from a row.

    Attributes:
        load: what was imposed.
        latency_s: mean end-to-end latency.
        inflight: mean number in flight.
        achieved_rps: answers per second.
        flags: reasons against the point.
        seconds: length of its window.
    """

    load: Load
    latency_s: float
    inflight: float
    achieved_rps: float
    flags: tuple[Reason, ...] = ()
    seconds: float = 0.0

    @property
    def usable(self) -> bool:
        """Nothing speaks against the point."""
        return not self.flags

    @classmethod
    def of(cls, point: Point, limits: Limits) -> Measured:
        """The same of a point just measured."""
        seen = point.clients
        return cls(
            point.load,
            seen.latency.mean_s,
            point.inflight,
            point.answered_rps,
            point.flags(limits),
            seen.seconds,
        )

    @classmethod
    def of_row(cls, row: Mapping[str, str]) -> Measured | None:
        """The same of a row that `Point.row` wrote; None if the row lacks what a sweep needs to go on from it."""
        try:
            concurrency = row.get("concurrency", "")
            mode = LoadMode(row.get("load_mode") or ("closed" if concurrency else "poisson"))
            return cls(
                Load(mode, float(concurrency or row["request_rate_rps"])),
                float(row["mean_latency_s"]),
                float(row["mean_inflight"]),
                float(row["achieved_rps"]),
                tuple(_WORDS[word] for word in row.get("flag", "").split()),
                float(row.get("window_s") or 0.0),
            )
        except (KeyError, ValueError):
            return None
