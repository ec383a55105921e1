"""Arms on which requests failed or engines crashed: they are not entered again before something about them has changed."""

from __future__ import annotations

from datetime import datetime

from breakeven.arm import NO_SPECULATION, Arm
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.target import Refusal
from breakeven_operator.resources.memorystatus import BarredArm, MemoryStatus

_MOST = 8
_WORDS = {str(reason): reason for reason in ClusterReason}


def barred(
    memory: MemoryStatus, arm: str, reason: ClusterReason, message: str, profile: str | None, now: datetime
) -> MemoryStatus:
    """The memory with one more arm that is not to be entered; no speculation never is one."""
    if arm in {"", NO_SPECULATION.name}:
        return memory
    others = tuple(one for one in memory.barred if one.arm != arm)
    one = BarredArm(arm=arm, reason=str(reason), message=message[:1024], profile=profile, since_time=now)
    return memory.replace(barred=(one, *others)[:_MOST])


def acquitted(memory: MemoryStatus, arm: str) -> MemoryStatus:
    """The memory without the bar of an arm on which requests failed that fail on every arm."""
    kept = tuple(
        one for one in memory.barred if one.arm != arm or one.reason != ClusterReason.ROLL_FAILS_REQUESTS
    )
    return memory.replace(barred=kept)


def still_barred(memory: MemoryStatus, profile: str | None) -> MemoryStatus:
    """The memory without arms that were barred under another profile: that one is of another image, model or set of candidates."""
    kept = tuple(one for one in memory.barred if profile is None or one.profile in {None, profile})
    return memory if kept == memory.barred else memory.replace(barred=kept)


def refuse_barred(memory: MemoryStatus, wanted: Arm) -> Refusal | None:
    """Why an arm is not entered; None: it may be.

    An engine that fails requests because it speculates does so with every drafter and draft length.
    """
    if wanted == NO_SPECULATION:
        return None
    for one in memory.barred:
        if one.arm == wanted.name or one.reason == ClusterReason.ROLL_FAILS_REQUESTS:
            return Refusal(
                _WORDS.get(one.reason, ClusterReason.ROLL_BLOCKED),
                f"{one.arm} was left at {one.since_time:%Y-%m-%d %H:%M} UTC: {one.message}; it is not entered again until a new "
                "profile is in force, or the annotation breakeven.dev/resume of the SpeculativeService gets a new value",
            )
    return None
