"""Records of a steady window to its statistics.

Requests count if they were *sent* inside the window, each waited for to its end while the load goes on. Counting the
requests that *finished* inside it would favour short latencies. Stopping the load before the last answers would make
the last requests run in an emptying engine.

There are two numbers in flight. `others_met` is the mean over the steps of the counted requests. It goes with their
latencies whatever the load does, so a law is fitted to it. `mean_inflight` is the exact integral of the count of open
requests over the window, warm-up requests included. In a steady state both are the same, and Little's law about
`mean_inflight` shows whether the state was steady. In a window of six latencies the first follows the law to 0.1 %, the
second to 2 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from breakeven.laws.arrays import FloatArray

BATCHES = 10
CUT_OFF = "cut off by the driver"
TURNED_AWAY = "HTTP 429"
"""The error of a request that came at a wrong time: it says nothing of what the engine can answer."""


@dataclass(slots=True)
class RequestRecord:
    """One request as its client saw it; filled in while the answer streams, read when it is over.

    All times are seconds of one monotonic clock.

    Attributes:
        scheduled_s: when the load asked for it.
        sent_s: when the client began to send it; `sent_s - scheduled_s` is the driver's own lag.
        first_token_s: arrival of the first piece of output.
        done_s: arrival of the end of the answer, or the time of the error; None while in flight.
        steps: output events received: one per decode step that the request took part in.
        others_met: sum over those steps of the other requests in flight, each the time average over its step.
        error: what went wrong, in a few words without any prompt text; None for a complete answer.
    """

    scheduled_s: float
    sent_s: float
    first_token_s: float | None = None
    done_s: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    others_met: float = 0.0
    error: str | None = None

    @property
    def complete(self) -> bool:
        """The whole answer arrived and was counted."""
        return self.done_s is not None and self.error is None and self.first_token_s is not None

    @property
    def others(self) -> float | None:
        """Mean number of other requests in flight over the request's own steps; None without any.

        Each step takes C1/steps + others * C2/steps. So this number obeys L = C1 + others * C2 for every single request, in a
        steady state or out of it. The time average over its life does not: a request spends more time in crowded steps, which
        overstates it by a few percent.
        """
        return self.others_met / self.steps if self.steps else None

    @property
    def latency_s(self) -> float:
        """End-to-end latency; only of a request that is over."""
        if self.done_s is None:
            raise ValueError("the request is still in flight")
        return self.done_s - self.sent_s


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and quantiles of one kind of latency, seconds."""

    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class WindowStatistics:
    """One window as clients saw it; figures of requests are about the complete ones.

    Attributes:
        requests: complete requests sent in the window.
        errors: how often each error ended a request that was sent in the window.
        offered_rps: requests sent per second.
        achieved_rps: complete answers per second in the window, whenever their request was sent.
        mean_inflight: time average of the requests in flight.
        others_met: the other requests in flight, mean over all steps of the requests; None if unknown. Each step of a
            request takes C1/steps + others * C2/steps, so the mean latency obeys the law with this mean, also if
            answers differ in length; with a mean over requests short ones would count too much.
        tpot: per output token after the first. Its mean is a ratio of sums, so that E2E = TTFT + (g - 1) * TPOT holds
            for the three means of one window; its quantiles are over requests.
        tokens_per_second: output tokens of complete answers per second of the window.
        send_lag_mean_s, send_lag_p99_s: delay between a request's time and its sending.
        relative_error: standard error of the mean latency at the window's in-flight number, relative to it; infinite
            if there are too few requests.
    """

    seconds: float
    requests: int
    errors: Mapping[str, int]
    offered_rps: float
    achieved_rps: float
    mean_inflight: float
    others_met: float | None
    latency: Spread
    ttft: Spread
    tpot: Spread
    tokens_per_second: float
    prompt_tokens: float
    output_tokens: float
    output_tokens_sq: float
    send_lag_mean_s: float
    send_lag_p99_s: float
    relative_error: float

    @property
    def failed(self) -> int:
        """Number of requests that failed."""
        return sum(self.errors.values())

    @property
    def little_residual(self) -> float:
        """|N - rate * L| / N: how far the window is from a steady state (Little's law), relative."""
        if not self.mean_inflight > 0:
            return math.inf
        return abs(self.mean_inflight - self.offered_rps * self.latency.mean_s) / self.mean_inflight


def errors_of(records: Iterable[RequestRecord]) -> Mapping[str, int]:
    """How often each error ended a request, the most frequent one first."""
    errors = Counter(one.error for one in records if one.error is not None and one.error != CUT_OFF)
    return dict(errors.most_common())


def mean_inflight(records: Sequence[RequestRecord], start_s: float, end_s: float) -> float:
    """Time average of open requests over [start, end]; a request without an end is open until then."""
    overlap_s = sum(
        max(
            0.0, (end_s if record.done_s is None else min(record.done_s, end_s)) - max(record.sent_s, start_s)
        )
        for record in records
    )
    return overlap_s / (end_s - start_s)


def summarise(
    records: Sequence[RequestRecord], start_s: float, end_s: float, company_s: float = 0.0
) -> WindowStatistics | None:
    """Statistics of the window [start, end); None if no request sent in it was answered.

    `records` are of every request of the measurement, warm-up included, in the order of sending; `company_s` is C2 as known so
    far, with which the precision of the mean is computed.
    """
    seconds = end_s - start_s
    sent = [record for record in records if start_s <= record.sent_s < end_s]
    complete = [record for record in sent if record.complete]
    if not complete or not seconds > 0:
        return None
    lag = np.array([record.sent_s - record.scheduled_s for record in sent])
    output = np.array([record.output_tokens for record in complete], dtype=float)
    streaming_s = np.array([(record.done_s or 0.0) - (record.first_token_s or 0.0) for record in complete])
    following, steps = np.maximum(output - 1, 1), sum(record.steps for record in complete)
    finished = [record for record in records if record.complete and start_s <= (record.done_s or 0.0) < end_s]
    return WindowStatistics(
        seconds=seconds,
        requests=len(complete),
        errors=errors_of(sent),
        offered_rps=len(sent) / seconds,
        achieved_rps=len(finished) / seconds,
        mean_inflight=mean_inflight(records, start_s, end_s),
        others_met=sum(record.others_met for record in complete) / steps if steps else None,
        latency=_spread([record.latency_s for record in complete]),
        ttft=_spread([(record.first_token_s or 0.0) - record.sent_s for record in complete]),
        tpot=replace(_spread(streaming_s / following), mean_s=float(streaming_s.sum() / following.sum())),
        tokens_per_second=sum(record.output_tokens for record in finished) / seconds,
        prompt_tokens=float(np.mean([record.prompt_tokens for record in complete])),
        output_tokens=float(np.mean(output)),
        output_tokens_sq=float(np.mean(output**2)),
        send_lag_mean_s=float(lag.mean()),
        send_lag_p99_s=float(np.percentile(lag, 99)),
        relative_error=relative_error(records, start_s, end_s, company_s),
    )


def relative_error(
    records: Sequence[RequestRecord], start_s: float, end_s: float, company_s: float = 0.0
) -> float:
    """Standard error of the mean latency *given the other requests in flight*, relative to the mean, from batch means.

    Latencies of neighbours are correlated, because they share the engine. So independent batches of neighbours give the
    error, not single requests. Near saturation most of the scatter between batches is the random walk of the number
    in flight. Every point reports that number, and the fit uses it. The part of a latency that the law's slope
    explains by the other requests in flight is therefore removed first. The slope (`company_s`, C2) must come from elsewhere:
    regressed within the window it would explain too much, because Little's law ties latency to the number in flight.
    Infinite with too few requests.
    """
    sent = [record for record in records if start_s <= record.sent_s < end_s and record.complete]
    if len(sent) < 2 * BATCHES:
        return math.inf
    latency = np.array([record.latency_s for record in sent])
    unexplained = latency - company_s * np.array([record.others or 0.0 for record in sent])
    edges = [len(sent) * index // BATCHES for index in range(BATCHES + 1)]
    means = np.array([unexplained[first:last].mean() for first, last in pairwise(edges)])
    return float(np.std(means, ddof=1) / math.sqrt(BATCHES) / latency.mean())


def _spread(values: Sequence[float] | FloatArray) -> Spread:
    p50, p95, p99 = np.percentile(values, [50, 95, 99])
    return Spread(float(np.mean(values)), float(p50), float(p95), float(p99))
