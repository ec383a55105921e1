"""Speedup of the arm in place by the profile's laws as live latency has corrected them, with the remaining doubt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.estimate import Estimate
from breakeven.laws.arrays import FloatArray
from breakeven.planning.expected_saving import FittedLaw
from breakeven.planning.inflight import FULL
from breakeven.planning.learned_laws import Evidence, learned

_LEAST_RPS = 1e-9
"""Rate below which a request is alone: the numbers in flight of a smaller one are 0, and have no ratio."""


def known_speedup(
    laws: Sequence[FittedLaw],
    evidence: Mapping[Arm, Evidence],
    arm: Arm,
    rps: float,
    now_s: float,
    confidence: float,
) -> Estimate | None:
    """The speedup at a rate (1/s per replica) by the laws that decisions rest on; None if there is none: saturated, idle, or no such law.

    `laws` are of no speculation, the arm and all others that have evidence; `now_s` is on the clock of the evidence.
    """
    arms = [law.prior.arm for law in laws]
    if arm == NO_SPECULATION or arm not in arms or NO_SPECULATION not in arms or not rps > 0.0:
        return None
    known = learned([law.prior for law in laws], evidence, now_s)
    likely = np.exp(known.mean).reshape(1, -1, 2)
    places = [arms.index(one) for one in (NO_SPECULATION, arm)]
    if any(rps > FULL * float(laws[i].table.saturations(likely[:, i])[0]) for i in places):
        return None

    def logarithm(factors: FloatArray) -> FloatArray:
        # At equal rates the ratio of latencies is that of requests in flight.
        none, other = (
            np.log(laws[i].table.at(np.array([max(rps, _LEAST_RPS)]), factors[:, i], 0.0)[:, 0])
            for i in places
        )
        return np.asarray(none - other)

    value = float(logarithm(likely)[0])
    half = NormalDist().inv_cdf(0.5 + confidence / 2.0) * float(logarithm(known.draws()).std())
    return Estimate(math.exp(value), math.exp(value - half), math.exp(value + half))
