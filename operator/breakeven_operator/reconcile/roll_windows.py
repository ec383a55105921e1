"""Time since a roll, in windows of figures."""

from __future__ import annotations

from breakeven_operator.reconcile.first_wave import is_held, is_late
from breakeven_operator.reconcile.roll_outcome import JUDGED_WINDOWS
from breakeven_operator.reconcile.steps import RolloutContext
from breakeven_operator.resources.rolloutstatus import Rollout

# Requests that waited through the roll are worked off in so many windows.
_SETTLED_WINDOWS = 2


def windows_since(context: RolloutContext, rollout: Rollout, window_s: float) -> float:
    """Windows since all pods ran the new arm, or all of a first wave that is held; below 0 before."""
    since = rollout.wave_time if is_held(context) else rollout.finished_time
    if since is None:
        return -1.0
    return (context.now - since).total_seconds() / window_s


def is_last_look(context: RolloutContext, windows: float) -> bool:
    """Whether bounds of one look count. A first wave is looked at in every cycle for hours, until its deadline."""
    return is_late(context) if is_held(context) else windows >= JUDGED_WINDOWS


def settled(context: RolloutContext, window_s: float) -> bool:
    """Whether a window's mean latency belongs to its load: not while it holds what a roll has left behind."""
    rollout = context.rollout
    if rollout is None:
        return True
    if rollout.finished_time is None:
        return False
    return windows_since(context, rollout, window_s) > _SETTLED_WINDOWS
