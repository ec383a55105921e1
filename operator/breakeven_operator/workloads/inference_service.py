"""KServe's InferenceServices in Standard mode: a Deployment per service, called `<name>-predictor`.

Facts of its documentation and its source, version 0.20: `spec.predictor.annotations` become annotations of the pod template. In
Knative mode a change makes a new Revision with a Deployment of its own, which is no rolling update.
"""

from __future__ import annotations

from types import MappingProxyType

from breakeven_operator.kinds import INFERENCE_SERVICES
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.deployment import DEPLOYMENT
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
