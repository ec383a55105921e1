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
from breakeven.planning.decision_memory import RARE_DAYS
from breakeven.planning.fluid_queue import FluidQueue

LASTS_S = 3600.0
"""Time (s) for which a jump is taken to last."""
_MOST_USED = 0.99


@dataclass(frozen=True, slots=True)
class Jump:
    """An unexpected load: rates (1/s per replica) while it lasts, which broadcasts with the draws, and when it is over.

    During a roll, which begins when the load has been noticed (s), a share of the replicas is away.
    """

    rps: FloatArray | float
    after_rps: float
    roll_s: float
    away_share: float
    noticed_s: float = 300.0

    def waited(self, on_rps: FloatArray, safe_rps: FloatArray) -> FloatArray:
        """Request-seconds in queues, per replica: on staying, or on a roll to the safe arm, whichever is less.

        Capacities (1/s) of the arm in place and of the safe arm have shape (..., M).
        """
        stay = FluidQueue.empty(on_rps).grow(self.rps - on_rps, LASTS_S)
        leave = FluidQueue.empty(on_rps).grow(self.rps - on_rps, self.noticed_s)
        rolling_rps = (1.0 - self.away_share) * (on_rps + safe_rps) / 2.0
        leave = leave.grow(self.rps - rolling_rps, self.roll_s)
        leave = leave.grow(self.rps - safe_rps, max(LASTS_S - self.noticed_s - self.roll_s, 0.0))
        return np.minimum(stay.drained(on_rps, self.after_rps), leave.drained(safe_rps, self.after_rps))


def worth_avoiding(costs: FloatArray, account: FloatArray) -> FloatArray:
    """Worth of avoiding costs (request-seconds) that a day brings with a chance of one in `RARE_DAYS`; shape (A,).

    The account of request-seconds must not be lost, so a loss counts by the logarithm of the account that is left (Kelly). A small
    cost counts by its expectation; a cost that takes all of the account outweighs every gain.
    """
    used = costs / account
    # Near the end of the account the logarithm is continued by its tangent.
    lost = -np.log1p(-np.minimum(used, _MOST_USED)) + np.maximum(used - _MOST_USED, 0.0) / (1.0 - _MOST_USED)
    return np.asarray(account * lost / RARE_DAYS)
