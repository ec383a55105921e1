"""KServe's kinds. An InferenceService in Standard mode makes a Deployment `<name>-predictor`.

An LLMInferenceService makes a Deployment on single nodes, a LeaderWorkerSet with `spec.worker`. Facts of KServe's documentation and
source, version 0.20: `spec.predictor.annotations` (`spec.annotations` of an LLMInferenceService) become annotations of the pod
template, whose presets start vLLM and drain it. In Knative mode a change makes a new Revision with a Deployment of its own, which is
no rolling update. The child is compared with what the controller would make of the parent by the fields that the parent has. So a
key that is removed from the parent stays in the child.
"""

from __future__ import annotations

from types import MappingProxyType

from breakeven_operator.kinds import INFERENCE_SERVICES, LLM_SERVICES
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.deployment import DEPLOYMENT
from breakeven_operator.workloads.leader_worker_set import LEADER_WORKER_SET
from breakeven_operator.workloads.owning_kind import OwningKind

_MODE = "serving.kserve.io/deploymentMode"
_REVISIONS = frozenset({"Knative", "Serverless"})


class InferenceServiceKind(OwningKind):
    """See OwningKind."""

    resource = INFERENCE_SERVICES
    made_as = MappingProxyType({"-predictor": DEPLOYMENT})
    annotated = ("spec", "predictor", "annotations")

    def held(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.held."""
        if manifest["spec"]["predictor"].get("workerSpec") is not None:
            return "has spec.predictor.workerSpec, with which each engine runs in pods of two Deployments: use mode Recommend"
        return super().held(manifest)

    def unmade(self, parent: Manifest) -> str:
        """See OwningKind.unmade."""
        asked = (parent["metadata"].get("annotations") or {}).get(_MODE)
        mode = asked or (parent.get("status") or {}).get("deploymentMode")
        if mode in _REVISIONS:
            return (
                f"its deployment mode is {mode}, in which each change makes a new Revision: name the newest Revision's Deployment as "
                f"the target, in mode Recommend, or set the annotation {_MODE}: Standard"
            )
        return super().unmade(parent)


INFERENCE_SERVICE = InferenceServiceKind()
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
