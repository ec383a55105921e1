"""A service about which no decision could be made, because the operator has a defect: it says so, and stays visible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from breakeven_operator.actions import ActionPlan, EmitEvent, WriteStatus
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import SERVICES, Ref
from breakeven_operator.printable import one_line
from breakeven_operator.reconcile.conditions import READY, Aspect, merge
from breakeven_operator.resources import SpeculativeService

_LONGEST_ERROR = 300


@dataclass(frozen=True, slots=True)
class Failed:
    """A service whose cycle failed, and the plan that makes its status say so.

    Attributes:
        service: as /metrics shows it: its last figures, with the condition that marks them as stale.
        plan: writes that condition and an event; nothing else of the status and nothing of the target changes.
    """

    service: SpeculativeService
    plan: ActionPlan


def failed(
    service: SpeculativeService,
    status: Mapping[str, Any],
    error: Exception,
    now: datetime,
    resource_version: str = "",
) -> Failed:
    """Mark a service as undecided.

    The first error stands until a cycle succeeds: a text that differs from cycle to cycle would be a write per cycle.

    Args:
        service: with the status that stands.
        status: the status as JSON, taken from what was read and not serialised again: serialising may be what failed.
        error: what was raised.
        now: time of the observation.
        resource_version: the write is refused if the service has changed since; empty: it is not.
    """
    meta = service.metadata
    ref = Ref(SERVICES, meta.namespace, meta.name, meta.uid)
    reason = str(ClusterReason.INTERNAL_ERROR)
    facts = {"action": "Hold", "reason": reason}
    if service.status.undecided:
        return Failed(service, ActionPlan(ref, facts=facts))
    text = one_line(f"{type(error).__name__}: {error}")[:_LONGEST_ERROR]
    message = f"a defect of the operator keeps it from deciding ({text}); the running arm and the last figures are kept"
    ready = Aspect(READY, False, reason, message)
    conditions = merge(service.status.conditions, (ready,), now)
    marked = {**status, "conditions": [condition.to_json_object() for condition in conditions]}
    return Failed(
        service.replace(status=service.status.replace(conditions=conditions)),
        ActionPlan(
            ref,
            (
                WriteStatus(ref, marked, resource_version or None),
                EmitEvent(ref, reason, message, warning=True, throttled=True),
            ),
            facts,
        ),
    )
