"""How many requests an arm holds in flight at a load, whatever its latency curve looks like.

By Little's law requests in flight are request-seconds per second: what the requests of a fleet wait, per replica. Rates
near and beyond saturation have an answer too: there a queue grows for as long as such a load is taken to last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.profile.curves import Curve

_KNOTS = 48
_FULL = 0.97
"""Share of saturation up to which the law's number in flight is reached while such a load lasts."""
_LASTS_S = 3600.0
"""How long a load beyond that is taken to last (s)."""


@dataclass(frozen=True, slots=True, eq=False)
class InflightTable:
    """An arm's latency among others, tabulated once for the conditions of a service.

    Attributes:
        others: mean number of others in flight, ascending from 0; shape (K,).
        latency_s: mean latency among them (s); shape (K,).
        alone_share: share of C1 in that latency; shape (K,).
        saturation_rps: rate beyond which there is no steady state (1/s).
    """

    others: FloatArray
    latency_s: FloatArray
    alone_share: FloatArray
    saturation_rps: float

    def saturations(self, factors: FloatArray) -> FloatArray:
        """Rates (1/s) beyond which there is no steady state, for drawn factors on C1 and C2: shape (M, 2) to (M,)."""
        return np.asarray(self.saturation_rps / factors[:, 1])

    def at(self, rps: FloatArray, factors: FloatArray, lasts_s: float = _LASTS_S) -> FloatArray:
        """Requests in flight per replica.

        Args:
            rps: rates per replica (1/s), shape (X,).
            factors: on C1 and C2, shape (M, 2).
            lasts_s: how long a load near or beyond saturation lasts (s): for so long a queue grows.

        Returns:
            Shape (M, X); finite at every rate.
        """
        alone, each = factors[:, :1], factors[:, 1:]
        latency_s = self.latency_s * (alone * self.alone_share + each * (1.0 - self.alone_share))
        carried = self.others / latency_s
        full = _FULL * self.saturations(factors)
        held = np.stack(
            [
                np.interp(np.minimum(rps, most), rates, self.others)
                for rates, most in zip(carried, full, strict=True)
            ]
        )
        return np.asarray(held + np.maximum(rps - full[:, None], 0.0) * lasts_s / 2.0)


def table(curve: Curve) -> InflightTable:
    """Tabulate a curve from a lone request to well beyond where its rate has reached saturation."""
    law, saturation_rps = curve.law, curve.saturation_rps
    most = 2.0 * float(law.c1) / float(law.c2) / (1.0 - _FULL)
    others = np.concatenate([[0.0], np.geomspace(most * 1e-5, most, _KNOTS)])
    return InflightTable(
        others,
        curve.latencies_among(others),
        np.asarray(float(law.c1) / (float(law.c1) + float(law.c2) * others)),
        saturation_rps,
    )
