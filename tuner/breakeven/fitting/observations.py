"""From measured rows to what the law sees: the others in flight, and which rows show no steady state."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from breakeven.laws.latency import mean_inflight_closed, others_met_at_constant_rate
from breakeven.points.point import LoadMode, Point
from breakeven.points.quality import emptied_a_long_queue, few_generations, reason_against, shows_unanswered
from breakeven.reasons import Reason

SAME_OUTPUT, SAME_PROMPT = 0.10, 0.25
"""Lengths that differ by less than this share are the same. A workload draws its prompts; a second prompt length that was
measured on purpose is far from the first."""

RAMP_SHARE = 0.5
"""rho if no row of the files determines it: measured 0.2 to 0.8 on published closed-loop sweeps."""

_REQUESTS_PER_CLIENT = 10.0

_MORE_CLIENTS, _NO_MORE = 1.4, 1.10
"""Clients of a row over the clients of another one, and answers per second likewise, where more clients get no more answers."""
_WAITED_SHARE = 0.5
"""Share of a request until its first token beyond which the request waits rather than decodes."""


class LeftOut(NamedTuple):
    """A row that the fit does not use, and why."""

    point: Point
    reason: Reason


@dataclass(frozen=True, slots=True)
class Observation:
    """A usable row.

    Attributes:
        point: the row; its latencies may have been carried to the arm's mean acceptance.
        others: mean number of others that a request met, n.
        inflight: mean number in flight.
        rps: answered requests per second.
        assumed: whether the in-flight of a short closed-loop run was corrected by an assumed ramp and drain.
    """

    point: Point
    others: float
    inflight: float
    rps: float
    assumed: bool = False

    @property
    def latency_s(self) -> float:
        """Mean end-to-end latency."""
        return self.point.mean_latency_s

    @property
    def carried_rps(self) -> float:
        """Rate that was carried: in-flight over latency, without the scatter of a count."""
        return self.inflight / self.latency_s


def observe(points: Sequence[Point], ramp_share: float) -> tuple[list[Observation], list[LeftOut]]:
    """Split the rows of one arm into usable observations, and exclusions with their reason."""
    used: list[Observation] = []
    excluded: list[LeftOut] = []
    for point in points:
        observation = _observation(point, ramp_share)
        reason = reason_against(point)
        if reason is None:
            used.append(observation)
        else:
            excluded.append(LeftOut(point, reason))
    queued = [one for one in used if any(_waits_beyond(one, fewer) for fewer in used)]
    excluded += [LeftOut(one.point, Reason.SATURATED_POINT) for one in queued]
    return [one for one in used if one not in queued], excluded


def _waits_beyond(row: Observation, fewer: Observation) -> bool:
    """Whether clients of a closed loop only wait for a place in the batch, by a row of fewer clients.

    The driver measures the queue. Of other tools' rows two figures together show it: more clients get no more answers, and
    most of a request is the time to its first token. A rate alone also stands still where verifying drafts becomes dear.
    """
    point, other = row.point, fewer.point
    if point.windowed or point.schedule or point.ttft_mean_s is None or not (point.closed and other.closed):
        return False
    if not (_alike(point, other) and row.others + 1.0 >= _MORE_CLIENTS * (fewer.others + 1.0)):
        return False
    return row.rps < _NO_MORE * fewer.rps and point.ttft_mean_s > _WAITED_SHARE * row.latency_s


def _alike(point: Point, other: Point) -> bool:
    pairs = (
        (point.output_tokens, other.output_tokens, SAME_OUTPUT),
        (point.prompt_tokens, other.prompt_tokens, SAME_PROMPT),
    )
    return all(not a or not b or abs(a - b) <= within * b for a, b, within in pairs)


def ceiling_rps(point: Point, ramp_share: float) -> float | None:
    """The answered rate (1/s) of a saturated or preempting row that asked for more than could be answered; None where it does not show that.

    A closed loop that queues shows it, an open loop that leaves requests unanswered too. One that preempts now and then
    does not, nor does a row in which what was in flight was replaced less than `quality.FEWEST_GENERATIONS` times: unless
    the run emptied a long queue, whose requests are in flight until its end.
    """
    seen = _observation(point, ramp_share)
    if emptied_a_long_queue(point):
        return seen.rps
    if point.requests is not None and few_generations(point.requests, seen.inflight):
        return None
    return seen.rps if point.closed or shows_unanswered(point) else None


def ramp_share_of(points: Sequence[Point]) -> float:
    """Learn rho of F = 1 + rho*(C-1)/requests from closed-loop rows that carry their mean in-flight.

    Rows of one sweep ramp and drain in the same way, so a few rows with in-flight correct the others. Falls back to 0.5.
    """
    found = []
    for point in points:
        inflight = point.measured_inflight
        if not (point.closed and point.concurrency and point.requests and inflight):
            continue
        lost = (point.concurrency - 1.0) / point.requests
        # With many requests per client the correction is nothing, and so is what it tells.
        if lost > 0.02:
            found.append((point.concurrency / inflight - 1.0) / lost)
    return min(max(statistics.median(found), 0.0), 1.0) if found else RAMP_SHARE


def _observation(point: Point, ramp_share: float) -> Observation:
    answered, inflight = point.answered_rps, point.measured_inflight
    assumed = False
    if not point.closed:
        rate = answered if answered is not None else float(point.request_rate_rps or 0.0)
        inflight = inflight if inflight is not None else rate * point.mean_latency_s
        return Observation(point, _met_in_open_loop(point, inflight), inflight, rate)
    clients = float(point.concurrency or 1.0)
    if inflight is None:
        inflight = clients
        if point.requests:
            inflight = float(mean_inflight_closed(clients, max(point.requests, 1.0), ramp_share))
            assumed = clients > 1 and point.requests < _REQUESTS_PER_CLIENT * clients
    # A client between two requests is not in flight, which a lone client's in-flight just below 1 shows.
    inflight = min(inflight, clients)
    others = max(inflight - 1.0, 0.0)
    # Little's law. Clients come in waves: answers counted in a short window are one wave or two.
    return Observation(point, others, inflight, inflight / point.mean_latency_s, assumed)


def _met_in_open_loop(point: Point, inflight: float) -> float:
    """Others that an arrival meets: with Poisson arrivals the time average, at a constant rate up to one less.

    How much less depends on the spread of the lengths; where that is not known the row counts as Poisson, and a warning
    says so. A windowed point holds what its requests met already, however they arrived.
    """
    tokens, squares = point.output_tokens, point.output_tokens_sq
    if point.load_mode is not LoadMode.CONSTANT or not tokens or not squares or point.windowed:
        return inflight
    length_cv = max(squares / tokens**2 - 1.0, 0.0) ** 0.5
    return float(others_met_at_constant_rate(inflight, length_cv))
