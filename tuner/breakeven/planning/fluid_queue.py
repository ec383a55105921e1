"""Requests that wait where more come than can leave: capacity against rate, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from breakeven.laws.arrays import FloatArray

_LEAST_DRAIN = 0.02
"""Share of capacity by which a queue shrinks at the least; a mean load beyond capacity is another subject."""


_MISSING = 0.25
"""Share of a queue of which fewer are in flight where it does not stand: the arm carries more than its law says."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Requests that wait, per replica, by what came and what laws carry: latency has no say in it.

    A rule that looked at the latency of a window would leave out the windows that contradict a law.

    Attributes:
        here: on the arm in place.
        without: on no speculation, had it run all along.
        stood_s: when one last stood here (s); None: never.
    """

    here: float = 0.0
    without: float = 0.0
    stood_s: float | None = None

    def after(self, rps: float, carries_rps: tuple[float, float], during_s: float, now_s: float) -> Backlog:
        """The same at the end of a time.

        Args:
            rps: what came (1/s).
            carries_rps: what the arm in place carries, and no speculation (1/s).
            during_s: how long (s).
            now_s: its end (s).
        """
        here, without = (
            max(before + (rps - carried) * during_s, 0.0)
            for before, carried in zip((self.here, self.without), carries_rps, strict=True)
        )
        return Backlog(here, without, now_s if here > 0.0 else self.stood_s)

    def seen(self, inflight: float | None) -> Backlog:
        """The same without queues if the one here does not stand."""
        gone = inflight is not None and inflight < _MISSING * self.here
        return Backlog() if gone else self

    def teaches(self, window_s: float, now_s: float) -> bool:
        """Whether a window met no queue: one that stood before it is worked off within it."""
        return not self.here and (self.stood_s is None or not 0.0 <= now_s - self.stood_s <= window_s)


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


@dataclass(frozen=True, slots=True, eq=False)
class Outflow:
    """How many requests leave a replica, by how many are in flight: carries_rps * n / (n + half).

    The law's own flow. A fluid that leaves at full rate has no queue at capacity: no speculation would take no time there,
    and every other arm infinitely longer.

    Attributes:
        carries_rps: rate that no number in flight exceeds (1/s); shape (..., M).
        half: number in flight at which half of that leaves; shape (..., M).
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
        """Request-seconds until nobody waits any more."""
        empty = FluidQueue(np.maximum(waiting, 0.0), np.zeros_like(waiting))
        return empty.drained(self.carries_rps, rps)


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
