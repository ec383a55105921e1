"""Lessons of a measured roll from its requests: what later requests are compared with, and other answers."""

from __future__ import annotations

from dataclasses import replace

from breakeven.arm import NO_SPECULATION
from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.roll_answers import AnswerShift
from breakeven_operator.reconcile.roll_failures import FailureFinding
from breakeven_operator.reconcile.steps import Event, RolloutStep
from breakeven_operator.resources.rolloutstatus import Rollout


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
