"""An annotation that the API server refuses because somebody else owns it: remembered, said, and left to a person."""

from __future__ import annotations

from datetime import datetime

from breakeven_operator.actions import ActionPlan, EmitEvent, WriteStatus
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.action_plan import ServiceOutcome, reference
from breakeven_operator.reconcile.annotation_owner import taken_over
from breakeven_operator.reconcile.steps import RolloutContext
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.servicestatus import ServiceWorkings
from breakeven_operator.resources.updatepolicy import PRODUCTION
from breakeven_operator.workloads.workload import Workload


def conflicted(
    service: SpeculativeService,
    outcome: ServiceOutcome,
    workload: Workload,
    managers: tuple[str, ...],
    now: datetime,
) -> ActionPlan:
    """The API server refused the annotation because others own it: remember it, say it, wait for a person.

    Args:
        service: as it was read.
        outcome: the decision that asked for the annotation. Its figures stand, and so do the results of this cycle.
        workload: the target.
        managers: who owns the annotation.
        now: time of the observation.
    """
    shown, kept = outcome.status, outcome.otherwise
    assert kept is not None  # noqa: S101 - the plan writes an annotation
    context = RolloutContext.of(service.with_status(kept), workload, None, PRODUCTION, now)
    step = taken_over(context, ", ".join(managers), "owns the annotation")
    memory = step.memory.replace(written_value=workload.value)
    changed = shown.replace(
        workings=ServiceWorkings(memory=memory, display=shown.display),
        rollout=None,
        history=step.history(kept.history),
    )
    ref = reference(service)
    return ActionPlan(
        subject=ref,
        actions=(
            WriteStatus(ref, changed.to_json_object()),
            *(EmitEvent(ref, str(e.reason), e.message, e.warning) for e in step.events),
        ),
        facts={"reason": str(ClusterReason.TAKEN_OVER), "managers": list(managers)},
    )
