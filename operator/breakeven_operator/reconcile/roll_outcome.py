"""The word for a roll, from a measured speedup and the promise for the same load."""

from __future__ import annotations

import math
from typing import NamedTuple

from breakeven.estimate import Estimate
from breakeven.planning.roll_experiment import MeasuredSpeedup, SpeedupBounds
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.rolloutstatus import HistoryResult

# Requests that waited through the roll are worked off in two windows, and a third window measures.
JUDGED_WINDOWS = 3
GIVE_UP_WINDOWS = 6
CONFIDENCE = 0.95
# Of looks in every cycle: one roll in a hundred that loses nothing may be undone.
_CONFIDENCE_OF_ALL_LOOKS = 0.98
# An arm is no worse than another if its bounds exclude a greater loss than this share. Bounds that hold 1 and a greater loss prove nothing:
# they hold 1 for many arms that lose a tenth.
_NO_LOSS = 0.05
# Logarithm of what cold pods may gain from which it is said.
_MATTERS = 0.02


class Outcome(NamedTuple):
    """How a roll has ended, what is said beside the figures, and the bounds that it rests on."""

    result: HistoryResult
    reason: ClusterReason
    bounds: SpeedupBounds
    remark: str = ""


def outcome(measured: MeasuredSpeedup, promise: Estimate, windows: float) -> Outcome | None:
    """The word, or None while it is too early for one.

    A loss that is sure by bounds that hold at all looks together is said at any time. Everything else is said once, when
    three windows have passed since the roll finished. Bounds that hold a gain and a loss are waited for: after six
    windows they are said to prove nothing.

    Args:
        measured: so far.
        promise: for the load of the measurement.
        windows: since all pods ran the new arm; below 0 before.
    """
    bar = _bar(promise)
    at_any_look = measured.always_valid(_CONFIDENCE_OF_ALL_LOOKS)
    if at_any_look.upper < bar:
        return Outcome(HistoryResult.DISPROVED, ClusterReason.ROLL_DISPROVED, at_any_look)
    if windows < JUDGED_WINDOWS:
        return None
    bounds = measured.bounds(CONFIDENCE)
    if bounds.lower > 1.0:
        if promise.lower is not None and bounds.upper < promise.lower:
            remark = "; it gains, and significantly less than was promised"
            return Outcome(HistoryResult.NOT_WORSE, ClusterReason.ROLL_NOT_WORSE, bounds, remark)
        return Outcome(HistoryResult.CONFIRMED, ClusterReason.ROLL_CONFIRMED, bounds)
    if bounds.upper < bar:
        return Outcome(HistoryResult.DISPROVED, ClusterReason.ROLL_DISPROVED, bounds)
    if bounds.upper < 1.0:
        remark = "; no gain was promised at this load, and the loads for which one was promised have not come"
        return Outcome(HistoryResult.UNMEASURED, ClusterReason.ROLL_UNPROVEN, bounds, remark)
    if bounds.lower >= 1.0 - _NO_LOSS:
        return Outcome(HistoryResult.NOT_WORSE, ClusterReason.ROLL_NOT_WORSE, bounds)
    if windows < GIVE_UP_WINDOWS:
        return None
    return Outcome(HistoryResult.UNPROVEN, ClusterReason.ROLL_UNPROVEN, bounds, _still_cold(measured))


def _bar(promise: Estimate) -> float:
    """The speedup that a roll must not fall short of significantly: 1, or the lower end of the promise if that is below 1.

    An arm that is entered for a peak may lose until then, as far as that was promised.
    """
    least = promise.value if promise.lower is None else promise.lower
    return 1.0 if least is None else min(1.0, least)


def _still_cold(measured: MeasuredSpeedup) -> str:
    """Which pods may not be warm yet, as the end of a sentence; empty if none matters."""
    if measured.new_cold > _MATTERS:
        return f"; its new pods may gain up to {100.0 * math.expm1(measured.new_cold):.0f} % more once their prefix caches are filled"
    if measured.old_cold > _MATTERS:
        return "; the other arm's pods had begun shortly before, and their prefix caches may have been empty"
    return ""
