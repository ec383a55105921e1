"""A change under way goes on before a new one begins: a hand-back, a roll, its measurement."""

from __future__ import annotations

from dataclasses import replace

from breakeven_operator.labels import RESUME_ANNOTATION
from breakeven_operator.reconcile.annotation_owner import hand_back
from breakeven_operator.reconcile.leaving import acquit, why_not_back
from breakeven_operator.reconcile.observation import ServiceObservation
from breakeven_operator.reconcile.roll_evidence import RollEvidence
from breakeven_operator.reconcile.rollout import forget_target, watch
from breakeven_operator.reconcile.steps import RolloutContext, RolloutStep
from breakeven_operator.reconcile.verification import verify
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.memorystatus import LONGEST_VALUE
from breakeven_operator.resources.rolloutstatus import RolloutPhase


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
