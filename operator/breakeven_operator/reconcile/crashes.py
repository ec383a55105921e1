"""Engines of the running arm that crash again and again after it was entered."""

from __future__ import annotations

from datetime import datetime

from breakeven_operator.reconcile.deployment import Deployment

_FEWEST = 3
_RECENT_S = 3600.0
# Crashes per hour of a pod; what ends once a month is not worth a roll.
_OFTEN_PER_HOUR = 0.25


def crashing(deployment: Deployment, now: datetime) -> str | None:
    """The evidence that the arm's engines crash, as a sentence; None if there is none.

    One pod of several that crashes tells of its node or its GPU, not of the arm.
    """
    pods = [pod for pod in deployment.pods if pod.current and not pod.terminating]
    crashed = [pod for pod in pods if pod.crashes and pod.crashed is not None]
    count, last = (
        sum(pod.crashes for pod in crashed),
        max((pod.crashed for pod in crashed if pod.crashed), default=None),
    )
    if last is None or count < _FEWEST or (now - last).total_seconds() > _RECENT_S:
        return None
    if len(crashed) < min(2, len(pods)):
        return None
    hours = sum((now - pod.created).total_seconds() for pod in crashed if pod.created is not None) / 3600.0
    if count < _OFTEN_PER_HOUR * hours:
        return None
    return (
        f"engines of {len(crashed)} of {len(pods)} pods crashed {count} times since they were made, the last time at "
        f"{last:%Y-%m-%d %H:%M:%S} UTC ({crashed[0].name}: kubectl logs --previous)"
    )
