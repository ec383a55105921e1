"""What the operator may do, as data: a decision ends in a Plan, which can be printed, compared and tested.

The list of actions is the list of the operator's powers. `WriteAnnotation` is the only one that touches an object of
the user's; `Create`, `Apply` and `Delete` take only kinds of which the operator owns every object it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

FIELD_MANAGER = "breakeven"
GROUP = "breakeven.dev"
VERSION = "v1alpha1"


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of the Kubernetes API, as its address needs it.

    Attributes:
        group: API group; empty for the core.
        namespaced: False for Nodes.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`group/version`, or `version` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """The URL path of the collection, of one object, or of a subresource of it."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, sub) if part]
        return "/".join(parts)


SERVICES = Resource(GROUP, VERSION, "speculativeservices", "SpeculativeService")
RUNS = Resource(GROUP, VERSION, "calibrationruns", "CalibrationRun")
PROFILES = Resource(GROUP, VERSION, "speculationprofiles", "SpeculationProfile")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
JOBS = Resource("batch", "v1", "jobs", "Job")
CRONJOBS = Resource("batch", "v1", "cronjobs", "CronJob")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
# Whatever of these selects pods must not select a calibration pod.
CORE_SERVICES = Resource("", "v1", "services", "Service")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
POD_MONITORS = Resource("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor")

OWNED = frozenset({RUNS, PROFILES, JOBS, CRONJOBS, SERVICE_ACCOUNTS, ROLE_BINDINGS})
"""Kinds of which the operator creates objects; it changes and deletes only objects it created."""


@dataclass(frozen=True, slots=True)
class Ref:
    """One object. With a uid, an action on a newer object of the same name is refused."""

    resource: Resource
    namespace: str
    name: str
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.resource.kind}/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class WriteAnnotation:
    """Set the arm of a workload: one pod-template annotation by server-side apply, then read it back.

    Attributes:
        target: the Deployment.
        value: the arm's JSON, or `null` for no speculation; never empty. None gives the key up, which undoes a first
            write: the pods that ran before it are the ones of that template, and none need start anew.
        force: take the field from another manager; only after a person asked for it.
    """

    target: Ref
    value: str | None
    force: bool = False


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Server-side apply of the whole status that field manager `breakeven` owns of one of our kinds.

    Fields owned by this manager and absent here are removed; fields of other managers (the trial's points) stay.

    Attributes:
        resource_version: when given, the write fails if the object has changed since it was read.
        manager: field manager; a second one where two parts of the operator write different fields of one object.
    """

    ref: Ref
    status: Mapping[str, Any]
    resource_version: str | None = None
    manager: str = FIELD_MANAGER


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """An Event on one of our objects; `reason` is a reason word, `message` a whole sentence.

    Attributes:
        throttled: said at most once in a while for the same object and reason, however often it comes and goes.
    """

    ref: Ref
    reason: str
    message: str
    warning: bool = False
    throttled: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object of an owned kind from a full manifest; one that exists already counts as done."""

    resource: Resource
    body: Mapping[str, Any]

    def __post_init__(self) -> None:
        _require_owned(self.resource)


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of an object of an owned kind from a full manifest (creates it when absent)."""

    resource: Resource
    body: Mapping[str, Any]

    def __post_init__(self) -> None:
        _require_owned(self.resource)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one object of an owned kind with its dependents; one that is gone already counts as done."""

    ref: Ref

    def __post_init__(self) -> None:
        _require_owned(self.ref.resource)


@dataclass(frozen=True, slots=True)
class Fit:
    """Fit the points of a finished sweep in a child process (`breakeven fit`).

    Attributes:
        run: the CalibrationRun; its outcome goes to `calibration.conclude`.
        points_csv: a points file as the command line reads it.
        arguments: further command line arguments (`--confidence`, `0.9`).
    """

    run: Ref
    points_csv: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FitOutcome:
    """What the child process said: the profile's JSON text, or one line why there is none."""

    profile_json: str | None
    error: str | None


Action: TypeAlias = WriteAnnotation | WriteStatus | EmitEvent | Create | Apply | Delete | Fit


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about one object this cycle, and what to say about it.

    Attributes:
        subject: the SpeculativeService or CalibrationRun.
        actions: in order; when one fails the rest waits for the next cycle, so put what must be durable first.
        facts: the canonical log line of the cycle: small JSON values only, `reason` among them.
    """

    subject: Ref
    actions: tuple[Action, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def _require_owned(resource: Resource) -> None:
    if resource not in OWNED:
        raise ValueError(f"the operator does not own objects of kind {resource.kind}")
