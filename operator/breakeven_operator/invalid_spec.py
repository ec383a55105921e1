"""A service whose spec breaks a rule: its condition Ready says so, everything else in its status stays as it is."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from breakeven.errors import InputError
from breakeven_operator.actions import ActionPlan, WriteStatus
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import SERVICES, Ref
from breakeven_operator.ports import Manifest
from breakeven_operator.reconcile.conditions import READY, Aspect, merge
from breakeven_operator.resources.meta import Condition


def invalid_spec_plan(manifest: Manifest, problem: str, now: datetime) -> ActionPlan | None:
    """The plan that says so in the service's status; None if the status says so already.

    Args:
        manifest: of the SpeculativeService.
        problem: the rule that it breaks, in one line.
        now: time of the observation.
    """
    meta = manifest["metadata"]
    ref = Ref(SERVICES, meta["namespace"], meta["name"], meta["uid"])
    status: dict[str, Any] = dict(manifest.get("status") or {})
    try:
        old = tuple(Condition.read(c, "condition") for c in status.get("conditions") or ())
    except InputError:
        old = ()
    said = merge(
        old,
        (Aspect(READY, False, str(ClusterReason.INVALID_SPEC), problem),),
        now,
    )
    conditions = [condition.to_json_object() for condition in said]
    generation = int(meta.get("generation", 0))
    if (status.get("conditions"), status.get("observedGeneration")) == (conditions, generation):
        return None
    said_so = {**status, "observedGeneration": generation, "conditions": conditions}
    return ActionPlan(ref, (WriteStatus(ref, said_so),))
