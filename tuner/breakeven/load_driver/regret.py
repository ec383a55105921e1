"""Expected loss of the recommended arm against its rivals, per expected load.

    regret(delta, sigma) = sigma*pdf(delta/sigma) - delta*cdf(-delta/sigma)

with delta the rival's ln L less that of the recommended arm and sigma its standard deviation. Rivals are counted one by
one, so the sum over them is an upper bound. A single arm in question is compared with an imagined rival that is known
to be as fast: the hardest case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from breakeven.laws.arrays import FloatArray
from breakeven.load_driver.beliefs import Belief
from breakeven.load_driver.question import Knowledge

_IMAGINED = -1


@dataclass(frozen=True, slots=True, eq=False)
class RivalPairs:
    """The recommended arm against every rival at every expected load, one after the other.

    Attributes:
        ahead: ln L of the rival less that of the recommended arm, shape (pairs,).
        rivals: the rival's index, shape (pairs,).
        loads: the load's index, shape (pairs,).
        rows: derivative of that difference by the coefficients, shape (pairs, coefficients).
    """

    ahead: FloatArray
    rivals: NDArray[np.int64]
    loads: NDArray[np.int64]
    rows: FloatArray


def rival_pairs(state: Knowledge) -> RivalPairs:
    """Every other arm against the fastest one that may be recommended."""
    logs, slopes = log_latencies(state)
    arms, loads = state.in_question, list[int]()
    ahead, rivals, rows = list[float](), list[int](), list[FloatArray]()
    for at in range(len(state.rates)):
        best = min(state.kept(at), key=lambda i: float(logs[i, at]))
        before = len(ahead)
        if len(arms) == 1:
            ahead.append(0.0)
            rivals.append(_IMAGINED)
            rows.append(slopes[best, at])
        for rival in arms:
            if rival != best:
                ahead.append(float(logs[rival, at] - logs[best, at]))
                rivals.append(rival)
                rows.append(slopes[rival, at] - slopes[best, at])
        loads += [at] * (len(ahead) - before)
    return RivalPairs(np.array(ahead), np.array(rivals), np.array(loads), np.stack(rows))


def tellable_regret(state: Knowledge, pairs: RivalPairs) -> float:
    """The regret that points of the arms in question can remove, also by giving a faster arm the law that it lacks."""
    known = [i for i, arm in enumerate(state.belief.arms) if arm in state.question.arms]
    certain = state.belief.given(known)
    told = max(_regret(state, pairs, state.belief) - _regret(state, pairs, certain), 0.0)
    opened = np.zeros(len(state.rates))
    for rival, at, ahead in zip(
        pairs.rivals.tolist(), pairs.loads.tolist(), pairs.ahead.tolist(), strict=True
    ):
        if rival in known and state.trusted(rival, at) and not state.may_recommend(rival, at):
            opened[at] = max(opened[at], -ahead)
    return told + float(opened.mean())


def log_latencies(state: Knowledge) -> tuple[FloatArray, FloatArray]:
    """Ln L of every arm at the expected loads and its derivatives, shapes (arms, loads) and (arms, loads, coefficients)."""
    logs = np.log([[one.latency_s for one in ones] for ones in state.latencies])
    rows = [[state.belief.row(arm, one) for one in ones] for arm, ones in enumerate(state.latencies)]
    return logs, np.array(rows)


def _regret(state: Knowledge, pairs: RivalPairs, belief: Belief) -> float:
    variances = np.einsum("pi,ij,pj->p", pairs.rows, belief.covariance, pairs.rows)
    return float(expected_losses(pairs.ahead, np.sqrt(np.maximum(variances, 0.0))).sum()) / len(state.rates)


def expected_losses(delta: FloatArray, sigma: FloatArray) -> FloatArray:
    """E[max(0, -D)] of normal D with these means and standard deviations."""
    spread = np.maximum(sigma, 1e-12)
    z = delta / spread
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    below = 0.5 * np.array([math.erfc(x) for x in (z / math.sqrt(2.0)).tolist()])
    return np.asarray(np.maximum(spread * density - delta * below, 0.0))
