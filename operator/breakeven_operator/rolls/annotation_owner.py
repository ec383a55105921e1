"""Whose the annotation is: changes by others, taking over and handing back, restoring what a replace dropped.

The API server records who *set* a field and when, never who removed one. A write that does nothing but remove the
annotation therefore leaves no trace (`kubectl edit`, a patch, a replace with the manifest as it stood): nobody's entry in
managedFields is newer than before. That is taken for a person's wish, because a tool that replaces whole manifests
usually changes something else as well, and shows (docs/decisions/0010-a-bare-removal.md).
"""

from __future__ import annotations

from breakeven_operator.actions import WriteAnnotation
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import FIELD_MANAGER
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.targetstatus import HistoryResult
from breakeven_operator.step import NO_FAILURES, RolloutContext, RolloutStep, ended
from breakeven_operator.workloads.running_arm import same_value
from breakeven_operator.workloads.workload import Workload

# A person who removes the key means it; who replaces the whole object with a manifest from elsewhere usually does not.
_MEANT_IT = ("kubectl-edit", "kubectl-patch", "kubectl-annotate", "kubectl-rollout", "kubectl")
MOST_RESTORES = 2
_NOBODY = "an edit or patch by an unknown hand"
_UNDONE = "kubectl rollout undo, or an edit with the same result,"
_UNDOERS = {"kubectl", "kubectl-rollout"}
_UNSEEN = "a program that leaves no trace"


def check_ownership(context: RolloutContext) -> RolloutStep:
    """Whether the annotation still says what was last written."""
    workload, memory = context.workload, context.memory
    unchanged = RolloutStep(context.rollout, memory)
    if memory.written_value is None or same_value(workload.value, memory.written_value):
        return unchanged
    if not context.may_write:
        # Nothing would be written anyway: what a person sets in Recommend, Disabled or while paused is the running arm.
        return RolloutStep(context.rollout, memory.replace(written_value=workload.value))
    return foreign(context)


def foreign(context: RolloutContext, *, at_once: bool = False) -> RolloutStep:
    """The annotation is not what was last written, nor what a change of ours is going to or coming from.

    If it stood for less than a cycle (`at_once`), no person has removed it.
    """
    workload, memory = context.workload, context.memory
    if workload.value is not None:
        others = [one for one in workload.value_managers if one != FIELD_MANAGER]
        undone = workload.returned and set(others) & _UNDOERS
        managers = "kubectl rollout undo" if undone else ", ".join(others) or "another writer"
        return taken_over(context, managers, "changed the annotation")
    written, writer = workload.last_write_time, workload.last_writer
    if written is None or memory.others_wrote_time is None or written <= memory.others_wrote_time:
        if not at_once:
            who = _UNDONE if workload.returned else _NOBODY
            back = ", the pod template is that of an earlier revision again," if workload.returned else ","
            return taken_over(
                context,
                who,
                f"removed the annotation (it is gone{back} and no field manager has changed anything else since it was last there)",
            )
        writer, seen = _UNSEEN, "removed the annotation within seconds"
    else:
        seen = f"changed the target at {written:%Y-%m-%d %H:%M:%S} UTC and the annotation is gone"
        if writer in _MEANT_IT:
            return taken_over(context, writer, f"removed the annotation at {written:%Y-%m-%d %H:%M:%S} UTC")
    if memory.restores >= MOST_RESTORES:
        again = f"{seen} again, after it was restored {memory.restores} times"
        return taken_over(context, writer, again, ClusterReason.REVERTED_TWICE)
    if not context.may_write:
        return RolloutStep(context.rollout, memory)
    rollout = context.rollout
    message = (
        f"{writer} {seen}; it is written again ({memory.restores + 1} of at most {MOST_RESTORES} times). A writer that merges "
        "(kubectl apply, Argo CD without Replace=true) keeps it, one that replaces the whole object drops it"
    )
    return context.step(
        ClusterReason.RESTORED,
        message,
        warning=True,
        rollout=rollout.replace(target_generation=workload.generation) if rollout else None,
        memory=memory.replace(restores=memory.restores + 1),
        write=WriteAnnotation(workload.ref, memory.written_value or "null", workload.generation),
        # A value that was not put back counts as no restoring: twice refused is not twice reverted.
        otherwise=RolloutStep(context.rollout, memory),
    )


def note_writers(memory: MemoryStatus, workload: Workload, *, writing: bool) -> MemoryStatus:
    """Remember when others last wrote while the annotation stood: only who wrote later can have dropped it.

    The API server gave both times, so no two clocks are compared. A write of others costs one write of the status.
    """
    if workload.value is None and not writing:
        return memory
    return memory.replace(others_wrote_time=workload.last_write_time or workload.created)


def taken_over(
    context: RolloutContext, manager: str, seen: str, reason: ClusterReason = ClusterReason.TAKEN_OVER
) -> RolloutStep:
    """Somebody else owns the annotation: hold until a person hands it back."""
    message = (
        f"{manager} {seen}; nothing is written until spec.paused is set and unset again, or the annotation "
        "breakeven.dev/resume gets a new value"
    )
    return context.step(
        reason,
        message,
        warning=True,
        memory=context.memory.replace(taken_over_by=manager[:128], pause_seen=False),
        ended=ended(context, HistoryResult.SUPERSEDED, f"{manager} took the annotation over"),
    )


def hand_back(context: RolloutContext, resume: str, *, paused: bool) -> RolloutStep | None:
    """Whether a person handed the annotation back, or ended a back-off; that alone writes and restarts nothing.

    None if nobody holds it and nothing was asked. Otherwise a step that is busy while somebody still holds it.
    """
    memory = context.memory
    holder = memory.taken_over_by
    asked = bool(resume) and resume != memory.resume
    if holder is None:
        if memory.resume == (resume or None):
            return None
        # A token that was set before anything was taken over must not count later.
        noted = memory.replace(resume=resume or None)
        waits = memory.failures or memory.backoff_until_time is not None or memory.barred
        return _backoff_ended(context, noted) if asked and waits else RolloutStep(context.rollout, noted)
    if not asked and not (memory.pause_seen and not paused):
        return RolloutStep(
            rollout=None,
            memory=memory.replace(pause_seen=memory.pause_seen or paused),
            reason=(
                ClusterReason.REVERTED_TWICE if memory.restores >= MOST_RESTORES else ClusterReason.TAKEN_OVER
            ),
            message=f"{holder} changed the annotation last; hand it back by setting and unsetting spec.paused, or by a new "
            "value of the annotation breakeven.dev/resume",
            busy=True,
        )
    return RolloutStep(
        rollout=None,
        memory=memory.replace(
            taken_over_by=None,
            pause_seen=False,
            resume=resume or None,
            restores=0,
            written_value=context.workload.value,
            **NO_FAILURES,
            barred=(),
            # Applying the value that stands there would only share its ownership: the next *change* must be forced.
            force_next=True,
        ),
        events=(context.event(ClusterReason.RESUMED, f"taken back from {holder}"),),
        reason=ClusterReason.RESUMED,
        message=f"taken back from {holder}; the next change takes the annotation over",
        busy=True,
    )


def _backoff_ended(context: RolloutContext, memory: MemoryStatus) -> RolloutStep:
    """The next roll need not wait, and a failure of it counts as the first one."""
    undone = f"{memory.failures} rolls were undone" if memory.failures > 1 else "a roll was undone"
    message = f"breakeven.dev/resume has a new value: the back-off after {undone} has ended"
    if memory.barred:
        message += f"; {', '.join(one.arm for one in memory.barred)} may be entered again"
    eased = memory.replace(**NO_FAILURES, barred=())
    return context.step(ClusterReason.RESUMED, message, busy=False, rollout=context.rollout, memory=eased)
