"""Whose the annotation is: changes by others, taking over and handing back, restoring what a replace dropped."""

from __future__ import annotations

from breakeven_operator.plan import WriteAnnotation
from breakeven_operator.reasons import ClusterReason
from breakeven_operator.reconcile.arms import same_value
from breakeven_operator.reconcile.steps import Event, Situation, Step, ended
from breakeven_operator.resources.servicestatus import HistoryResult

# A person who removes the key means it; who replaces the whole object with a manifest from elsewhere usually does not.
_MEANT_IT = ("kubectl-edit", "kubectl-patch", "kubectl-annotate", "kubectl-rollout", "kubectl")
_MOST_RESTORES = 2


def check_ownership(situation: Situation) -> Step:
    """Whether the annotation still says what was last written."""
    workload, memory = situation.workload, situation.memory
    unchanged = Step(situation.rollout, memory)
    if memory.written_value is None or same_value(workload.value, memory.written_value):
        return unchanged
    if not situation.may_write:
        # Nothing would be written anyway: what a person sets in Recommend, Disabled or while paused is the running arm.
        return Step(situation.rollout, memory.model_copy(update={"written_value": workload.value}))
    return foreign(situation)


def foreign(situation: Situation) -> Step:
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


def taken_over(
    situation: Situation, manager: str, seen: str, reason: ClusterReason = ClusterReason.TAKEN_OVER
) -> Step:
    """Somebody else owns the annotation: hold until a person hands it back."""
    superseded = (
        (ended(situation, HistoryResult.SUPERSEDED, f"{manager} took the annotation over"),)
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
        ended=superseded,
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
