r"""A change of arm from its intent to its end: written down first, watched, undone when it does not come up.

    Intended -> Rolling -> Confirming -> (ended)
                       \-> Undoing -> (ended)

The phase is in the service's status before the target is written, so that an operator that starts anew finds its own
unfinished work and neither repeats nor forgets it. Everything here is a pure function of status, target and time.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.reasons import Reason
from breakeven_operator.plan import WriteAnnotation
from breakeven_operator.reasons import ClusterReason
from breakeven_operator.reconcile.arms import same_value
from breakeven_operator.reconcile.workload import Workload
from breakeven_operator.resources.servicestatus import (
    HistoryEntry,
    HistoryResult,
    MemoryStatus,
    Rollout,
    RolloutPhase,
)
from breakeven_operator.resources.updatepolicy import UpdatePolicy

# Without any measured start of this engine: long enough for a large model from a cold disk.
_UNKNOWN_STARTUP_S = 1800.0
_SLACK_S = 60.0
_MAX_BACKOFF_FACTOR = 16
# The new pods' container died or cannot be made: waiting longer changes nothing.
_HOPELESS = frozenset(
    {"CrashLoopBackOff", "CreateContainerConfigError", "InvalidImageName", "RunContainerError"}
)


@dataclass(frozen=True, slots=True)
class Event:
    """What to say on the service's events."""

    reason: Reason | ClusterReason
    message: str
    warning: bool = False
    throttled: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What a cycle makes of a change of arm.

    Attributes:
        rollout: for the status; None when none is under way.
        memory: for the status.
        ended: changes that ended in this cycle, for the history.
        write: the annotation to write after the status.
        events: to emit.
        reason, message: what is going on; None when nothing is.
        busy: no new change may begin.
    """

    rollout: Rollout | None
    memory: MemoryStatus
    ended: tuple[HistoryEntry, ...] = ()
    write: WriteAnnotation | None = None
    events: tuple[Event, ...] = ()
    reason: ClusterReason | None = None
    message: str = ""
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """Figures a change of arm was decided on; latency ratio of the old arm over the new one."""

    speedup: float | None = None
    lower: float | None = None
    upper: float | None = None
    load_rps: float | None = None
    latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """What a change of arm is judged by.

    Attributes:
        may_write: mode RollingUpdate and not paused: without it a change is watched and nothing is written.
        startup_s: longest known start of this engine, s; None when never seen.
    """

    policy: UpdatePolicy
    workload: Workload
    memory: MemoryStatus
    rollout: Rollout | None
    may_write: bool
    startup_s: float | None
    now: datetime = field(kw_only=True)


def begin(
    situation: Situation,
    from_arm: Arm,
    to_arm: Arm,
    value: str,
    reason: str,
    prediction: Prediction,
    uid: str,
) -> Step:
    """Start a change of arm.

    Args:
        situation: with nothing under way but, at most, the confirmation of an earlier change.
        from_arm: what runs.
        to_arm: what shall run.
        value: the annotation's new value.
        reason: reason word of the decision.
        prediction: what the decision expects.
        uid: of the service; makes the change's id its own.
    """
    now, workload = situation.now, situation.workload
    seed = f"{uid}/{workload.ref.uid}/{workload.generation}/{now.isoformat()}/{value}"
    rollout = Rollout(
        id=hashlib.sha256(seed.encode()).hexdigest()[:8],
        from_arm=from_arm.name,
        to_arm=to_arm.name,
        reason=reason,
        phase=RolloutPhase.INTENDED,
        value=value,
        previous_value=workload.value,
        started_time=now,
        deadline_time=now + timedelta(seconds=deadline_s(situation)),
        predicted_speedup=prediction.speedup,
        predicted_speedup_lower=prediction.lower,
        predicted_speedup_upper=prediction.upper,
        load_rps=prediction.load_rps,
        latency_before_seconds=prediction.latency_s,
    )
    earlier = (
        (_end(situation, HistoryResult.UNCONFIRMED, "another change began first"),)
        if situation.rollout
        else ()
    )
    message = f"{from_arm} -> {to_arm} ({reason})" + _predicted(prediction)
    return Step(
        rollout=rollout,
        memory=situation.memory.model_copy(
            update={
                "written_value": value,
                "last_switch_time": now,
                "restores": 0,
                "running_arm": to_arm.name,
            }
        ),
        ended=earlier,
        write=WriteAnnotation(workload.ref, value, force=situation.memory.force_next),
        events=(Event(ClusterReason.ROLL_STARTED, message),),
        reason=ClusterReason.ROLL_STARTED,
        message=message,
        busy=True,
    )


def watch(situation: Situation) -> Step:
    """Go on with what is under way; look for changes of the annotation by others."""
    if situation.rollout is None or situation.rollout.phase is RolloutPhase.CONFIRMING:
        return _check_ownership(situation)
    match situation.rollout.phase:
        case RolloutPhase.INTENDED:
            return _intended(situation, situation.rollout)
        case RolloutPhase.ROLLING:
            return _rolling(situation, situation.rollout)
        case _:
            return _undoing(situation, situation.rollout)


def forget_target(situation: Situation) -> Step:
    """The target was deleted and made anew: what was written to the old one, or was on its way, is gone with it.

    Nothing is restored on the new one: its pods have just started, and the next change is decided and gated like a
    first one.
    """
    message = "the target was deleted and made anew"
    ended = (_end(situation, HistoryResult.SUPERSEDED, message),) if situation.rollout else ()
    return Step(rollout=None, memory=situation.memory.model_copy(update={"written_value": None}), ended=ended)


def taken_over(
    situation: Situation, manager: str, seen: str, reason: ClusterReason = ClusterReason.TAKEN_OVER
) -> Step:
    """Somebody else owns the annotation: hold until a person hands it back."""
    ended = (
        (_end(situation, HistoryResult.SUPERSEDED, f"{manager} took the annotation over"),)
        if situation.rollout
        else ()
    )
    message = (
        f"{manager} {seen}; nothing is written until spec.paused is set and unset again, or the annotation "
        "breakeven.dev/resume gets a new value"
    )
    return Step(
        rollout=None,
        memory=situation.memory.model_copy(update={"taken_over_by": manager[:128], "pause_seen": False}),
        ended=ended,
        events=(Event(reason, message, warning=True),),
        reason=reason,
        message=message,
        busy=True,
    )


def hand_back(situation: Situation, resume: str, *, paused: bool) -> Step | None:
    """Whether a person handed the annotation back; that alone writes and restarts nothing.

    None: nobody holds it. Otherwise a step that is busy while somebody still does.
    """
    memory = situation.memory
    holder = memory.taken_over_by
    if holder is None:
        # A token that was set before anything was taken over must not count later.
        changed = memory.resume != (resume or None)
        return (
            Step(situation.rollout, memory.model_copy(update={"resume": resume or None})) if changed else None
        )
    asked = bool(resume) and resume != memory.resume
    if not asked and not (memory.pause_seen and not paused):
        return Step(
            rollout=None,
            memory=memory.model_copy(update={"pause_seen": memory.pause_seen or paused}),
            reason=(
                ClusterReason.REVERTED_TWICE
                if memory.restores >= _MOST_RESTORES
                else ClusterReason.TAKEN_OVER
            ),
            message=f"{holder} changed the annotation last; hand it back by setting and unsetting spec.paused, or by a new "
            "value of the annotation breakeven.dev/resume",
            busy=True,
        )
    return Step(
        rollout=None,
        memory=memory.model_copy(
            update={
                "taken_over_by": None,
                "pause_seen": False,
                "resume": resume or None,
                "restores": 0,
                "written_value": situation.workload.value,
                # Applying the value that stands there would only share its ownership: the next *change* must be forced.
                "force_next": True,
            }
        ),
        events=(Event(ClusterReason.RESUMED, f"taken back from {holder}"),),
        reason=ClusterReason.RESUMED,
        message=f"taken back from {holder}; the next change takes the annotation over",
        busy=True,
    )


def undo(situation: Situation, rollout: Rollout, reason: ClusterReason, why: str) -> Step:
    """Go back to the arm that ran before, and wait longer before the next change."""
    memory = situation.memory
    failures = memory.failures + 1
    pause_s = situation.policy.backoff_seconds * min(2 ** (failures - 1), _MAX_BACKOFF_FACTOR)
    value = rollout.previous_value
    message = f"{rollout.from_arm} -> {rollout.to_arm} undone: {why}; next change in {pause_s:.0f} s at the earliest"
    if not situation.may_write:
        return Step(
            rollout,
            memory,
            reason=reason,
            message=f"{why}; nothing is undone while paused or in mode Recommend",
            busy=True,
        )
    return Step(
        rollout=rollout.model_copy(
            update={
                "phase": RolloutPhase.UNDOING,
                "reason": str(reason),
                "deadline_time": situation.now + timedelta(seconds=deadline_s(situation)),
            }
        ),
        memory=memory.model_copy(
            update={
                "failures": failures,
                "backoff_until_time": situation.now + timedelta(seconds=pause_s),
                "written_value": value,
                "running_arm": rollout.from_arm,
            }
        ),
        write=WriteAnnotation(situation.workload.ref, value),
        events=(Event(ClusterReason.ROLL_UNDONE, message, warning=True),),
        reason=reason,
        message=message,
        busy=True,
    )


def end(situation: Situation, result: HistoryResult, message: str, measured_speedup: float | None) -> Step:
    """Finish the confirmation of a change."""
    confirmed = result is HistoryResult.CONFIRMED
    return Step(
        rollout=None,
        memory=situation.memory.model_copy(update={"failures": 0, "backoff_until_time": None})
        if confirmed
        else situation.memory,
        ended=(_end(situation, result, message, measured_speedup),),
        events=(
            Event(ClusterReason.ROLL_CONFIRMED if confirmed else ClusterReason.ROLL_UNCONFIRMED, message),
        ),
    )


def deadline_s(situation: Situation) -> float:
    """How long a roll may take: as the user says, else from measured start-ups, batches and draining."""
    if situation.policy.roll_deadline_seconds is not None:
        return float(situation.policy.roll_deadline_seconds)
    workload = situation.workload
    startup_s = situation.startup_s if situation.startup_s is not None else _UNKNOWN_STARTUP_S
    return roll_batches(workload) * (2 * startup_s + workload.grace_s) + _SLACK_S


def roll_batches(workload: Workload) -> int:
    """How many times in a row new pods start during a roll."""
    return max(1, math.ceil(workload.desired / max(1, workload.max_surge + workload.max_unavailable)))


def _intended(situation: Situation, rollout: Rollout) -> Step:
    workload = situation.workload
    if same_value(workload.value, rollout.value) and workload.value is not None:
        rolling = rollout.model_copy(
            update={"phase": RolloutPhase.ROLLING, "target_generation": workload.generation}
        )
        owned = situation.memory.model_copy(update={"force_next": False})
        return _rolling(replace(situation, memory=owned), rolling)
    if not _untouched(workload.value, rollout.previous_value):
        return _foreign(situation)
    if not situation.may_write or _past(rollout.deadline_time, situation.now):
        why = (
            "its deadline passed before it was written"
            if situation.may_write
            else "paused, or the mode changed, before it was written"
        )
        return Step(
            rollout=None,
            memory=situation.memory.model_copy(update={"written_value": rollout.previous_value}),
            ended=(_end(situation, HistoryResult.SUPERSEDED, why),),
        )
    return Step(
        rollout,
        situation.memory,
        write=WriteAnnotation(workload.ref, rollout.value or "null", force=situation.memory.force_next),
        reason=ClusterReason.ROLL_STARTED,
        message=f"{rollout.from_arm} -> {rollout.to_arm} is to be written",
        busy=True,
    )


def _rolling(situation: Situation, rollout: Rollout) -> Step:
    workload, now = situation.workload, situation.now
    if not same_value(workload.value, rollout.value) or workload.value is None:
        return _foreign(situation)
    if workload.settled:
        message = f"{rollout.from_arm} -> {rollout.to_arm}: {workload.desired} pods run it"
        return Step(
            rollout=rollout.model_copy(
                update={
                    "phase": RolloutPhase.CONFIRMING,
                    "finished_time": now,
                    "unschedulable_since_time": None,
                }
            ),
            memory=situation.memory.model_copy(update={"last_switch_time": now}),
            events=(Event(ClusterReason.ROLL_FINISHED, message),),
            reason=ClusterReason.ROLL_FINISHED,
            message=message,
        )
    waiting = [pod.unschedulable_since for pod in workload.pods if pod.current and pod.unschedulable_since]
    since = min(waiting, default=None)
    if since is not None and (now - since).total_seconds() > situation.policy.unschedulable_deadline_seconds:
        return undo(
            situation,
            rollout,
            ClusterReason.INSUFFICIENT_GPU,
            f"a new pod has found no GPU for {(now - since).total_seconds():.0f} s",
        )
    hopeless = next((pod for pod in workload.pods if pod.current and pod.trouble in _HOPELESS), None)
    if hopeless is not None:
        return undo(
            situation,
            rollout,
            ClusterReason.ENGINE_NOT_STARTING,
            f"pod {hopeless.name} does not start ({hopeless.trouble})",
        )
    if _past(rollout.deadline_time, now):
        took = (now - rollout.started_time).total_seconds() if rollout.started_time else 0.0
        return undo(
            situation,
            rollout,
            ClusterReason.ROLL_DEADLINE_EXCEEDED,
            f"{workload.updated} of {workload.desired} pods run it after {took:.0f} s",
        )
    message = (
        f"{rollout.from_arm} -> {rollout.to_arm}: {len(workload.serving)} of {workload.desired} pods run it"
    )
    return Step(
        rollout.model_copy(update={"unschedulable_since_time": since}),
        situation.memory,
        reason=ClusterReason.ROLLING,
        message=message,
        busy=True,
    )


def _undoing(situation: Situation, rollout: Rollout) -> Step:
    workload = situation.workload
    value = rollout.previous_value
    if not _untouched(workload.value, value):
        if not same_value(workload.value, rollout.value):
            return _foreign(situation)
        write = WriteAnnotation(workload.ref, value) if situation.may_write else None
        return Step(
            rollout,
            situation.memory,
            write=write,
            reason=ClusterReason.ROLLING_BACK,
            message=f"going back to {rollout.from_arm}",
            busy=True,
        )
    if workload.settled:
        message = f"{rollout.from_arm} runs again; {rollout.to_arm} did not come up ({rollout.reason})"
        return Step(
            rollout=None,
            memory=situation.memory.model_copy(update={"last_switch_time": situation.now}),
            ended=(_end(situation, HistoryResult.UNDONE, message),),
            events=(Event(ClusterReason.ROLLED_BACK, message),),
        )
    late = " (past its deadline: a person should look)" if _past(rollout.deadline_time, situation.now) else ""
    return Step(
        rollout,
        situation.memory,
        reason=ClusterReason.ROLLING_BACK,
        message=f"going back to {rollout.from_arm}: {len(workload.serving)} of {workload.desired} pods run it{late}",
        busy=True,
    )


def _check_ownership(situation: Situation) -> Step:
    """Whether the annotation still says what was last written."""
    workload, memory = situation.workload, situation.memory
    unchanged = Step(situation.rollout, memory)
    if memory.written_value is None or same_value(workload.value, memory.written_value):
        return unchanged
    if not situation.may_write:
        # Nothing would be written anyway: what a person sets in Recommend, Disabled or while paused is the running arm.
        return Step(situation.rollout, memory.model_copy(update={"written_value": workload.value}))
    return _foreign(situation)


# A person who removes the key means it; who replaces the whole object with a manifest from elsewhere usually does not.
_MEANT_IT = ("kubectl-edit", "kubectl-patch", "kubectl-annotate", "kubectl-rollout", "kubectl")
_MOST_RESTORES = 2


def _foreign(situation: Situation) -> Step:
    """The annotation is not what was last written, nor what a change of ours is going to or coming from."""
    workload, memory = situation.workload, situation.memory
    if workload.value is not None:
        managers = ", ".join(m for m in workload.value_managers if m != "breakeven") or "another writer"
        return taken_over(situation, managers, "changed the annotation")
    writer = workload.last_writer or "another writer"
    if writer in _MEANT_IT:
        return taken_over(situation, writer, "removed the annotation")
    if memory.restores >= _MOST_RESTORES:
        return taken_over(
            situation,
            writer,
            f"dropped the annotation again after it was restored {memory.restores} times (kubectl replace, Replace=true?)",
            ClusterReason.REVERTED_TWICE,
        )
    if not situation.may_write:
        return Step(situation.rollout, memory)
    value = (situation.rollout.value if situation.rollout else None) or memory.written_value or "null"
    message = (
        f"{writer} dropped the annotation; it is written again ({memory.restores + 1} of at most {_MOST_RESTORES} times). "
        "Use kubectl apply, or Replace=false, which keep it"
    )
    return Step(
        rollout=situation.rollout,
        memory=memory.model_copy(update={"restores": memory.restores + 1}),
        write=WriteAnnotation(workload.ref, value),
        events=(Event(ClusterReason.RESTORED, message, warning=True),),
        reason=ClusterReason.RESTORED,
        message=message,
        busy=True,
    )


def _untouched(value: str | None, previous: str | None) -> bool:
    return (value is None) == (previous is None) and same_value(value, previous)


def _past(deadline: datetime | None, now: datetime) -> bool:
    return deadline is not None and now > deadline


def _end(
    situation: Situation, result: HistoryResult, message: str, measured_speedup: float | None = None
) -> HistoryEntry:
    rollout = situation.rollout
    started = rollout.started_time if rollout else None
    finished = (rollout.finished_time if rollout else None) or situation.now
    return HistoryEntry(
        time=situation.now,
        from_arm=rollout.from_arm if rollout else NO_SPECULATION.name,
        to_arm=rollout.to_arm if rollout else NO_SPECULATION.name,
        reason=rollout.reason if rollout else None,
        result=result,
        predicted_speedup=rollout.predicted_speedup if rollout else None,
        measured_speedup=measured_speedup,
        seconds=(finished - started).total_seconds() if started else None,
        message=message[:1024],
    )


def _predicted(prediction: Prediction) -> str:
    if prediction.speedup is None or not math.isfinite(prediction.speedup):
        return ""
    lower, upper = prediction.lower, prediction.upper
    if lower is not None and upper is not None and math.isfinite(upper):
        text = f": predicted {prediction.speedup:.2f}x ({lower:.2f} to {upper:.2f})"
    elif lower is not None:
        # Next to the old arm's saturation the estimate is any large number; only its lower end says something.
        text = f": predicted {lower:.2f}x or more"
    else:
        text = f": predicted {prediction.speedup:.2f}x (without bounds)"
    if prediction.load_rps is not None:
        text += f" at {prediction.load_rps:.3g} rps per replica"
    return text
