"""KServe's LLMInferenceServices: a Deployment on single nodes, a LeaderWorkerSet with `spec.worker`.

Facts of its controller, version 0.20: `spec.annotations` become annotations of the pod template, presets start vLLM and drain it.
It compares its child with what it would make of the parent by the fields that the parent has. So a key that is removed from the
parent stays in the child.
"""

from __future__ import annotations

from types import MappingProxyType

from breakeven_operator.kinds import LLM_SERVICES
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.deployment import DEPLOYMENT
from breakeven_operator.workloads.leader_worker_set import LEADER_WORKER_SET
from breakeven_operator.workloads.owning_kind import OwningKind

_STOPPED = "serving.kserve.io/stop"


class LlmInferenceServiceKind(OwningKind):
    """See OwningKind."""

    resource = LLM_SERVICES
    other_versions = ("serving.kserve.io/v1alpha1",)
    made_as = MappingProxyType({"-kserve": DEPLOYMENT, "-kserve-mn": LEADER_WORKER_SET})
    annotated = ("spec", "annotations")

    def unmade(self, parent: Manifest) -> str:
        """See OwningKind.unmade."""
        if (parent["metadata"].get("annotations") or {}).get(_STOPPED) == "true":
            return f"it is stopped by the annotation {_STOPPED}"
        return super().unmade(parent)

    def halves(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.halves."""
        return "spec.prefill" if manifest["spec"].get("prefill") is not None else None


LLM_INFERENCE_SERVICE = LlmInferenceServiceKind()
