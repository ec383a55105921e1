"""The fleet's places for rolls: whether a service takes one."""

from __future__ import annotations

from datetime import datetime, timedelta

from breakeven_operator.refused_writes import RefusedWrites, of_annotation
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.rolloutstatus import RolloutPhase

# A roll that is past its deadline is undone in the next cycle, which sets a new one.
_LATE = timedelta(seconds=60)
_MOVING = frozenset({RolloutPhase.INTENDED, RolloutPhase.ROLLING, RolloutPhase.UNDOING})


def takes_a_place(service: SpeculativeService, failures: RefusedWrites, now: datetime) -> bool:
    """Whether a service's pods are being replaced; not while the API server refuses the write that would do it.

    A target that is gone or refused, or that is paused, keeps its phase; the other services wait no longer than
    until its deadline.
    """
    rollout = service.status.rollout
    if rollout is None or rollout.phase not in _MOVING:
        return False
    if rollout.deadline_time is not None and now - _LATE > rollout.deadline_time:
        return False
    return of_annotation(failures.about(service.metadata.uid, now), now) is None
