"""Arms that are not entered: requests failed on them, engines crashed, or their answers are not those of no speculation."""

from __future__ import annotations

from datetime import datetime

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.target import Refusal
from breakeven_operator.resources.calibrationspec import AnswerCheck
from breakeven_operator.resources.memorystatus import BarredArm, MemoryStatus

_MOST = 8
_WORDS = {str(reason): reason for reason in ClusterReason}
_ABOUT_ANSWERS = {
    str(reason): reason for reason in (Reason.ANSWERS_AGREE, Reason.ANSWERS_DIFFER, Reason.ANSWERS_BROKEN)
}


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
                _WORDS.get(one.reason, ClusterReason.ARM_CRASHES),
                f"{one.arm} was left at {one.since_time:%Y-%m-%d %H:%M} UTC: {one.message}; it is not entered again until a new "
                "profile is in force, or the annotation breakeven.dev/resume of the SpeculativeService gets a new value",
            )
    return None


def refuse_answers(check: AnswerCheck, profile: Profile | None, wanted: Arm) -> Refusal | None:
    """Why an arm is not entered for its answers; None: it may be.

    Absence of evidence is not agreement: with Require an arm whose answers were not compared is not entered either.
    """
    if check is not AnswerCheck.REQUIRE or wanted == NO_SPECULATION or profile is None:
        return None
    found = profile.arm(wanted).answers if profile.measured(wanted) else None
    word = _ABOUT_ANSWERS.get(found or "", Reason.ANSWERS_UNDECIDED)
    if word is Reason.ANSWERS_AGREE:
        return None
    said = (
        word.meaning
        if found is not None
        else "the profile in force says nothing about the answers of this arm"
    )
    return Refusal(
        word,
        f"calibration.answers.check is Require, and {said[0].lower()}{said[1:].rstrip('.')}; a new calibration compares them again",
    )
