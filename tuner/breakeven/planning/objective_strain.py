"""Strain: the ratio of an arm's figures to their limits, so that objectives are part of its cost.

Request time at a load that misses an objective counts several times. An arm that keeps an objective that another one
misses is then worth entering although it is slower. If both miss it, the faster one is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from breakeven.arm import Arm
from breakeven.laws.arrays import FloatArray
from breakeven.planning.objective import Slo
from breakeven.profile import Bounds, LoadPoint, Profile
from breakeven.profile.curves import Curve

_MISSED_COUNTS = 10.0
"""Factor on request time if an objective is missed: an objective outweighs any speedup of speculation."""
_KNOTS = 12


@dataclass(frozen=True, slots=True, eq=False)
class ObjectiveStrain:
    """The worst ratio of a figure to its limit, against others in flight.

    Attributes:
        others: mean number of others in flight, ascending from 0; shape (K,).
        ratio: above 1 an objective is missed; shape (K,).
        alone_share: share of C1 in the latency there; shape (K,).
    """

    others: FloatArray
    ratio: FloatArray
    alone_share: FloatArray

    def weights(self, inflight: FloatArray, factors: FloatArray, tails: FloatArray) -> FloatArray:
        """Weight of a request in flight.

        Args:
            inflight: mean number in flight, drawn at several loads; shape (M, X).
            factors: on C1 and C2, shape (M, 2).
            tails: factor on the ratio (`tail_factor` of the arm in place), shape (M, 1).
        """
        return np.where(tails * self.at(inflight, factors) > 1.0, _MISSED_COUNTS, 1.0)

    def at(self, inflight: FloatArray, factors: FloatArray) -> FloatArray:
        """The ratio by laws with these factors, as learned from mean latency; shapes as in `weights`."""
        ratio = np.interp(inflight, self.others, self.ratio)
        alone = np.interp(inflight, self.others, self.alone_share)
        return np.asarray(ratio * (factors[:, :1] * alone + factors[:, 1:] * (1.0 - alone)))


def tail_factor(expected: FloatArray, measured: Bounds | None) -> FloatArray:
    """Factor that brings a predicted ratio within the bounds of the measured one.

    It is as near to 1 as these bounds allow: a prediction within them stays. Long answers and bursts stretch the tail
    whichever arm runs, so the factor holds for all arms; an error of one arm alone shows in its mean.

    Args:
        expected: the ratio of the arm in place at its load, above 0.
        measured: bounds of the measured ratio; an upper one of None is open. None: nothing was measured.
    """
    if measured is None:
        return np.ones_like(expected)
    lower, upper = measured
    within = np.clip(expected, lower, np.inf if upper is None else upper)
    return np.asarray(np.divide(within, expected, out=np.ones_like(expected), where=expected > 0.0))


def objective_strain(profile: Profile, arm: Arm, curve: Curve, slo: Slo) -> ObjectiveStrain:
    """The strain tabulated from a lone request to close to saturation; a figure that was never measured does not count."""
    line = curve.line
    most = 20.0 * line.c1_s / line.c2_s
    others = np.concatenate([[0.0], np.geomspace(most * 1e-3, most, _KNOTS - 1)])
    worst = [
        slo.worst_ratio(profile.predict_along(arm, curve, LoadPoint(others=float(n)), quantile=slo.quantile))
        for n in others
    ]
    return ObjectiveStrain(
        others,
        np.array(worst),
        np.asarray(line.c1_s / (line.c1_s + line.c2_s * others)),
    )
