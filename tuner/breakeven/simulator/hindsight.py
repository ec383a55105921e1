"""The best sequence of arms for a load that is known beforehand, with and without paying for rolls.

Dynamic programming over windows: the cost of a window is the time that its requests spend, the cost of a change the
time that they spend more while replicas start up in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from breakeven.arm import Arm
from breakeven.simulator.fleet import waves
from breakeven.simulator.stepping import PiecewiseLaw
from breakeven.simulator.traces import RateTrace

_Floats = NDArray[np.float64]


def best_sequence(
    trace: RateTrace, arms: Sequence[Arm], law: Callable[[Arm], PiecewiseLaw], replicas: int, roll_s: float
) -> list[tuple[float, Arm]]:
    """Arms and the moments (s) from which they should run, the first at 0.

    Args:
        trace: rates of the fleet.
        arms: to choose from.
        law: of an arm.
        replicas: of the fleet.
        roll_s: start-up time of a replica; 0: changes are free.
    """
    laws = [law(arm) for arm in arms]
    full = _spent_s(trace, laws, float(replicas))
    turns = waves(replicas)
    fewer = _spent_s(trace, laws, replicas - replicas / turns if replicas > 1 else 1.0)
    steps, share = _roll_windows(trace, turns * roll_s)
    count, last = len(arms), len(trace) - 1
    total = full[0].copy()
    came_from = np.zeros((len(trace), count), np.int64)
    came_from[0] = np.arange(count)
    for w in range(1, last + 1):
        # Half of the roll is spent on the old arm, half on the new one, all of it with replicas away.
        span = slice(w, min(w + steps, last + 1)) if steps else slice(w, w)
        short, normal = fewer[span].sum(axis=0), full[span].sum(axis=0)
        change = share * ((short[:, None] + short[None, :]) / 2 - normal[None, :])
        np.fill_diagonal(change, 0.0)
        through = total[:, None] + change
        came_from[w] = through.argmin(axis=0)
        total = through.min(axis=0) + full[w]
    chosen = [int(total.argmin())]
    for w in range(last, 0, -1):
        chosen.append(int(came_from[w][chosen[-1]]))
    chosen.reverse()
    changes = [w for w in range(len(chosen)) if w == 0 or chosen[w] != chosen[w - 1]]
    return [(float(trace.start_s[w]), arms[chosen[w]]) for w in changes]


def _spent_s(trace: RateTrace, laws: Sequence[PiecewiseLaw], serving: float) -> _Floats:
    """Seconds that all requests of each window spend under each arm, shape (windows, arms)."""
    rates = (trace.rate_rps / serving).tolist()
    spent = np.empty((len(trace), len(laws)))
    for place, law in enumerate(laws):
        capacity = 1.0 / law.c2_s
        for w, (rps, length_s) in enumerate(zip(rates, trace.length_s.tolist(), strict=True)):
            # A queue that grows through the whole window: half of what it grows to is met on average. Close to
            # saturation the law's rest is not reached within one window either.
            most = law.mean_s(max(rps - capacity, 0.02 * rps) * length_s / 2)
            spent[w, place] = min(law.at_rps(rps), most) if rps > 0 else 0.0
    return np.asarray(spent * (trace.rate_rps * trace.length_s)[:, None])


def _roll_windows(trace: RateTrace, roll_s: float) -> tuple[int, float]:
    """Windows that a whole roll touches, and the share of their time that it takes."""
    windows = roll_s / float(np.median(trace.length_s))
    touched = int(np.ceil(windows))
    return touched, windows / touched if touched else 0.0
