"""The worst hour that a day may bring, on every arm, and the bound on its cost.

An overload cannot be undone once it has come. An arm of 3 % less saturation than no speculation makes a day with an hour
at capacity 1.4 times as long, one of 8 % less 1.7 times. A roll in its middle costs as much. An arm that halves the time
of every other request loses an eighth at 4 % less. So the loss of a day is bounded by not running such an arm: the day is
calculated as usual, with one hour at each load that may come.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.planning.fluid_queue import Outflow
from breakeven.planning.surprise import LASTS_S, worth_avoiding

_DAY_S = 86400.0
_WORST = (0.9, 0.95, 1.0, 1.1)
"""Shares of what no speculation carries at which an hour costs most on another arm; beyond them both have queues."""
_BEYOND = 1.2
"""Share by which a load that varies may exceed its largest hour; published weeks of requests reached 1.4 times theirs."""
_MOVES = 0.5
"""Share by which the largest hour of such a load exceeds its mean; one that never exceeded it by a tenth does not double."""
_LEAST = 1e-12


def credible_rps(largest_rps: float, mean_rps: float, known_days: float) -> float:
    """Largest rate (1/s per replica) that a day may bring; any rate while less than a day is known."""
    if known_days < 1.0 or not mean_rps:
        return np.inf
    moves = min(max(largest_rps / mean_rps - 1.0, 0.0) / _MOVES, 1.0)
    return largest_rps * (1.0 + _BEYOND * moves)


@dataclass(frozen=True, slots=True, eq=False)
class Day:
    """A day of a service on each of A arms, in M draws.

    Attributes:
        arms: outflow of each.
        usual: in flight on average; shape (A, M).
        mean_rps: rate on average (1/s per replica).
        none: the place of no speculation among the arms.
    """

    arms: Outflow
    usual: FloatArray
    mean_rps: float
    none: int

    def worth_avoiding(self, credible_rps: FloatArray, share: float, slack: FloatArray) -> FloatArray:
        """Worth of not risking the worst hour on each arm (request-seconds a day); shape (A,).

        Args:
            credible_rps: largest rate that the day may bring (1/s); shape (A,).
            share: of the day's request time without speculation, by which it may take longer.
            slack: factors on what may be lost; shape (A,).
        """
        safe = self.arms.carries_rps[self.none]
        rps = np.minimum(np.multiply.outer(_WORST, np.ones_like(self.usual)) * safe, credible_rps[:, None])
        hours = self._hour(self.arms, self.usual, rps)
        without = self._hour(self.arms.of(self.none), self.usual[self.none], rps)
        usual, rest_s = self.usual.mean(axis=-1), _DAY_S - LASTS_S
        costs = np.maximum((hours - without).mean(axis=-1), 0.0)
        days = without.mean(axis=-1) + usual[self.none] * rest_s
        spared = (usual[self.none] - usual) * rest_s
        budgets = np.maximum(slack * (share * days + spared), _LEAST)
        return np.asarray(worth_avoiding(costs, budgets).max(axis=0))

    def _hour(self, arms: Outflow, usual: FloatArray, rps: FloatArray) -> FloatArray:
        held, taken = arms.after(usual, rps, LASTS_S, 12)
        return taken + arms.drained(held - usual, self.mean_rps)
