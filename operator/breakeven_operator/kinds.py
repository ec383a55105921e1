"""The kinds of the Kubernetes API that the operator reads or writes, the address of one object, and the marks that objects carry.

Marks are labels to find the operator's own objects by, the owner they go with, and the annotations by which people ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

FIELD_MANAGER = "breakeven"
NEXT_MANAGER = "breakeven-next"
"""Field manager of proposals: under the manager of the arm's annotation an apply that holds a proposal alone would remove it."""
NEXT_ANNOTATION = "breakeven.dev/next-rollout"
"""Of a workload: its model, a space, and the value that an admission policy puts into the pod template at the next rollout."""
GROUP = "breakeven.dev"
VERSION = "v1alpha1"


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of the Kubernetes API, as its address needs it; the core's group is empty."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`group/version`, or `version` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def optional(self) -> bool:
        """Whether a cluster may lack the kind: groups of Kubernetes' own kinds of workloads have no dot."""
        return "." in self.group

    @property
    def version_path(self) -> str:
        """The URL path that lists the kinds of its group and version."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """The URL path of the collection, of one object, or of a subresource of it."""
        parts = [self.version_path]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, sub) if part]
        return "/".join(parts)


SERVICES = Resource(GROUP, VERSION, "speculativeservices", "SpeculativeService")
RUNS = Resource(GROUP, VERSION, "calibrationruns", "CalibrationRun")
PROFILES = Resource(GROUP, VERSION, "speculationprofiles", "SpeculationProfile")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
LEADER_WORKER_SETS = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
ARGO_ROLLOUTS = Resource("argoproj.io", "v1alpha1", "rollouts", "Rollout")
LLM_SERVICES = Resource("serving.kserve.io", "v1alpha2", "llminferenceservices", "LLMInferenceService")
INFERENCE_SERVICES = Resource("serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService")
LEADER_SETS = STATEFULSETS
"""Makers of the leaders of groups: one has the name of its LeaderWorkerSet."""
PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
JOBS = Resource("batch", "v1", "jobs", "Job")
CRONJOBS = Resource("batch", "v1", "cronjobs", "CronJob")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
# Whatever of these selects pods must not select a calibration pod.
CORE_SERVICES = Resource("", "v1", "services", "Service")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
POD_MONITORS = Resource("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor")
OWNED = frozenset({RUNS, PROFILES, JOBS, CRONJOBS, SERVICE_ACCOUNTS, ROLE_BINDINGS})
"""Kinds of which the operator creates objects; it changes and deletes only objects it created."""
MADE = OWNED | {SERVICES}
"""Kinds of which it creates and deletes objects: a service that it made is changed by people alone."""


class NamespacedName(NamedTuple):
    """Where one object of a known kind is."""

    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> NamespacedName:
        """The address of an object."""
        return cls(manifest["metadata"]["namespace"], manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Ref:
    """One object. With a uid, an action on a newer object of the same name is refused."""

    resource: Resource
    namespace: str
    name: str
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.resource.kind}/{self.namespace}/{self.name}"


SERVICE_LABEL = "breakeven.dev/service"
RUN_LABEL = "breakeven.dev/run"
ARM_LABEL = "breakeven.dev/arm"
FINISHED_LABEL = "breakeven.dev/finished"
"""On runs that are accounted for; the others are the cycle's list."""
WATCHED_LABEL = "breakeven.dev/watched"
"""On services that were made for a workload's annotation; whoever takes it off keeps the service."""
RESUME_ANNOTATION = "breakeven.dev/resume"
"""On services: a new value hands the target back, ends a back-off and lets barred arms try again."""
RECALIBRATE_ANNOTATION = "breakeven.dev/recalibrate"
"""On services: a new value asks for a calibration."""
MANAGED_BY = {"app.kubernetes.io/managed-by": "breakeven"}
MANAGED_SELECTOR = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())


def owner_reference(owner: Resource, name: str, uid: str) -> dict[str, Any]:
    """Makes the dependent go with its owner; it does not block the owner's deletion, which would need a right on it."""
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def new_object(
    resource: Resource,
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    owner: Mapping[str, Any] | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """An object that is to be made: marked as ours, with its other parts, such as its spec; it goes with its owner if it has one.

    A name that ends in a dash is completed by the API server.
    """
    meta: dict[str, Any] = {
        "generateName" if name.endswith("-") else "name": name,
        "namespace": namespace,
        "labels": {**MANAGED_BY, **labels},
        **({"ownerReferences": [owner]} if owner else {}),
    }
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **parts}


def service_of(run: Mapping[str, Any]) -> str:
    """Name of the service a CalibrationRun belongs to; by its spec, because people make runs without labels."""
    return str(((run.get("spec") or {}).get("serviceRef") or {}).get("name", ""))


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector picks an object with these labels."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for expression in selector.get("matchExpressions") or []:
        key, values = expression["key"], expression.get("values") or []
        holds = {
            "In": labels.get(key) in values and key in labels,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }[expression["operator"]]
        if not holds:
            return False
    return True
