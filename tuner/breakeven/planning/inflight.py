"""Number of requests that an arm holds in flight at a load, for any latency curve.

By Little's law requests in flight are request-seconds per second, per replica. Rates near and beyond saturation have a
number too: there a queue grows for as long as such a load is taken to last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.planning.surprise import LASTS_S
from breakeven.profile.curves import Curve

_KNOTS = 48
FULL = 0.97
"""Share of saturation up to which the law's number in flight is reached while a load lasts; beyond it a queue grows."""


@dataclass(frozen=True, slots=True, eq=False)
class InflightTable:
    """An arm's latency among others, tabulated once for the conditions of a service, at K numbers of others ascending from 0.

    Attributes:
        alone_share: share of C1 in that latency; shape (K,).
        saturation_rps: rate beyond which there is no steady state (1/s).
    """

    others: FloatArray
    latency_s: FloatArray
    alone_share: FloatArray
    saturation_rps: float

    def parts_s(self, others: float) -> tuple[float, float]:
        """Latency (s) among others in flight: of a lone request, and the part that the others add."""
        alone_s = float(np.interp(others, self.others, self.latency_s * self.alone_share))
        latency_s = float(np.interp(others, self.others, self.latency_s))
        # A table that is constant beyond its end would make an engine with a long queue look slower than it is.
        beyond = max(others - float(self.others[-1]), 0.0) / self.saturation_rps
        return alone_s, latency_s + beyond - alone_s

    def saturations(self, factors: FloatArray) -> FloatArray:
        """Rates (1/s) beyond which there is no steady state, for drawn factors on C1 and C2: shape (M, 2) to (M,)."""
        return np.asarray(self.saturation_rps / factors[:, 1])

    def at(self, rps: FloatArray, factors: FloatArray, lasts_s: float = LASTS_S) -> FloatArray:
        """Requests in flight per replica: `in_flight` of this arm alone, factors of shape (M, 2) to (M, X)."""
        return np.asarray(in_flight([self], rps, factors[:, None, :], lasts_s)[0])


def in_flight(
    tables: Sequence[InflightTable], rps: FloatArray, factors: FloatArray, lasts_s: float = LASTS_S
) -> FloatArray:
    """Requests in flight per replica on each of A arms, in M draws; shape (A, M, X), finite at every one of X rates (1/s).

    Factors on C1 and C2 have shape (M, A, 2). While a load near or beyond saturation lasts, a queue grows.
    """
    alone, each = np.moveaxis(factors, 2, 0).swapaxes(1, 2)[..., None]
    others, latency_s, share = (
        np.stack([getattr(one, name) for one in tables])[:, None, :]
        for name in ("others", "latency_s", "alone_share")
    )
    rates = others / (latency_s * (alone * share + each * (1.0 - share)))
    # Beyond it a queue grows.
    full = (
        FULL * np.stack([one.saturations(factors[:, place]) for place, one in enumerate(tables)])[..., None]
    )
    asked = np.minimum(rps, full)
    # All draws in one look-up, each shifted beyond the one before it: one look-up per draw takes five times as long.
    shift = (
        np.arange(full.size).reshape(full.shape)
        * 2.0
        * (float(rates.max()) + float(asked.max(initial=0.0)) + 1.0)
    )
    held = np.interp(
        (asked + shift).ravel(), (rates + shift).ravel(), np.broadcast_to(others, rates.shape).ravel()
    )
    held = held.reshape(asked.shape)
    return np.asarray(held + np.maximum(rps - full, 0.0) * (lasts_s / 2.0) if lasts_s else held)


def table(curve: Curve) -> InflightTable:
    """Tabulate a curve from a lone request to well beyond where its rate has reached saturation."""
    line, saturation_rps = curve.line, curve.saturation_rps
    most = 2.0 * line.c1_s / line.c2_s / (1.0 - FULL)
    others = np.concatenate([[0.0], np.geomspace(most * 1e-5, most, _KNOTS)])
    return InflightTable(
        others,
        curve.met_latencies(others),
        np.asarray(line.c1_s / (line.c1_s + line.c2_s * others)),
        saturation_rps,
    )
