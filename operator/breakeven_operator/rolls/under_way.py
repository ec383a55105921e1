"""A change under way goes on before a new one begins: a hand-back, a roll, its measurement, and undoing it if it lost.

Every roll is an experiment: was the new arm measured to be faster, and is what was promised for this load true? The
measurement compares the pods of both arms (`breakeven.planning.roll_experiment`). The model contributes the promise that it
is held against, made for the very load of the measurement, and nothing else.
"""

from __future__ import annotations

from dataclasses import replace

from breakeven.arm import NO_SPECULATION
from breakeven.reasons import Reason
from breakeven_operator.case import ServiceObservation
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import RESUME_ANNOTATION
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.memorystatus import LONGEST_VALUE, MemoryStatus
from breakeven_operator.resources.targetstatus import MEASURED_PHASES, HistoryResult, Rollout, RolloutPhase
from breakeven_operator.rolls.annotation_owner import hand_back
from breakeven_operator.rolls.barred_arms import LEAVING, acquit, barred, crashing, suspected, why_not_back
from breakeven_operator.rolls.roll_evidence import (
    GIVE_UP_WINDOWS,
    JUDGED_WINDOWS,
    RollEvidence,
    RollFinding,
    find_speedup,
    outcome,
)
from breakeven_operator.rolls.roll_failures import FailureFinding, find_answers, find_failures
from breakeven_operator.rolls.rollout import end, forget_target, undo, watch
from breakeven_operator.step import ProfileEntry, RolloutContext, RolloutStep, windows_since
from breakeven_operator.workloads.target import Refusal


def go_on(
    service: SpeculativeService,
    context: RolloutContext,
    evidence: RollEvidence,
    observation: ServiceObservation,
) -> RolloutStep:
    """The step of whatever is under way; one without a write and not busy if nothing is."""
    outlived = why_not_back(context.rollout, context.workload, observation.profiles)
    return acquit(_step(service, replace(context, outlived=outlived), evidence), context, observation.later)


def _step(service: SpeculativeService, context: RolloutContext, evidence: RollEvidence) -> RolloutStep:
    seen = service.status.target
    before = context.memory.target_uid or (seen.uid if seen is not None else None)
    if before not in {None, context.workload.ref.uid}:
        return forget_target(context)
    resume = service.metadata.annotations.get(RESUME_ANNOTATION, "")[:LONGEST_VALUE]
    handed = hand_back(context, resume, paused=service.spec.paused)
    if handed is not None:
        if handed.busy:
            return handed
        context = replace(context, memory=handed.memory)
    step = watch(context)
    if handed is not None:
        step = handed.then(step)
    rolling = step.rollout is not None and step.rollout.phase is RolloutPhase.ROLLING
    if step.write is not None or (step.busy and not rolling):
        return step
    judged = verify(replace(context, memory=step.memory, rollout=step.rollout), evidence)
    return step.then(judged) if judged is not None else step


def verify(context: RolloutContext, evidence: RollEvidence) -> RolloutStep | None:
    """Judge a roll by what was measured of it so far; None if it is too early to say, or nothing is measured.

    - Undone: its speedup is significantly below 1 and below the promise for this load; from the first blocks on, in
      the middle of the roll too. An arm that a person pinned stays, and is said to lose.
    - Its last word: three windows after the roll has finished; up to six while nothing is proved or too few requests came.
    """
    rollout = context.rollout
    if rollout is None or rollout.phase not in MEASURED_PHASES:
        return None
    windows = windows_since(context, rollout, evidence.window_s)
    crash = crashing(context.workload, context.now) if windows >= 0.0 else None
    if crash is not None and why_kept(context, rollout) is None:
        return undo_and_bar(context, rollout, ClusterReason.ARM_CRASHES, crash, evidence.entry)
    if (
        evidence.breach is not None
        and rollout.reason not in LEAVING
        and rollout.to_arm != NO_SPECULATION.name
    ):
        return undo_by_guard(context, rollout, evidence.breach, evidence.entry)
    rolled = evidence.rolled(rollout)
    failing = find_failures(evidence.failures, rolled)
    # An arm that is left for its failures was left too late to compare them with failures of the next arm.
    left = rollout.reason in LEAVING
    if not left and not isinstance(failing, str) and failing.fails(last_look=windows >= JUDGED_WINDOWS):
        return undo_failing(context, rollout, failing, evidence.entry)
    withdrawn = rollout.reason == ClusterReason.FINGERPRINT_CHANGED
    found = "the pods before it ran another template" if withdrawn else find_speedup(rollout, evidence)
    remark = f"; failures not measured: {failing}" if isinstance(failing, str) else ""
    if not isinstance(failing, str) and failing.is_noticed:
        remark = f"; {failing.said}"
    return _last_word(context, rollout, evidence, found, failing, remark)


def _last_word(
    context: RolloutContext,
    rollout: Rollout,
    evidence: RollEvidence,
    found: RollFinding | str,
    failing: FailureFinding | str,
    remark: str,
) -> RolloutStep | None:
    """End the measurement of a roll, or undo it; None if it goes on."""
    windows = windows_since(context, rollout, evidence.window_s)
    if isinstance(found, str):
        if windows < GIVE_UP_WINDOWS:
            return None
        message = f"{rollout.change} was not measured: {found}{remark}"
        step = end(context, HistoryResult.UNMEASURED, ClusterReason.ROLL_UNPROVEN, message)
        return with_requests(step, rollout, failing)
    word = outcome(found.measured, found.promise, windows)
    if word is None or word.result is None or word.reason is None:
        return None
    remark = f"{word.remark}{remark}"
    if word.result is HistoryResult.DISPROVED:
        kept = why_kept(context, rollout)
        if kept is None:
            return undo_disproved(context, rollout, word, evidence.entry)
        if windows < JUDGED_WINDOWS:
            return None
        remark = f"{kept}{remark}"
    message = f"{rollout.change}: {word.said}{remark}"
    answers = find_answers(evidence.failures, evidence.rolled(rollout))
    measured = replace(context, rollout=word.kept_in(rollout))
    step = end(measured, word.result, word.reason, f"{message}{f'; {answers.said}' if answers else ''}")
    step = with_requests(step, rollout, failing)
    if answers is None or not answers.differing:
        return step
    event = context.event(Reason.ANSWERS_DIFFER, answers.said, warning=True)
    return replace(step, events=(*step.events, event))


def with_requests(step: RolloutStep, rollout: Rollout, failing: FailureFinding | str) -> RolloutStep:
    """The lesson of the requests: the figures that requests are compared with from now on.

    An arm that was left because requests failed on it is acquitted by the figures from before it was entered (`leaving`).
    """
    if isinstance(failing, str) or rollout.to_arm is None:
        return step
    before = step.memory.requests_before
    if rollout.to_arm != NO_SPECULATION.name:
        before = failing.old.kept(rollout.to_arm)
    elif rollout.reason != ClusterReason.ROLL_FAILS_REQUESTS:
        before = None
    return replace(step, memory=step.memory.replace(requests_before=before))


_MOST_DISPROVED = 3


def rolls_stopped(memory: MemoryStatus, profile_name: str) -> Refusal | None:
    """Why this profile's word starts no roll any more; None if it does."""
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
    entry: ProfileEntry | None,
) -> RolloutStep:
    """Undo the roll, suspect the profile that asked for it, and stop after three in a row."""
    said = found.said
    step = undo(context, found.kept_in(rollout), ClusterReason.ROLL_DISPROVED, said)
    if step.write is None or entry is None:
        return step
    memory = step.memory
    count = (memory.disproved if memory.disproved_profile == entry.name else 0) + 1
    memory = memory.replace(disproved=count, disproved_profile=entry.name)
    why = f"{rollout.change}: {said}"
    memory = suspected(memory, entry.name, ClusterReason.ROLL_DISPROVED, why, context.now)
    stop = rolls_stopped(memory, entry.name)
    events = () if stop is None else (context.event(stop.reason, stop.message, warning=True),)
    return replace(step, memory=memory, events=(*step.events, *events))


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


def undo_by_guard(
    context: RolloutContext, rollout: Rollout, breach: Refusal, entry: ProfileEntry | None
) -> RolloutStep:
    """Undo a roll with the name of the user's guard as its reason; an arm that a person pinned stays, and that is said."""
    kept = why_kept(context, rollout)
    if kept is not None:
        message = f"{rollout.change}: {breach.message}{kept}"
        return end(context, HistoryResult.DISPROVED, ClusterReason.GUARD_EXCEEDED, message)
    step = undo_and_bar(context, rollout, ClusterReason.GUARD_EXCEEDED, breach.message, entry)
    if step.write is None or step.rollout is None:
        return step
    return replace(step, rollout=step.rollout.replace(reason=breach.message.partition(":")[0]))


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
    """Why a roll that lost is not undone, as the end of a sentence; None if it is."""
    if rollout.reason == ClusterReason.PINNED:
        return "; it stays, for a person pinned it"
    if rollout.reason == ClusterReason.FINGERPRINT_CHANGED:
        return f"; it stays, because {rollout.from_arm} was never measured on this template"
    for one in context.memory.barred:
        if one.arm == rollout.from_arm:
            return f"; it stays, because {one.arm} is not entered again ({one.reason})"
    return None
