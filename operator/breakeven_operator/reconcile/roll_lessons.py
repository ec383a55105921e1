"""Lessons of a measured roll from its requests: what the next roll is compared with, an arm that was not to blame, other answers."""

from __future__ import annotations

from dataclasses import replace

from breakeven.arm import NO_SPECULATION
from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.barred_arms import acquitted
from breakeven_operator.reconcile.leaving import fails_without
from breakeven_operator.reconcile.roll_answers import AnswerShift
from breakeven_operator.reconcile.roll_failures import FailureFinding
from breakeven_operator.reconcile.steps import Event, RolloutStep
from breakeven_operator.resources.memorystatus import RequestsBefore
from breakeven_operator.resources.rolloutstatus import Rollout


def with_answers(step: RolloutStep, answers: AnswerShift | None) -> RolloutStep:
    """The step with an event if live answers of the new arm differ from those of the old one in the same time."""
    if answers is None or not answers.differing:
        return step
    event = Event(Reason.ANSWERS_DIFFER, answers.said, warning=True)
    return replace(step, events=(*step.events, event))


def with_requests(step: RolloutStep, rollout: Rollout, failing: FailureFinding | str) -> RolloutStep:
    """The lesson of the requests: the figures that the new arm's are compared with from now on, or that the old arm was not to blame."""
    if isinstance(failing, str) or rollout.to_arm is None:
        return step
    if rollout.to_arm != NO_SPECULATION.name:
        posts, refusals, served = map(round, failing.old)
        before = RequestsBefore(arm=rollout.to_arm, posts=posts, refusals=refusals, served=served)
        return replace(step, memory=step.memory.replace(requests_before=before))
    arm, earlier = rollout.from_arm or "", step.memory.requests_before
    memory = step.memory.replace(requests_before=None)
    if rollout.reason != ClusterReason.ROLL_FAILS_REQUESTS or not fails_without(earlier, arm, failing.new):
        return replace(step, memory=memory)
    message = (
        f"requests fail without {arm} too, which were answered before it was entered; it may be entered again"
    )
    event = Event(ClusterReason.ARM_ACQUITTED, message)
    return replace(step, memory=acquitted(memory, arm), events=(*step.events, event))
