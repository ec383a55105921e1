"""Thresholds of a steady state, each stated once: the load driver flags by them, and the fit leaves points out.

The driver sees more than a row holds (send lag, queueing, both edges of its window) and writes its verdict into `flag`.
A row of another tool is judged here by its columns alone.
"""

from __future__ import annotations

import math

from breakeven.laws.latency import littles_law_gap
from breakeven.points.point import Point
from breakeven.reasons import Reason

FEWEST_GENERATIONS = 4.0
"""Requests per request in flight below which a run shows neither a steady state nor saturation: the number of times that all
requests in flight were replaced."""

_FEWEST_REQUESTS = 5
"""Fewer complete requests are too few for a mean."""

_UNSTEADY_GAP = 0.10
"""|N - rate * L| / N above this is not a steady state, beyond what chance explains."""

_CHANCE_SIGMAS = 2.0
"""Standard deviations of chance that are tolerated, for counts and for gaps."""

_ANSWERED_SHARE = 0.85
"""An open loop that answers a smaller share of the offered rate is beyond saturation."""

_PILE = 5.0
"""Unanswered requests up to this number are not yet a pile."""

_QUEUED_SHARE = 0.10
"""A closed loop whose requests wait longer than this share of their latency for a place in the batch is saturated: more
clients would only wait longer."""

_QUEUE_SHARES = (1.5, 2.1)
"""Excess over mean latency of a run that emptied a queue. Latency grows evenly from L0 to the excess E, so that E over the
mean is 2E/(E + L0): 1.5 where E is 3 L0, below 2 always. A steady run ends about one latency after its last request."""

_LONG_QUEUE_SHARE = 1.8
"""E over mean latency from which the queue lasted nine unloaded latencies: the engine was full for nearly all of the run."""

_LAG_S = 0.005
"""A smaller send lag of the driver is ignored."""

_MEAN_LAG_SHARE = 0.02
"""Tolerated mean send lag as a share of the mean latency. A driver that sends late also reads late, so this bounds a bias."""

_TAIL_LAG_SHARE = 0.25
"""Tolerated 99th percentile of the send lag as a share of the mean latency: more would bunch the arrivals."""


def few_generations(requests: float, inflight: float) -> bool:
    """Whether requests in flight were replaced too seldom for the run to show a steady state or a ceiling."""
    return requests < FEWEST_GENERATIONS * inflight


def few_requests(requests: float) -> bool:
    """Whether there are too few requests for a mean."""
    return requests < _FEWEST_REQUESTS


def lagging(mean_lag_s: float, p99_lag_s: float, latency_s: float) -> bool:
    """Whether the driver sent so late that arrivals or latencies differ from those imposed."""
    return mean_lag_s > max(_LAG_S, _MEAN_LAG_SHARE * latency_s) or p99_lag_s > max(
        _LAG_S, _TAIL_LAG_SHARE * latency_s
    )


def queueing(queue_s: float | None, latency_s: float) -> bool:
    """Whether the requests of a closed loop wait for a place in the batch; unknown is no."""
    return (queue_s or 0.0) > _QUEUED_SHARE * latency_s


def waiting_share(point: Point, inflight: float) -> float:
    """Share of the requests in flight that waited for a place in the batch; 0 if no more waited than a burst leaves.

    An engine's gauge also counts requests that wait for the end of a step, and is read a few times in a window.
    """
    share = point.queued_ratio or 0.0
    return share if queueing(share, 1.0) and share * inflight > _PILE else 0.0


def leaves_unanswered(asked_rps: float, answered_rps: float, requests: float | None) -> bool:
    """Whether an open loop answers significantly less than was asked for: beyond the standard deviations of a count."""
    doubt = _CHANCE_SIGMAS / math.sqrt(requests) if requests else 0.0
    return 1.0 - answered_rps / asked_rps > max(1.0 - _ANSWERED_SHARE, doubt)


def piling_up(unanswered: float, inflight: float) -> bool:
    """Whether there are more unanswered requests than a burst leaves."""
    return unanswered > max(_PILE, inflight)


def unsteady(gap: float, chance: float = 0.0) -> bool:
    """Whether a gap |N - rate * L| / N in Little's law is too large for a steady state.

    `chance` is the gap's standard deviation in a steady state; 0 for a whole run, which starts and ends empty.
    """
    return gap > _UNSTEADY_GAP + _CHANCE_SIGMAS * chance


def shows_unanswered(point: Point) -> bool:
    """Whether an open loop shows that the engine could not answer at the rate that was asked for.

    A whole run ends with its last answer, so that its throughput is below its rate however fast the engine is. Such a
    run shows saturation only if its latency grew as in a queue.
    """
    return _falls_short(point) and (_excess_s(point) is None or _queued(point))


def emptied_a_long_queue(point: Point) -> bool:
    """Whether the queue of a whole run lasted long enough that its throughput is the engine's maximum."""
    excess_s = _excess_s(point)
    return excess_s is not None and _queued(point) and excess_s >= _LONG_QUEUE_SHARE * point.mean_latency_s


def _falls_short(point: Point) -> bool:
    asked, answered = point.request_rate_rps, point.answered_rps
    return asked is not None and answered is not None and leaves_unanswered(asked, answered, point.requests)


def _excess_s(point: Point) -> float | None:
    """Seconds by which a whole run outlasts its sending; None for a window, or where requests were not counted.

    A closed loop whose requests all came at once sends for no time at all.
    """
    answered, requests = point.answered_rps, point.requests
    if point.windowed or answered is None or not requests:
        return None
    sending_s = requests / point.request_rate_rps if point.request_rate_rps else 0.0
    return requests / answered - sending_s


def _queued(point: Point) -> bool:
    excess_s = _excess_s(point)
    if excess_s is None:
        return False
    fewest, most = _QUEUE_SHARES
    doubt_s = _CHANCE_SIGMAS * math.sqrt(point.requests or 0.0) / (point.request_rate_rps or math.inf)
    return fewest * point.mean_latency_s <= excess_s <= most * point.mean_latency_s + doubt_s


def reason_against(point: Point) -> Reason | None:
    """Reason for which a fit leaves the point out; None if it does not."""
    for word in point.flags:
        # A word of a newer driver that this version does not know still excludes the point.
        return next((reason for reason in Reason if reason == word), Reason.NOT_STEADY)
    if point.requests is not None and few_requests(point.requests):
        return Reason.POINT_TOO_SHORT
    if point.preemptions:
        return Reason.PREEMPTING
    if _falls_short(point):
        return Reason.SATURATED_POINT if shows_unanswered(point) else Reason.POINT_TOO_SHORT
    if _one_wave(point):
        return Reason.POINT_TOO_SHORT
    return Reason.NOT_STEADY if _contradicts_little(point) else None


def _one_wave(point: Point) -> bool:
    """Whether a whole run replaced its requests in flight too seldom: all prompts come together, and nobody asks again."""
    if point.windowed or point.requests is None:
        return False
    inflight = point.concurrency if point.closed else point.measured_inflight
    if inflight is None:
        inflight = (point.request_rate_rps or 0.0) * point.mean_latency_s
    return few_generations(point.requests, inflight)


def _contradicts_little(point: Point) -> bool:
    if point.windowed:
        # The driver that cut the window knows its edges, and has already allowed for a short window.
        return False
    inflight = point.mean_inflight
    if point.closed and point.concurrency is not None and point.answered_rps is not None:
        # Clients have one request each, so that there are never more in flight than clients.
        passed = point.answered_rps * point.mean_latency_s / point.concurrency
        if unsteady(passed - 1.0):
            return True
    if inflight is None:
        return False
    if point.closed and point.concurrency is not None and unsteady(inflight / point.concurrency - 1.0):
        return True
    rate = point.answered_rps if point.answered_rps is not None else point.request_rate_rps
    return rate is not None and unsteady(float(littles_law_gap(inflight, rate, point.mean_latency_s)))
