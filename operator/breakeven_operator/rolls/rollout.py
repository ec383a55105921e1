r"""A change of arm from its intent to its end: written down first, watched, undone if it does not come up.

    Intended -> Rolling -> Confirming -> (ended)
                       \-> Undoing -> (ended)

The phase is in the service's status before the target is written: an operator that starts again finds its unfinished work,
and neither repeats nor forgets it. Everything here is a pure function of status, target and time.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from datetime import datetime, timedelta

from breakeven.arm import NO_SPECULATION
from breakeven.estimate import Estimate
from breakeven.phrases import change_text, counted, figure, fixed, ratio_text, spoken
from breakeven_operator.actions import EmitEvent, WriteAnnotation
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import FIELD_MANAGER
from breakeven_operator.resources.figures import bounded
from breakeven_operator.resources.targetstatus import HistoryResult, Rollout, RolloutPhase
from breakeven_operator.rolls.annotation_owner import MOST_RESTORES, check_ownership, foreign
from breakeven_operator.step import NO_FAILURES, RolloutContext, RolloutStep, ended
from breakeven_operator.workloads.object_facts import Patience, Trouble
from breakeven_operator.workloads.running_arm import same_value
from breakeven_operator.workloads.workload import Workload

# Without any measured start of this engine: long enough for a large model from a cold disk.
_UNKNOWN_STARTUP_S = 1800.0
_SLACK_S = 60.0
# A target of two billion replicas, or one that drains for ever, has a deadline too: no date is 10^10 days away.
_LONGEST_S = 366 * 86400.0
_MAX_BACKOFF_FACTOR = 16


def begin(context: RolloutContext, change: Rollout, speedup: Estimate) -> RolloutStep:
    """Start a change of arm while nothing is under way but, at most, the confirmation of an earlier one.

    The change has arms, value, reason, and load and latency before it. Its speedup is infinite if only the old arm is saturated.
    """
    now, workload = context.now, context.workload
    seed = f"{context.service.uid}/{workload.ref.uid}/{workload.generation}/{now.isoformat()}/{change.value}"
    rollout = change.replace(
        id=hashlib.sha256(seed.encode()).hexdigest()[:8],
        previous_value=workload.value,
        started_time=now,
        deadline_time=now + timedelta(seconds=deadline_s(context)),
        target_generation=workload.generation,
        # No decimal is infinite: next to saturation there is no ratio to be held against a measurement.
        **bounded("predicted_speedup", speedup),
        from_replica_set=workload.newest_revision,
        gpu_product=next(iter(workload.gpu_products), None),
    )
    enters = change.to_arm != NO_SPECULATION.name
    return context.step(
        ClusterReason.ROLL_STARTED,
        f"{change_text(change.from_arm, change.to_arm)} ({change.reason}){_predicted(change, speedup)}",
        rollout=rollout,
        memory=context.memory.replace(
            written_value=change.value,
            last_switch_time=now,
            restores=0,
            running_arm=change.to_arm,
            # Requests on the arm that replaces one are compared with them once more.
            requests_before=None if enters else context.memory.requests_before,
        ),
        ended=ended(context, HistoryResult.UNMEASURED, "another change began first"),
        write=WriteAnnotation(
            workload.ref, change.value or "null", workload.generation, force=context.memory.force_next
        ),
    )


def _predicted(change: Rollout, speedup: Estimate) -> str:
    value, lower, upper = speedup.value, speedup.lower, speedup.upper
    if value is None:
        return ""
    if math.isinf(value):
        text = f": {spoken(change.from_arm)} is saturated by its law"
    elif lower is not None and upper is not None and math.isfinite(upper):
        text = f": predicted {ratio_text(speedup)}"
    elif lower is not None:
        # Next to the old arm's saturation the estimate is any large number; only its lower end says something.
        text = f": predicted {fixed(lower, 2)}x or more"
    else:
        text = f": predicted {fixed(value, 2)}x (without bounds)"
    return text if change.load_rps is None else f"{text} at {figure(change.load_rps)} rps per replica"


def watch(context: RolloutContext) -> RolloutStep:
    """Go on with what is under way; look for changes of the annotation by others."""
    if context.rollout is None or context.rollout.phase is RolloutPhase.CONFIRMING:
        return check_ownership(context)
    match context.rollout.phase:
        case RolloutPhase.INTENDED:
            return _intended(context, context.rollout)
        case RolloutPhase.ROLLING:
            return _rolling(context, context.rollout)
        case _:
            return _undoing(context, context.rollout)


def forget_target(context: RolloutContext) -> RolloutStep:
    """The target was deleted and made again: what was written to the old one, or was on its way, is gone with it.

    Nothing is restored on the new one: its pods have just started, and the next change is decided and gated like a
    first one.
    """
    superseded = ended(context, HistoryResult.SUPERSEDED, "the target was deleted and made again")
    reverted = context.memory.restores >= MOST_RESTORES
    memory = context.memory.replace(
        written_value=None,
        others_wrote_time=None,
        # Who reverted the old one may have gone with it; a person's wish has not.
        taken_over_by=None if reverted else context.memory.taken_over_by,
        restores=0,
        force_next=False,
        running_arm=None,
        requests_before=None,
        target_uid=context.workload.ref.uid,
    )
    return RolloutStep(rollout=None, memory=memory, ended=superseded)


def undo(context: RolloutContext, rollout: Rollout, reason: ClusterReason, why: str) -> RolloutStep:
    """Go back to the arm that ran before, and wait longer before the next change; stay if that belongs to another template."""
    if context.outlived is not None:
        message = f"{rollout.change}: {why}; it is not undone: {context.outlived}"
        return end(context, HistoryResult.UNMEASURED, ClusterReason.ROLL_UNPROVEN, message)
    memory = context.memory
    failures = memory.failures + 1
    pause_s = context.timing.backoff_seconds * min(2 ** (failures - 1), _MAX_BACKOFF_FACTOR)
    value = _before(context, rollout)
    message = f"{rollout.change} undone: {why}; next change in {pause_s:.0f} s at the earliest"
    if not context.may_write:
        return RolloutStep(
            rollout,
            memory,
            reason=reason,
            message=f"{why}; nothing is undone while paused or in mode Recommend",
            busy=True,
        )
    return RolloutStep(
        rollout=rollout.replace(
            phase=RolloutPhase.UNDOING,
            reason=str(reason),
            deadline_time=context.now + timedelta(seconds=deadline_s(context)),
            target_generation=context.workload.generation,
        ),
        memory=memory.replace(
            failures=failures,
            backoff_until_time=context.now + timedelta(seconds=pause_s),
            backoff_reason=str(reason),
            written_value=value,
            running_arm=rollout.from_arm,
        ),
        write=WriteAnnotation(context.workload.ref, value, context.workload.generation),
        events=(context.event(ClusterReason.ROLL_UNDONE, message, warning=True),),
        reason=reason,
        message=message,
        busy=True,
    )


def end(context: RolloutContext, result: HistoryResult, reason: ClusterReason, message: str) -> RolloutStep:
    """Finish the measurement of a change that stays."""
    memory = context.memory
    if result is HistoryResult.CONFIRMED:
        memory = memory.replace(**NO_FAILURES)
    return RolloutStep(
        rollout=None,
        memory=memory,
        ended=ended(context, result, message),
        events=(context.event(reason, message, warning=result is HistoryResult.DISPROVED),),
    )


def deadline_s(context: RolloutContext) -> float:
    """How long a roll may take: as the user says, else from measured start-ups, batches and draining."""
    if context.deadline_s is not None:
        return context.deadline_s
    workload = context.workload
    startup_s = context.startup_s if context.startup_s is not None else _UNKNOWN_STARTUP_S
    batch = max(1, workload.max_surge + workload.max_unavailable)
    batches = max(1, math.ceil(workload.desired / batch))
    return min(batches * (2 * startup_s + workload.grace_s) + _SLACK_S, _LONGEST_S)


def _intended(context: RolloutContext, rollout: Rollout) -> RolloutStep:
    workload = context.workload
    if same_value(workload.value, rollout.value) and workload.value is not None:
        rolling = rollout.replace(phase=RolloutPhase.ROLLING, target_generation=workload.generation)
        owned = context.memory.replace(force_next=False)
        return _rolling(replace(context, memory=owned), rolling)
    there, before = workload.value, rollout.previous_value
    if (there is None) != (before is None) or not same_value(there, before):
        return foreign(context)
    if _taken_back(workload, rollout):
        return foreign(context, at_once=True)
    withdrawn = context.memory.replace(written_value=rollout.previous_value)
    if not context.may_write or _past(rollout.deadline_time, context.now):
        why = "its deadline passed" if context.may_write else "paused, or the mode changed,"
        superseded = ended(context, HistoryResult.SUPERSEDED, f"{why} before it was written")
        return RolloutStep(rollout=None, memory=withdrawn, ended=superseded)
    return RolloutStep(
        rollout.replace(target_generation=workload.generation),
        context.memory,
        write=WriteAnnotation(
            workload.ref,
            rollout.value or "null",
            workload.generation,
            force=context.memory.force_next,
        ),
        reason=ClusterReason.ROLL_STARTED,
        message=f"{rollout.change} is to be written",
        busy=True,
        otherwise=RolloutStep(None, withdrawn),
    )


def _rolling(context: RolloutContext, begun: Rollout) -> RolloutStep:
    workload, now = context.workload, context.now
    newest = workload.newest_revision
    known = begun.to_replica_set or (newest if newest != begun.from_replica_set else None)
    rollout = _waiting_for_a_place(context, begun.replace(to_replica_set=known))
    rollout = _waiting_for_its_user(context, rollout)
    if not same_value(workload.value, rollout.value) or workload.value is None:
        return foreign(context)
    if workload.aborted is not None:
        return _aborted(context, rollout, workload.aborted)
    late = _past(rollout.deadline_time, now)
    # All new pods serve: what old ones still drain delays the measurement, and is no reason to restart all of them.
    if workload.settled or (late and workload.rolled_out):
        message = f"{rollout.change}: {_all_run(workload)}{workload.lost_words}"
        return context.step(
            ClusterReason.ROLL_FINISHED,
            message,
            warning=bool(workload.lost),
            busy=False,
            rollout=rollout.replace(
                phase=RolloutPhase.CONFIRMING, finished_time=now, unschedulable_since_time=None
            ),
            memory=context.memory.replace(last_switch_time=now),
        )
    trouble = workload.trouble
    waited = trouble.waited(rollout.started_time, now) if trouble is not None else timedelta()
    if trouble is not None and trouble.is_over(waited, context.place_s):
        return _undo_failed(context, rollout, trouble.reason, _in_vain(trouble, waited, workload))
    if late:
        took = (now - rollout.started_time).total_seconds() if rollout.started_time else 0.0
        why = f"{workload.progress} after {took:.0f} s{f'; {trouble.message}' if trouble is not None else ''}"
        why += workload.lost_words + workload.blocked_words()
        return _undo_failed(context, rollout, ClusterReason.ROLL_DEADLINE_EXCEEDED, why)
    said = "".join(f"; {one}" for one in (workload.waits, trouble and trouble.message) if one)
    message = f"{rollout.change}: {workload.progress}{said}{workload.lost_words}"
    message += workload.blocked_words()
    return RolloutStep(
        rollout,
        context.memory,
        reason=trouble.reason if trouble is not None else ClusterReason.ROLLING,
        message=message,
        busy=True,
    )


def _undo_failed(context: RolloutContext, rollout: Rollout, reason: ClusterReason, why: str) -> RolloutStep:
    """Undo a roll that does not come up, unless it has withdrawn a value that belongs to another template."""
    if rollout.reason != ClusterReason.FINGERPRINT_CHANGED:
        return undo(context, rollout, reason, why)
    kept = f"the annotation stays without {rollout.from_arm}, which was never measured on this template"
    message = f"{rollout.from_arm} -> {rollout.to_arm}: {why}; {kept}"
    return end(context, HistoryResult.UNMEASURED, ClusterReason.ROLL_UNPROVEN, message)


def _waiting_for_a_place(context: RolloutContext, rollout: Rollout) -> Rollout:
    """The roll with the time that its new pods wait for room: that is none of the time that they take to start.

    The deadline moves by the longest wait when it begins, and back by what is left of that when it ends; a deadline that a
    person set stays.
    """
    trouble = context.workload.trouble
    waits = trouble is not None and trouble.patience is Patience.PLACE
    since, deadline = rollout.unschedulable_since_time, rollout.deadline_time
    if waits == (since is not None):
        return rollout
    moves = context.deadline_s is None and deadline is not None
    if trouble is not None and waits:
        began = context.now - trouble.waited(rollout.started_time, context.now)
        left_s = context.place_s
    else:
        began, left_s = None, 0.0
        if since is not None:
            left_s = min((context.now - since).total_seconds() - context.place_s, 0.0)
    return rollout.replace(
        unschedulable_since_time=began,
        deadline_time=deadline + timedelta(seconds=left_s) if moves and deadline else deadline,
    )


def _waiting_for_its_user(context: RolloutContext, rollout: Rollout) -> Rollout:
    """The roll with half of its time left at least, while a pause or an analysis of the target's user holds it."""
    whole = timedelta(seconds=deadline_s(context))
    if context.workload.waits is None or not _past(rollout.deadline_time, context.now + whole / 2):
        return rollout
    return rollout.replace(deadline_time=context.now + whole)


def _aborted(context: RolloutContext, rollout: Rollout, how: str) -> RolloutStep:
    """The target's controller has given the change up: it stays as it is, because going on or back is its user's choice."""
    message = f"{rollout.change}: {context.workload.title} {how}; nothing is undone or tried again"
    return context.step(
        ClusterReason.ROLL_ABORTED,
        message,
        warning=True,
        memory=context.memory.replace(last_switch_time=context.now),
        ended=ended(context, HistoryResult.SUPERSEDED, message),
    )


def _in_vain(trouble: Trouble, waited: timedelta, workload: Workload) -> str:
    """Why waiting is over, with the way out if a single replica has no spare GPU."""
    said = trouble.message
    if trouble.patience is not Patience.NONE:
        said += f" (for {waited.total_seconds():.0f} s)"
    if trouble.reason is ClusterReason.INSUFFICIENT_GPU and workload.desired == 1 and workload.max_surge > 0:
        said += "; a single replica without a spare GPU is rolled with maxSurge 0, within a window of updatePolicy.windows with allowOutage"
    return said


def _undoing(context: RolloutContext, rollout: Rollout) -> RolloutStep:
    workload = context.workload
    value = _before(context, rollout)
    if not same_value(workload.value, value):
        if not same_value(workload.value, rollout.value) or _taken_back(workload, rollout):
            return foreign(context)
        write = WriteAnnotation(workload.ref, value, workload.generation) if context.may_write else None
        return RolloutStep(
            rollout.replace(target_generation=workload.generation),
            context.memory,
            write=write,
            reason=ClusterReason.ROLLING,
            message=f"going back to {spoken(rollout.from_arm)}",
            busy=True,
        )
    if context.outlived is not None:
        # Until this is over nothing else is decided, and it may never come up.
        message = f"{rollout.change} was undone ({rollout.reason}) to what is left again: {context.outlived}"
        return _undone(context, context.event(ClusterReason.FINGERPRINT_CHANGED, message, warning=True))
    late = _past(rollout.deadline_time, context.now)
    if workload.settled or (late and workload.rolled_out):
        now = "runs again" if workload.desired else "is asked for again, and no pod runs"
        message = (
            f"{spoken(rollout.from_arm)} {now}; {rollout.change} was undone ({rollout.reason})"
            + _meaning(rollout.reason)
            + workload.lost_words
        )
        return _undone(context, context.event(ClusterReason.ROLLED_BACK, message))
    said = f"; {workload.trouble.message}" if workload.trouble is not None else ""
    blocked = workload.blocked_words(in_vain=rollout.reason == ClusterReason.ROLL_DEADLINE_EXCEEDED)
    state = f"{workload.progress}{said}{workload.lost_words}{blocked}"
    if late:
        # The annotation is back: the workload goes on with that without us, and later decisions must not wait for it.
        message = (
            f"{rollout.change} was undone ({rollout.reason}): the annotation asks for {spoken(rollout.from_arm)} "
            f"again, and at the deadline {state}"
        )
        return _undone(context, context.event(ClusterReason.ROLL_DEADLINE_EXCEEDED, message, warning=True))
    reason, message = ClusterReason.ROLLING, f"going back to {spoken(rollout.from_arm)}: {state}"
    if blocked:
        reason = ClusterReason.UNDO_BLOCKED
    return RolloutStep(rollout, context.memory, reason=reason, message=message, busy=True)


def _undone(context: RolloutContext, event: EmitEvent) -> RolloutStep:
    return RolloutStep(
        rollout=None,
        memory=context.memory.replace(last_switch_time=context.now),
        ended=ended(context, HistoryResult.UNDONE, event.message),
        events=(event,),
    )


def _all_run(workload: Workload) -> str:
    """The pods that run a new arm, all of them, as a clause."""
    if not workload.desired:
        return f"no pod runs, because {workload.title} is scaled to zero; the next one will run it"
    return f"{counted(workload.desired, 'pod')} {'runs' if workload.desired == 1 else 'run'} it"


def _meaning(reason: str | None) -> str:
    """A cluster reason's meaning as the end of a sentence; empty for any other word."""
    known = ClusterReason.named(reason)
    return f": {known.meaning[0].lower()}{known.meaning[1:].rstrip('.')}" if known is not None else ""


def _before(context: RolloutContext, rollout: Rollout) -> str | None:
    """The value that undoes a change. A controller that keeps a key of which nobody asks any more needs one in place of none."""
    value = rollout.previous_value
    return value if value is not None or context.workload.kind.takes_back else "null"


def _taken_back(workload: Workload, rollout: Rollout) -> bool:
    """Whether the last write of a change was made and reverted since, which makes two generations between two cycles.

    A write that failed makes no generation, and somebody else's change, because of which it failed, makes one. The value that
    stands is the operator's own where its write was never made.
    """
    begun = rollout.target_generation
    theirs = workload.value is None or set(workload.value_managers) - {FIELD_MANAGER}
    return begun is not None and workload.generation >= begun + 2 and bool(theirs)


def _past(deadline: datetime | None, now: datetime) -> bool:
    return deadline is not None and now > deadline
