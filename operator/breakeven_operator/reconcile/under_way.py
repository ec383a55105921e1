"""A change under way goes on before a new one begins: a hand-back, a roll, its measurement."""

from __future__ import annotations

from dataclasses import replace

from breakeven.arm import NO_SPECULATION
from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.labels import RESUME_ANNOTATION
from breakeven_operator.reconcile.annotation_owner import hand_back
from breakeven_operator.reconcile.leaving import LEAVING, acquit, crashing, why_not_back
from breakeven_operator.reconcile.lost_rolls import undo_and_bar, undo_disproved, undo_failing, why_kept
from breakeven_operator.reconcile.observation import ServiceObservation
from breakeven_operator.reconcile.roll_answers import AnswerShift, find_answers
from breakeven_operator.reconcile.roll_evidence import RollEvidence, RollFinding, find_speedup
from breakeven_operator.reconcile.roll_failures import FailureFinding, find_failures
from breakeven_operator.reconcile.roll_outcome import GIVE_UP_WINDOWS, JUDGED_WINDOWS, outcome
from breakeven_operator.reconcile.roll_windows import windows_since
from breakeven_operator.reconcile.rollout import end, forget_target, watch
from breakeven_operator.reconcile.steps import Event, RolloutContext, RolloutStep
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.memorystatus import LONGEST_VALUE
from breakeven_operator.resources.rolloutstatus import MEASURED_PHASES, HistoryResult, Rollout, RolloutPhase


def go_on(
    service: SpeculativeService,
    context: RolloutContext,
    evidence: RollEvidence,
    observation: ServiceObservation,
) -> RolloutStep:
    """The step of whatever is under way; one without a write and not busy if nothing is.

    Args:
        service: as the API server holds it.
        context: of this cycle.
        evidence: about a roll that is measured.
        observation: requests after the last roll, and the profiles of any image and model.
    """
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


# Every roll is an experiment: was the new arm measured to be faster, and is what was promised for this load true?
#
# The measurement compares the pods of both arms (`breakeven.planning.roll_experiment`). The model contributes the promise
# that it is held against, made for the very load of the measurement, and nothing else. While the roll goes on and is
# measured, bounds that hold at all looks together undo it as soon as it loses significantly; the last verdict is given once.


def verify(context: RolloutContext, evidence: RollEvidence) -> RolloutStep | None:
    """Judge a roll by what was measured of it so far; None: too early to say, or nothing is measured.

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
    rolled = evidence.rolled(rollout)
    failing = find_failures(evidence.failures, rolled)
    # An arm that is left for its failures was left too late for these to be compared with those of the next one.
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
    """End the measurement of a roll, or undo it; None: it goes on."""
    windows = windows_since(context, rollout, evidence.window_s)
    if isinstance(found, str):
        if windows < GIVE_UP_WINDOWS:
            return None
        message = f"{rollout.change} was not measured: {found}{remark}"
        step = end(context, HistoryResult.UNMEASURED, ClusterReason.ROLL_UNPROVEN, message)
        return with_requests(step, rollout, failing)
    word = outcome(found.measured, found.promise, windows)
    if word is None:
        return None
    remark = f"{word.remark}{remark}"
    if word.result is HistoryResult.DISPROVED:
        kept = why_kept(context, rollout)
        if kept is None:
            return undo_disproved(context, rollout, found, word.bounds, evidence.entry)
        if windows < JUDGED_WINDOWS:
            return None
        remark = f"{kept}{remark}"
    message = f"{rollout.change}: {found.said(word.bounds)}{remark}"
    answers = find_answers(evidence.failures, evidence.rolled(rollout))
    measured = replace(context, rollout=found.kept_in(rollout, word.bounds))
    step = end(measured, word.result, word.reason, f"{message}{f'; {answers.said}' if answers else ''}")
    return with_answers(with_requests(step, rollout, failing), answers)


# Lessons of a measured roll from its requests: what later requests are compared with, and other answers.


def with_answers(step: RolloutStep, answers: AnswerShift | None) -> RolloutStep:
    """The step with an event if live answers of the new arm differ from those of the old one in the same time."""
    if answers is None or not answers.differing:
        return step
    event = Event(Reason.ANSWERS_DIFFER, answers.said, warning=True)
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
