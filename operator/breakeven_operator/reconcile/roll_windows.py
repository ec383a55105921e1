"""Time since a roll, in windows of figures."""

from __future__ import annotations

from breakeven_operator.reconcile.steps import RolloutContext
from breakeven_operator.resources.rolloutstatus import Rollout

# Requests that waited through the roll are worked off in so many windows.
_SETTLED_WINDOWS = 2


def windows_since(context: RolloutContext, rollout: Rollout, window_s: float) -> float:
    """Windows since all pods ran the new arm; below 0 before."""
    if rollout.finished_time is None:
        return -1.0
    return (context.now - rollout.finished_time).total_seconds() / window_s


def settled(context: RolloutContext, window_s: float) -> bool:
    """Whether a window's mean latency belongs to its load: not while it holds what a roll has left behind."""
    rollout = context.rollout
    return rollout is None or windows_since(context, rollout, window_s) > _SETTLED_WINDOWS
