"""A change under way goes on before a new one begins: a hand-back, a roll, its measurement, and undoing it if it lost.

Every roll is an experiment: was the new arm measured to be faster, and is what was promised for this load true? The
measurement compares the pods of both arms (`breakeven.planning.roll_experiment`). The model contributes the promise that it
is held against, made for the very load of the measurement, and nothing else.
"""

from __future__ import annotations

from dataclasses import replace

from breakeven.arm import NO_SPECULATION
from breakeven.reasons import Reason
from breakeven_operator.case import Case, ServiceObservation
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import RESUME_ANNOTATION
from breakeven_operator.observing.roll_metrics import RolledPods
from breakeven_operator.resources.memorystatus import LONGEST_VALUE, MemoryStatus
from breakeven_operator.resources.targetstatus import MEASURED_PHASES, HistoryResult, Rollout, RolloutPhase
from breakeven_operator.rolls.annotation_owner import hand_back
from breakeven_operator.rolls.barred_arms import LEAVING, acquit, barred, crashing, suspected, why_not_back
from breakeven_operator.rolls.roll_evidence import (
    GIVE_UP_WINDOWS,
    JUDGED_WINDOWS,
    RollFinding,
    find_speedup,
    outcome,
)
from breakeven_operator.rolls.roll_failures import AnswerShift, FailureFinding, find_answers, find_failures
from breakeven_operator.rolls.rollout import end, forget_target, undo, watch
from breakeven_operator.step import RolloutContext, RolloutStep, windows_since
from breakeven_operator.workloads.target import Refusal


def go_on(case: Case, observation: ServiceObservation) -> RolloutStep:
    """The step of whatever is under way; one without a write and not busy if nothing is."""
    context = case.context
    outlived = why_not_back(context.rollout, context.workload, observation.profiles)
    step = _step(replace(case, context=replace(context, outlived=outlived)))
    return acquit(step, context, observation.later)


def _step(case: Case) -> RolloutStep:
    service, context = case.service, case.context
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
    waits = step.busy and step.rollout is not None and step.rollout.phase is not RolloutPhase.ROLLING
    if step.rollout is None or step.write is not None or waits:
        return step
    judged = verify(case.after(step))
    return step.then(judged) if judged is not None else step


def verify(case: Case) -> RolloutStep | None:
    """Judge a roll by what was measured of it so far; None if it is too early to say, or nothing is measured.

    - Undone: its speedup is significantly below 1 and below the promise for this load; from the first blocks on, in
      the middle of the roll too. An arm that a person pinned stays, and is said to lose.
    - Its last word: three windows after the roll has finished; up to six while nothing is proved or too few requests came.
    """
    context, rollout = case.context, case.context.rollout
    if rollout is None or rollout.phase not in MEASURED_PHASES:
        return None
    windows = windows_since(context, rollout, case.spec.metrics_source.window_seconds)
    crash = crashing(context.workload, context.now) if windows >= 0.0 else None
    if crash is not None and why_kept(context, rollout) is None:
        return undo_and_bar(case, rollout, ClusterReason.ARM_CRASHES, crash)
    # An arm that is left for its failures was left too late to compare them with failures of the next arm.
    left = rollout.reason in LEAVING
    if case.breach is not None and not left and rollout.to_arm != NO_SPECULATION.name:
        return undo_by_guard(case, rollout, case.breach)
    rolled = RolledPods.of(rollout, context.workload, case.model_name)
    failing = find_failures(case.roll.failures, rolled)
    if not left and not isinstance(failing, str) and failing.fails(last_look=windows >= JUDGED_WINDOWS):
        return undo_failing(case, rollout, failing)
    withdrawn = rollout.reason == ClusterReason.FINGERPRINT_CHANGED
    found = "the pods before it ran another template" if withdrawn else find_speedup(rollout, case, rolled)
    answers = find_answers(case.roll.failures, rolled) if windows >= JUDGED_WINDOWS else None
    return _last_word(case, rollout, windows, found, failing, answers)


def _last_word(
    case: Case,
    rollout: Rollout,
    windows: float,
    found: RollFinding | str,
    failing: FailureFinding | str,
    answers: AnswerShift | None,
) -> RolloutStep | None:
    """End the measurement of a roll, or undo it; None if it goes on."""
    context = case.context
    remark = f"; failures not measured: {failing}" if isinstance(failing, str) else ""
    if not isinstance(failing, str) and failing.is_noticed:
        remark = f"; {failing.said}"
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
        # Which arm a control runs says nothing about which one should run.
        control = rollout.reason == ClusterReason.CONTROL
        kept = "; it stays, as a control" if control else why_kept(context, rollout)
        if kept is None:
            return undo_disproved(case, rollout, word)
        if windows < JUDGED_WINDOWS:
            return None
        remark = f"{kept}{remark}"
    message = f"{rollout.change}: {word.said}{remark}"
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


def undo_disproved(case: Case, rollout: Rollout, found: RollFinding) -> RolloutStep:
    """Undo the roll, suspect the profile that asked for it, and stop after three in a row."""
    context, profile = case.context, case.calibrated.profile_name
    step = undo(context, found.kept_in(rollout), ClusterReason.ROLL_DISPROVED, found.said)
    if step.write is None or profile is None:
        return step
    memory = step.memory
    count = (memory.disproved if memory.disproved_profile == profile else 0) + 1
    memory = memory.replace(disproved=count, disproved_profile=profile)
    why = f"{rollout.change}: {found.said}"
    memory = suspected(memory, profile, ClusterReason.ROLL_DISPROVED, why, context.now)
    stop = rolls_stopped(memory, profile)
    events = () if stop is None else (context.event(stop.reason, stop.message, warning=True),)
    return replace(step, memory=memory, events=(*step.events, *events))


def undo_failing(case: Case, rollout: Rollout, failing: FailureFinding) -> RolloutStep:
    """Undo a roll whose new arm fails requests, and bar that arm."""
    step = undo_and_bar(case, rollout, ClusterReason.ROLL_FAILS_REQUESTS, failing.said)
    if step.write is None:
        return step
    # Later requests without the arm show whether it was to blame.
    before = failing.old.kept(rollout.to_arm or "")
    return replace(step, memory=step.memory.replace(requests_before=before))


def undo_by_guard(case: Case, rollout: Rollout, breach: Refusal) -> RolloutStep:
    """Undo a roll with the name of the user's guard as its reason."""
    step = undo_and_bar(case, rollout, ClusterReason.GUARD_EXCEEDED, breach.message)
    if step.write is None or step.rollout is None:
        return step
    return replace(step, rollout=step.rollout.replace(reason=breach.message.partition(":")[0]))


def undo_and_bar(case: Case, rollout: Rollout, reason: ClusterReason, said: str) -> RolloutStep:
    """Undo a roll, and bar its new arm; an arm that a person pinned stays, and that is said."""
    context, kept = case.context, why_kept(case.context, rollout)
    if kept is not None:
        return end(context, HistoryResult.DISPROVED, reason, f"{rollout.change}: {said}{kept}")
    step = undo(context, rollout, reason, said)
    if step.write is None:
        return step
    profile = case.calibrated.profile_name
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
