"""Requests that wait because more arrive than can leave: capacity against rate, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from breakeven.laws.arrays import FloatArray

_LEAST_DRAIN = 0.02
"""Share of capacity by which a queue shrinks at the least; a mean load beyond capacity is not treated here."""


@dataclass(frozen=True, slots=True, eq=False)
class FluidQueue:
    """Requests that wait now, per replica, and request-seconds that all requests together have waited so far; shape (M,) each."""

    length: FloatArray
    waited: FloatArray

    @classmethod
    def empty(cls, like: FloatArray) -> FluidQueue:
        """An empty queue of the shape of an array."""
        return cls(np.zeros_like(like), np.zeros_like(like))

    def grow(self, surplus_rps: FloatArray, during_s: float) -> FluidQueue:
        """The queue after a time at a surplus of arrivals over departures, which may be negative; never shorter than 0."""
        ends = np.maximum(self.length + surplus_rps * during_s, 0.0)
        # If the queue empties within the time, only the triangle until then has waited.
        with np.errstate(divide="ignore", invalid="ignore"):
            until = np.where(surplus_rps < 0.0, np.minimum(-self.length / surplus_rps, during_s), during_s)
        return FluidQueue(ends, self.waited + (self.length + ends) / 2.0 * until)

    def drained(self, carried_rps: FloatArray, rate_rps: FloatArray | float) -> FloatArray:
        """Request-seconds waited until the queue is empty."""
        shrinks = np.maximum(carried_rps - rate_rps, _LEAST_DRAIN * carried_rps)
        return np.asarray(self.waited + self.length**2 / (2.0 * shrinks))


@dataclass(frozen=True, slots=True, eq=False)
class Outflow:
    """Rate at which requests leave a replica with n in flight: carries_rps * n / (n + half); shape (..., M).

    This is the law's own rate. A fluid that leaves at full rate has no queue at capacity: no speculation would take no time
    there, and every other arm infinitely longer.
    """

    carries_rps: FloatArray
    half: FloatArray

    def of(self, place: int) -> Outflow:
        """One arm of several."""
        return Outflow(self.carries_rps[place], self.half[place])

    def after(
        self, inflight: FloatArray, rps: FloatArray, during_s: float, steps: int
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
        empty = FluidQueue(np.maximum(waiting, 0.0), np.zeros_like(waiting))
        return empty.drained(self.carries_rps, rps)


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
    last = FluidQueue(length[..., -1], length.sum(axis=-1) * every_s)
    return np.asarray(last.drained(carried[..., -1], rates_rps.mean(axis=-1)).mean(axis=-1))
