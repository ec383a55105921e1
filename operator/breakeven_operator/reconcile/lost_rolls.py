"""A roll that lost: it is undone unless something keeps it, and its profile or its arm is trusted less from then on."""

from __future__ import annotations

from dataclasses import replace

from breakeven.planning.roll_experiment import SpeedupBounds
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.barred_arms import barred
from breakeven_operator.reconcile.calibration_state import ProfileEntry
from breakeven_operator.reconcile.roll_evidence import RollFinding
from breakeven_operator.reconcile.roll_failures import FailureFinding
from breakeven_operator.reconcile.rollout import end, undo
from breakeven_operator.reconcile.steps import Event, RolloutContext, RolloutStep
from breakeven_operator.reconcile.suspicion import suspected
from breakeven_operator.reconcile.target import Refusal
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.rolloutstatus import HistoryResult, Rollout

_MOST_DISPROVED = 3


def rolls_stopped(memory: MemoryStatus, profile_name: str) -> Refusal | None:
    """Why this profile's word starts no roll any more; None: it does."""
    if memory.disproved < _MOST_DISPROVED or memory.disproved_profile != profile_name:
        return None
    return Refusal(
        ClusterReason.ROLLS_STOPPED,
        f"the last {memory.disproved} rolls that profile {profile_name} asked for were measured to lose: none begins until a "
        "new profile is in force, or the annotation breakeven.dev/resume of the SpeculativeService gets a new value",
    )


def undo_disproved(
    context: RolloutContext,
    rollout: Rollout,
    found: RollFinding,
    bounds: SpeedupBounds,
    entry: ProfileEntry | None,
) -> RolloutStep:
    """Undo the roll, suspect the profile that asked for it, and stop after three in a row."""
    said = found.said(bounds)
    step = undo(context, found.kept_in(rollout, bounds), ClusterReason.ROLL_DISPROVED, said)
    if step.write is None or entry is None:
        return step
    memory = step.memory
    count = (memory.disproved if memory.disproved_profile == entry.name else 0) + 1
    memory = memory.replace(disproved=count, disproved_profile=entry.name)
    memory = suspected(
        memory,
        entry.name,
        ClusterReason.ROLL_DISPROVED,
        f"{rollout.change}: {said}",
        context.now,
    )
    stop = rolls_stopped(memory, entry.name)
    events = (
        (*step.events, Event(stop.reason, stop.message, warning=True)) if stop is not None else step.events
    )
    return replace(step, memory=memory, events=events)


def undo_failing(
    context: RolloutContext, rollout: Rollout, failing: FailureFinding, entry: ProfileEntry | None
) -> RolloutStep:
    """Undo a roll whose new arm fails requests, and bar that arm."""
    kept = why_kept(context, rollout)
    if kept is None:
        step = undo_and_bar(context, rollout, ClusterReason.ROLL_FAILS_REQUESTS, failing.said, entry)
        if step.write is None:
            return step
        # Later requests without the arm show whether it was to blame.
        before = failing.old.kept(rollout.to_arm or "")
        return replace(step, memory=step.memory.replace(requests_before=before))
    message = f"{rollout.change}: {failing.said}{kept}"
    return end(context, HistoryResult.DISPROVED, ClusterReason.ROLL_FAILS_REQUESTS, message)


def undo_and_bar(
    context: RolloutContext, rollout: Rollout, reason: ClusterReason, said: str, entry: ProfileEntry | None
) -> RolloutStep:
    """Undo a roll, and bar its new arm."""
    step = undo(context, rollout, reason, said)
    if step.write is None:
        return step
    profile = entry.name if entry is not None else None
    return replace(step, memory=barred(step.memory, rollout.to_arm or "", reason, said, profile, context.now))


def why_kept(context: RolloutContext, rollout: Rollout) -> str | None:
    """Why a roll that lost is not undone, as the end of a sentence; None: it is."""
    if rollout.reason == ClusterReason.PINNED:
        return "; it stays, for a person pinned it"
    if rollout.reason == ClusterReason.FINGERPRINT_CHANGED:
        return f"; it stays, because {rollout.from_arm} was never measured on this template"
    for one in context.memory.barred:
        if one.arm == rollout.from_arm:
            return f"; it stays, because {one.arm} is not entered again ({one.reason})"
    return None
