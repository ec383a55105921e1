"""Argo Rollouts: a ReplicaSet per template, and a roll whose steps, pauses and analyses its user chooses.

Facts of its controller, version 1.10: `status.currentPodHash` is the label of the ReplicaSet of the template that is asked for,
`status.abort` stays until somebody retries or changes the template, and a template that comes back skips the steps.
"""

from __future__ import annotations

from collections.abc import Iterable

from breakeven.serving.rolling import Strategy, stepwise_strategy
from breakeven_operator.kinds import ARGO_ROLLOUTS, REPLICASETS
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.object_facts import owner_uid
from breakeven_operator.workloads.workload_kind import WorkloadKind

_HASH = "rollouts-pod-template-hash"
_UNDECIDED = frozenset({"", "Pending", "Running"})


class ArgoRolloutKind(WorkloadKind):
    """See WorkloadKind."""

    resource = ARGO_ROLLOUTS
    makers = (REPLICASETS,)
    may_borrow = True
    own_writers = frozenset({"rollouts-controller"})
    without_loss = "set maxUnavailable: 0 and maxSurge: 1 in its strategy.canary"

    def newest_revision(self, manifest: Manifest, makers: Iterable[Manifest]) -> str:
        """Name of the ReplicaSet of the template that its controller saw last."""
        newest = (manifest.get("status") or {}).get("currentPodHash")
        own = (one for one in makers if owner_uid(one) == manifest["metadata"]["uid"])
        for one in own:
            if newest and str((one["metadata"].get("labels") or {}).get(_HASH, "")) == newest:
                return str(one["metadata"]["name"])
        return ""

    def held(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.held."""
        if manifest["spec"].get("paused"):
            return "has spec.paused set: kubectl argo rollouts resume it first"
        aborted = self.aborted(manifest)
        return f"{aborted}: kubectl argo rollouts retry or undo it first" if aborted is not None else None

    def waits(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.waits."""
        status = manifest.get("status") or {}
        canary, blue_green = status.get("canary") or {}, status.get("blueGreen") or {}
        if manifest["spec"].get("paused") or status.get("pauseConditions"):
            return "its pause holds it"
        if canary.get("currentExperiment"):
            return "its experiment holds it"
        analyses = (
            canary.get("currentStepAnalysisRunStatus"),
            blue_green.get("prePromotionAnalysisRunStatus"),
            blue_green.get("postPromotionAnalysisRunStatus"),
        )
        undecided = any(one is not None and one.get("status", "") in _UNDECIDED for one in analyses)
        return "its analysis holds it" if undecided else None

    def aborted(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.aborted."""
        return "has aborted its update" if (manifest.get("status") or {}).get("abort") else None

    def borrows(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.borrows."""
        reference = manifest["spec"].get("workloadRef")
        return f"{reference.get('kind')} {reference.get('name')}" if reference else None

    def strategy(self, manifest: Manifest, desired: int) -> Strategy:
        """See WorkloadKind.strategy."""
        return stepwise_strategy(manifest["spec"], desired)


ARGO_ROLLOUT = ArgoRolloutKind()
