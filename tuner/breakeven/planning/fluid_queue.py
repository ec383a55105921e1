"""Requests that wait where more come than can leave: capacity against rate, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from breakeven.laws.arrays import FloatArray

_LEAST_DRAIN = 0.02
"""Share of capacity by which a queue shrinks at the least; a mean load beyond capacity is another subject."""


@dataclass(frozen=True, slots=True, eq=False)
class FluidQueue:
    """Requests that wait, per replica, in M draws.

    Attributes:
        length: how many wait now; shape (M,).
        waited: what they and those before them have waited together (request-seconds); shape (M,).
    """

    length: FloatArray
    waited: FloatArray

    @classmethod
    def empty(cls, like: FloatArray) -> FluidQueue:
        """Nobody waits; of the shape of an array."""
        return cls(np.zeros_like(like), np.zeros_like(like))

    def grow(self, surplus_rps: FloatArray, during_s: float) -> FluidQueue:
        """What comes more than can leave, or less: a queue ends at nothing."""
        ends = np.maximum(self.length + surplus_rps * during_s, 0.0)
        # Where the queue empties within the time, only the triangle until then has waited.
        with np.errstate(divide="ignore", invalid="ignore"):
            until = np.where(surplus_rps < 0.0, np.minimum(-self.length / surplus_rps, during_s), during_s)
        return FluidQueue(ends, self.waited + (self.length + ends) / 2.0 * until)

    def drained(self, carried_rps: FloatArray, rate_rps: FloatArray | float) -> FloatArray:
        """All that waits until nothing is left."""
        shrinks = np.maximum(carried_rps - rate_rps, _LEAST_DRAIN * carried_rps)
        return np.asarray(self.waited + self.length**2 / (2.0 * shrinks))


def waited_along(
    rates_rps: FloatArray, carried_rps: FloatArray, every_s: float, before: FloatArray | float = 0.0
) -> FloatArray:
    """Request-seconds that wait along paths of the rate and until the last queue is gone, on average over the paths.

    Args:
        rates_rps: along each of P paths, T times each (1/s); shape (P, T).
        carried_rps: what leaves at most (1/s), per draw and time; shape (..., T), or (..., 1) where it never changes.
        every_s: between two times (s).
        before: how many wait at the start; broadcasts with (...).
    """
    waiting = np.asarray(before, dtype=float)[..., None, None]
    if float(rates_rps.max()) <= float(carried_rps.min()) and not waiting.any():
        return np.zeros(carried_rps.shape[:-1])
    carried = carried_rps[..., None, :]
    come = np.cumsum((rates_rps - carried) * every_s, axis=-1)
    # A queue that is never less than nothing: what came since the moment at which least had come.
    length = np.maximum(waiting + come, come - np.minimum.accumulate(come, axis=-1))
    last = FluidQueue(length[..., -1], length.sum(axis=-1) * every_s)
    return np.asarray(last.drained(carried[..., -1], rates_rps.mean(axis=-1)).mean(axis=-1))
