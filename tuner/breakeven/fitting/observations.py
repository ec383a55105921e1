"""From measured rows to what the law sees: the others in flight, and which rows say nothing about a steady state."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.laws.latency import littles_law_gap, mean_inflight_closed, others_met_at_constant_rate
from breakeven.points.point import FEWEST_GENERATIONS, LoadMode, Point
from breakeven.reasons import Reason

RAMP_SHARE = 0.5
"""rho where no row of the files tells it: measured 0.2 to 0.8 on published closed-loop sweeps."""

UNSTEADY_GAP = 0.10
"""|in-flight - RPS*L| / in-flight above this marks a point as not steady."""

SATURATED_SHARE = 0.85
"""An open loop that answers less than this share of what is asked is beyond saturation."""

_REQUESTS_PER_CLIENT = 10.0


@dataclass(frozen=True, slots=True)
class Observation:
    """A usable row.

    Attributes:
        point: the row.
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
        """Rate that the row proves was carried: in-flight over latency, free of the chance of a count."""
        return self.inflight / self.latency_s

    @property
    def load(self) -> tuple[str, float]:
        """What was imposed: rows with the same load are replicates of each other."""
        imposed = self.point.concurrency if self.point.closed else self.point.request_rate_rps
        return self.point.mode.value, float(imposed or 0.0)


def observe(
    points: Sequence[Point], ramp_share: float
) -> tuple[list[Observation], list[tuple[Point, Reason]]]:
    """Split the rows of one arm into usable observations and exclusions with their reason.

    Args:
        points: rows of one arm.
        ramp_share: rho, from `ramp_share_of` all rows of the files.
    """
    used: list[Observation] = []
    excluded: list[tuple[Point, Reason]] = []
    for point in points:
        observation = _observation(point, ramp_share)
        reason = _reason_against(point)
        if reason is None:
            used.append(observation)
        else:
            excluded.append((point, reason))
    return used, excluded


def ceiling_rps(point: Point, ramp_share: float) -> float | None:
    """The answered rate (1/s) of a row that asked for more than could be answered; None where it does not show that.

    A closed loop that queues shows it, an open loop that leaves requests unanswered too. One that preempts now and then
    does not, nor does a row in which what was in flight was replaced less than `FEWEST_GENERATIONS` times.

    Args:
        point: a row excluded as saturated or preempting.
        ramp_share: rho, from `ramp_share_of`.
    """
    seen = _observation(point, ramp_share)
    if point.requests is not None and point.requests < FEWEST_GENERATIONS * seen.inflight:
        return None
    return seen.rps if point.closed or _leaves_unanswered(point) else None


def ramp_share_of(points: Sequence[Point]) -> float:
    """Learn rho of F = 1 + rho*(C-1)/requests from closed-loop rows that carry their mean in-flight.

    Rows of one sweep ramp and drain alike, so a few rows with in-flight correct the others. Falls back to 0.5.
    """
    found = []
    for point in points:
        inflight = _measured_inflight(point)
        if not (point.closed and point.concurrency and point.requests and inflight):
            continue
        lost = (point.concurrency - 1.0) / point.requests
        # With many requests per client the correction is nothing, and so is what it tells.
        if lost > 0.02:
            found.append((point.concurrency / inflight - 1.0) / lost)
    return min(max(statistics.median(found), 0.0), 1.0) if found else RAMP_SHARE


def _measured_inflight(point: Point) -> float | None:
    if point.mean_inflight is not None:
        return point.mean_inflight
    rps = _answered_rps(point)
    # Little's law over a run that starts and ends empty is exact, ramp and drain included.
    return None if rps is None else rps * point.mean_latency_s


def _answered_rps(point: Point) -> float | None:
    if point.achieved_rps is not None:
        return point.achieved_rps
    if point.tokens_per_second is not None and point.output_tokens:
        return point.tokens_per_second / point.output_tokens
    return None


def _observation(point: Point, ramp_share: float) -> Observation:
    answered, inflight = _answered_rps(point), _measured_inflight(point)
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
    says so. Our own driver's figure is what its requests met, however they arrived.
    """
    tokens, squares = point.output_tokens, point.output_tokens_sq
    if point.mode is not LoadMode.CONSTANT or not tokens or not squares or _by_our_driver(point):
        return inflight
    length_cv = max(squares / tokens**2 - 1.0, 0.0) ** 0.5
    return float(others_met_at_constant_rate(inflight, length_cv))


def _by_our_driver(point: Point) -> bool:
    return "little_residual" in point.extra


_BY_FLAG = {
    "Saturated": Reason.SATURATED_POINT,
    "TooFewRequests": Reason.POINT_TOO_SHORT,
}


def _reason_against(point: Point) -> Reason | None:
    for word in point.flags:
        reason = _BY_FLAG.get(word) or next((r for r in Reason if r == word), None)
        # A word that a newer driver knows and this version does not is still a word against the point.
        return reason or Reason.NOT_STEADY
    if point.preemptions:
        return Reason.PREEMPTING
    if _leaves_unanswered(point):
        return Reason.SATURATED_POINT
    return Reason.NOT_STEADY if _unsteady(point) else None


def _leaves_unanswered(point: Point) -> bool:
    """Whether an open loop answers surely less than was asked for."""
    offered, answered = point.request_rate_rps, _answered_rps(point)
    if offered is None or answered is None or answered >= SATURATED_SHARE * offered:
        return False
    # Few requests make a rate uncertain by 1/sqrt of their number.
    doubt = 2.0 / point.requests**0.5 if point.requests else 0.0
    return 1.0 - answered / offered > doubt


def _unsteady(point: Point) -> bool:
    inflight = point.mean_inflight
    if inflight is None or _by_our_driver(point):
        # Our own driver counts the edges of its window exactly and says NotSteady itself, allowing for short windows.
        return False
    if point.closed and point.concurrency is not None and inflight > (1.0 + UNSTEADY_GAP) * point.concurrency:
        return True
    rate = _answered_rps(point)
    if rate is None:
        rate = point.request_rate_rps
    if rate is None:
        return False
    return bool(littles_law_gap(inflight, rate, point.mean_latency_s) > UNSTEADY_GAP)
