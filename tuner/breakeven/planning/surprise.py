"""Cost of a jump of the load on an arm that carries less than another one.

No forecast shows the first jump. Ten minutes beyond the capacity of an arm that has a third less than no speculation make a
long queue. No speculation, close to its own limit, works it off for hours. It takes more request-seconds than speculation
has saved in a week. That
cost is known beforehand, and so are the savings so far. An arm is worth its risk if the savings pay for the cost, and if
its gain is worth the chance.

The model is a fluid: capacity against rate, nothing else. It is exact where it matters, far beyond saturation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.planning.decision_memory import DAY_S, RARE_DAYS

_LEAST_DRAIN = 0.02
"""Share of capacity by which a queue shrinks at the least; a mean load beyond capacity is not treated here."""


Queue = tuple[FloatArray, FloatArray]
"""Requests that wait now, per replica, and request-seconds that all requests together have waited so far; shape (M,) each."""


def grown(queue: Queue, surplus_rps: FloatArray, during_s: float) -> Queue:
    """The queue after a time at a surplus of arrivals over departures, which may be negative; never shorter than 0."""
    length, waited = queue
    ends = np.maximum(length + surplus_rps * during_s, 0.0)
    # If the queue empties within the time, only the triangle until then has waited.
    with np.errstate(divide="ignore", invalid="ignore"):
        until = np.where(surplus_rps < 0.0, np.minimum(-length / surplus_rps, during_s), during_s)
    return ends, waited + (length + ends) / 2.0 * until


def drained(queue: Queue, carried_rps: FloatArray, rate_rps: FloatArray | float) -> FloatArray:
    """Request-seconds waited until the queue is empty."""
    length, waited = queue
    shrinks = np.maximum(carried_rps - rate_rps, _LEAST_DRAIN * carried_rps)
    return np.asarray(waited + length**2 / (2.0 * shrinks))


@dataclass(frozen=True, slots=True, eq=False)
class Outflow:
    """Rate at which requests leave a replica with n in flight: carries_rps * n / (n + half); shape (..., M).

    This is the law's own rate. A fluid that leaves at full rate has no queue at capacity: no speculation would take no time
    there, and every other arm infinitely longer.
    """

    carries_rps: FloatArray
    half: FloatArray

    def after(
        self, inflight: FloatArray, rps: FloatArray, during_s: FloatArray | float, steps: int
    ) -> tuple[FloatArray, FloatArray]:
        """Number in flight after some time at a rate (1/s), and the request-seconds that it took; by implicit steps."""
        step_s, taken = during_s / steps, np.zeros(())
        for _ in range(steps):
            come = inflight + step_s * rps
            less = self.half + step_s * self.carries_rps - come
            then = (np.sqrt(less * less + 4.0 * come * self.half) - less) / 2.0
            taken = taken + (inflight + then) * (step_s / 2.0)
            inflight = then
        return inflight, taken

    def drained(self, waiting: FloatArray, rps: FloatArray | float) -> FloatArray:
        """Request-seconds until no request waits any more."""
        return drained((np.maximum(waiting, 0.0), np.zeros_like(waiting)), self.carries_rps, rps)


def waited_along(
    rates_rps: FloatArray, carried_rps: FloatArray, every_s: float, before: FloatArray | float = 0.0
) -> FloatArray:
    """Request-seconds that wait along paths of the rate and until the last queue is gone, on average over the paths.

    Rates (1/s) have shape (paths, times), and capacities (1/s), per draw and time, (..., times), or (..., 1) if they never change.
    `before` are requests that wait at the start; broadcasts with (...).
    """
    waiting = np.asarray(before, dtype=float)[..., None, None]
    if float(rates_rps.max()) <= float(carried_rps.min()) and not waiting.any():
        return np.zeros(carried_rps.shape[:-1])
    carried = carried_rps[..., None, :]
    come = np.cumsum((rates_rps - carried) * every_s, axis=-1)
    # A queue is never negative: it holds the surplus since the moment at which the cumulated surplus was lowest.
    length = np.maximum(waiting + come, come - np.minimum.accumulate(come, axis=-1))
    last = length[..., -1], length.sum(axis=-1) * every_s
    return np.asarray(drained(last, carried[..., -1], rates_rps.mean(axis=-1)).mean(axis=-1))


LASTS_S = 3600.0
"""Time (s) for which a jump is taken to last."""
_MOST_USED = 0.99
_LEAST = 1e-12
_WORST = np.array([(0.9, 4.0), (0.95, 4.0), (1.0, 4.0), (1.1, 4.0), (1.6, 1.0 / 3.0)]) * (1.0, LASTS_S)
"""Overloads that cost most on an arm that carries less: share of what no speculation carries, and time (s).

What is lost grows with the time near capacity, and a storm is over before a roll is."""
_STEPS = 8
_BEYOND = 1.2
"""Share by which a load that varies may exceed its largest hour; published weeks of requests reached 1.4 times theirs."""
_MOVES = 0.5
"""Share by which the largest hour of such a load exceeds its mean; one that never exceeded it by a tenth does not double."""


def waited_in_jump(
    rps: FloatArray | float,
    after_rps: float,
    on_rps: FloatArray,
    safe_rps: FloatArray,
    roll: tuple[float, float, float],
) -> FloatArray:
    """Request-seconds in queues of an unexpected load, per replica: on staying, or on a roll to the safe arm, whichever is less.

    Rates (1/s per replica) while it lasts broadcast with the draws. Capacities (1/s) of the arm in place and of the safe arm have
    shape (..., M). A roll takes some time (s), during which a share of the replicas is away, and begins when the load has been
    noticed (s).
    """
    roll_s, away_share, noticed_s = roll
    empty = np.zeros_like(on_rps), np.zeros_like(on_rps)
    stay, leave = grown(empty, rps - on_rps, LASTS_S), grown(empty, rps - on_rps, noticed_s)
    leave = grown(leave, rps - (1.0 - away_share) * (on_rps + safe_rps) / 2.0, roll_s)
    leave = grown(leave, rps - safe_rps, max(LASTS_S - noticed_s - roll_s, 0.0))
    return np.minimum(drained(stay, on_rps, after_rps), drained(leave, safe_rps, after_rps))


def worth_avoiding(costs: FloatArray, account: FloatArray) -> FloatArray:
    """Worth of avoiding costs (request-seconds) that a day brings with a chance of one in `RARE_DAYS`; shape (A,).

    The account of request-seconds must not be lost, so a loss counts by the logarithm of the account that is left (Kelly). A small
    cost counts by its expectation; a cost that takes all of the account outweighs every gain.
    """
    used = costs / account
    # Near the end of the account the logarithm is continued by its tangent.
    lost = -np.log1p(-np.minimum(used, _MOST_USED)) + np.maximum(used - _MOST_USED, 0.0) / (1.0 - _MOST_USED)
    return np.asarray(account * lost / RARE_DAYS)


# The worst hours that a day may bring, on every arm, and the bound on their cost.
#
# No forecast shows the first overload. An arm of 3 % less saturation than no speculation makes a day with an hour at capacity 1.4
# times as long, one of 8 % less 1.7 times. A roll in its middle costs as much if it takes replicas away, and little if new ones
# come first. So the loss of a day is bounded by not running an arm that can neither stay nor be left: the day is calculated as
# usual, with some hours at each load that may come.


def credible_rps(largest_rps: float, mean_rps: float, known_days: float) -> float:
    """Largest rate (1/s per replica) that a day may bring; any rate while less than a day is known."""
    if known_days < 1.0 or not mean_rps:
        return np.inf
    moves = min(max(largest_rps / mean_rps - 1.0, 0.0) / _MOVES, 1.0)
    return largest_rps * (1.0 + _BEYOND * moves)


@dataclass(frozen=True, slots=True, eq=False)
class Day:
    """A day of a service on each of A arms, in M draws.

    In flight on average are `usual`, shape (A, M), at the mean rate (1/s per replica); `none` is the place of no speculation, and
    `roll` a roll to it as in `waited_in_jump`.
    """

    arms: Outflow
    usual: FloatArray
    none: int
    mean_rps: float
    roll: tuple[float, float, float]

    def worth_avoiding(self, credible_rps: FloatArray, share: float, slack: FloatArray) -> FloatArray:
        """Worth of not risking the worst hours on each arm (request-seconds a day); shape (A,).

        The day may bring at most `credible_rps` (1/s), shape (A,), and take longer by a share of its request time without
        speculation, times `slack`, shape (A,).
        """
        shares, lasts_s = _WORST.T[:, :, None, None]
        rps = np.minimum(shares * self.arms.carries_rps[self.none], credible_rps[:, None])
        stay, leave, without = self._taken(rps, lasts_s)
        hours = np.minimum(stay, leave)
        usual, rest_s = self.usual.mean(axis=-1), DAY_S - lasts_s[..., 0]
        costs = np.maximum((hours - without).mean(axis=-1), 0.0)
        days = without.mean(axis=-1) + usual[self.none] * rest_s
        spared = (usual[self.none] - usual) * rest_s
        budgets = np.maximum(slack * (share * days + spared), _LEAST)
        return np.asarray(worth_avoiding(costs, budgets).max(axis=0))

    def _taken(self, rps: FloatArray, lasts_s: FloatArray) -> FloatArray:
        """Request-seconds at a rate (1/s), which lasts for a time (s), and until no more are in flight than usual.

        On each arm, on the way from it to no speculation, and without it all the time: all by the same steps, so that their errors are alike.
        """
        (roll_s, away_share, noticed_s), own = self.roll, np.stack([self.arms.carries_rps, self.arms.half])
        none = np.broadcast_to(own[:, self.none, None], own.shape)
        rolling = (1.0 - away_share) * (own + none) / 2.0
        without = np.broadcast_to(self.usual[self.none], self.usual.shape)
        held = usual = np.stack([self.usual, self.usual, without])[:, None]
        courses = (own, own, none), (own, rolling, none), (own, none, none)
        ends_s = [noticed_s, noticed_s + roll_s, np.inf]
        whole, begins_s, law = np.zeros(()), np.zeros(()), self.arms
        for laws, at_s in zip(courses, ends_s, strict=True):
            law, until_s = Outflow(*np.stack(laws, axis=1)[:, :, None]), np.minimum(lasts_s, at_s)
            held, taken = law.after(held, rps, until_s - begins_s, _STEPS)
            whole, begins_s = whole + taken, until_s
        return whole + law.drained(held - usual, self.mean_rps)
