"""A workload with its pods at one moment, made once per cycle: its template, pods, strategy, identity, and who owns the annotation."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from statistics import median_low
from typing import Any, Self

from breakeven.phrases import counted
from breakeven.serving.opt_in import ANNOTATION
from breakeven.serving.vllm_versions import TRANSFER_FLAG, hands_caches_on
from breakeven_operator.kinds import FIELD_MANAGER, NEXT_ANNOTATION, NEXT_MANAGER, Ref
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.fingerprint import Identity, identify
from breakeven_operator.workloads.object_facts import (
    Trouble,
    is_finished,
    is_lost,
    owner_of,
    owner_uid,
    parse_time,
    started,
    trouble_of,
    true_since,
    worst,
)
from breakeven_operator.workloads.object_facts import container as container_status
from breakeven_operator.workloads.served_engine import ServedEngine
from breakeven_operator.workloads.workload_kind import ALONE, Workers, WorkloadKind

# No engine takes longer from its node to its first Ready.
_LONGEST_START_S = 3600.0
_AUTOSCALERS = re.compile(r"^kube-controller-manager$|keda|autoscal|\bhpa\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod of a workload.

    Attributes:
        current: of the newest template; only such pods' metrics count.
        startup_s: seconds from being scheduled to the first Ready; None while it is not, and if a probe has missed since.
        image_id: digest of the engine's image as the node resolved it; empty until it runs.
        value: the arm's annotation on the pod; None if absent.
        trouble: why it is not Ready, in the cluster's words; None if it is, or is on its way.
        crashes: how often its engine ended by itself and was started again. crashed: when it last did. started: the last start.
        gpu_product: GPU class of its node; empty while it has none, and if the node's labels name none.
    """

    name: str
    uid: str
    current: bool
    ready_since: datetime | None
    startup_s: float | None
    terminating: bool
    node: str
    image_id: str
    value: str | None
    trouble: Trouble | None = None
    revision: str = ""
    created: datetime | None = None
    crashes: int = 0
    crashed: datetime | None = None
    started: datetime | None = None
    gpu_product: str = ""

    @property
    def ready(self) -> bool:
        """Ready and not on its way out."""
        return self.ready_since is not None and not self.terminating

    @property
    def coming(self) -> bool:
        """Of the newest template, and wanted: its troubles are troubles of a roll."""
        return self.current and not self.terminating


@dataclass(frozen=True)
class Workload:
    """The object that owns vLLM's pods, with these pods, at one moment.

    Attributes:
        engine: the container that runs vLLM; None if none can be singled out.
        max_surge, max_unavailable: pods, resolved from percentages as its controller does.
        held: why its controller would not roll a change to all pods, as a sentence with the way out; None if it would.
        value: the arm's annotation where it is written; None if absent.
        given: the same in the pod template, if that stands in an object that a controller makes.
        value_managers: field managers that own the annotation.
        last_writer: field manager of the newest change of the object by others than its controller and this operator.
        last_write_time: when that was, by the API server's clock; None if managedFields names nobody else.
        workers: of each replica, beside the pod that serves. All counts are of replicas, and `pods` are the pods that serve.
        scaled_by: field manager of the autoscaler that last set the number of replicas; None if none has.
        owner: kind and name of a controller that owns it; None if nobody does.
        pods: existing ones; a pod that has ended is none, nor is a pod of a lost node.
        lost: listed pods of lost nodes, and pods whose deletion is overdue.
        refusal: what its events say about a pod that the API server refuses; empty: nothing.
        returned: whether it has the template of an earlier revision again.
        gpu_products: GPU classes of the nodes on which pods run, sorted.
        gpu_hint: GPU class that the pod template's nodeSelector names; None if it names none.
    """

    kind: WorkloadKind
    ref: Ref
    manifest: Manifest
    template: Manifest
    engine: ServedEngine | None
    generation: int
    observed_generation: int
    desired: int
    total: int
    updated: int
    ready: int
    available: int
    held: str | None
    max_surge: int
    max_unavailable: int
    value: str | None
    given: str | None
    value_managers: tuple[str, ...]
    last_writer: str
    last_write_time: datetime | None
    scaled_by: str | None
    owner: str | None
    pods: tuple[PodState, ...]
    gpu_products: tuple[str, ...]
    gpu_hint: str | None
    lost: tuple[PodState, ...] = ()
    refusal: str = ""
    workers: Workers = ALONE
    returned: bool = False

    @property
    def title(self) -> str:
        """Kind and name."""
        return f"{self.ref.resource.kind} {self.ref.name}"

    @cached_property
    def identity(self) -> Identity | None:
        """The identity that a measurement of its current pods belongs to; of its template if no pod runs yet. None without an engine."""
        if self.engine is None:
            return None
        products = self.gpu_classes or self.gpu_products
        product = products[0] if len(products) == 1 else self.gpu_hint
        # An engine that crashes at its start tells its image's digest, too.
        pods = self.serving or [pod for pod in self.pods if pod.coming]
        images = [pod.image_id for pod in pods if pod.image_id]
        return identify(self.engine, images, product, self.workers)

    @cached_property
    def gpu_classes(self) -> tuple[str, ...]:
        """Known GPU classes of the pods of the newest template, sorted; one for a target that a profile can describe.

        Pods of the template before may run on others during a roll. Labels of a new node come late, so a node without one
        makes no class.
        """
        return tuple(sorted({pod.gpu_product for pod in self.pods if pod.coming} - {""}))

    @cached_property
    def engines(self) -> tuple[ServedEngine, ...]:
        """The engines of a replica that take their arm from the annotation: the serving one, and its workers' engine."""
        beside = ServedEngine.of_workers(self.workers.pod_spec) if self.workers.number else None
        return tuple(one for one in (self.engine, beside) if one is not None)

    @property
    def hands_caches_on(self) -> str | None:
        """The field or flag by which it hands KV caches to other engines or takes theirs; None if it keeps its own."""
        if (field := self.kind.halves(self.manifest)) is not None:
            return field
        return TRANSFER_FLAG if any(hands_caches_on(one.words) for one in self.engines) else None

    @property
    def proven_identity(self) -> Identity | None:
        """The same as serving pods prove it; None before: a profile is looked up for this one alone."""
        return self.identity if self.identifiable else None

    def with_image(self, image: str) -> Self:
        """The workload as it would be with another image of the engine, before any pod of it runs; itself if it has that image."""
        if self.engine is None or self.engine.container.get("image") == image:
            return self
        engine = replace(self.engine, container={**self.engine.container, "image": image})
        return replace(self, engine=engine, pods=(), gpu_products=self.gpu_classes or self.gpu_products)

    @property
    def proposal(self) -> str | None:
        """The text that its next rollout takes an arm from; None if nothing is proposed."""
        return (self.manifest["metadata"].get("annotations") or {}).get(NEXT_ANNOTATION)

    @property
    def created(self) -> datetime | None:
        """When it was made, by the API server's clock."""
        return parse_time(self.manifest["metadata"].get("creationTimestamp"))

    @property
    def pods_kind(self) -> WorkloadKind:
        """The kind whose controller makes its pods."""
        return self.kind.of(self.manifest)[0]

    @property
    def rolled_out(self) -> bool:
        """All pods that the template asks for are available, and no other is wanted; old ones may still drain."""
        return (
            self.observed_generation >= self.generation
            and self.updated == self.desired == self.available == self.total
        )

    @property
    def waits(self) -> str | None:
        """The part of its user's strategy that holds a roll under way, as a clause; None if its controller goes on by itself."""
        waits = self.kind.waits(self.manifest)
        if waits is None and (partition := self.kind.partition(self.manifest)):
            return f"its partition {partition}, which another hand has set, holds it"
        return waits

    @property
    def aborted(self) -> str | None:
        """A sign that its controller has given a roll up, as a clause; None if it has not."""
        return self.kind.aborted(self.manifest)

    @property
    def settled(self) -> bool:
        """Everything the template asks for runs, and nothing of an older template does."""
        return self.rolled_out and not any(pod.terminating or not pod.current for pod in self.pods)

    @property
    def progress(self) -> str:
        """How far the pods of the newest template are, as a clause: `1 of 2 pods run it (1 older, 1 still ending)`."""
        run = f"{len(self.serving)} of {counted(self.desired, 'pod')} {'runs' if self.desired == 1 else 'run'} it"
        old = sum(not pod.current and not pod.terminating for pod in self.pods)
        ending = sum(pod.terminating for pod in self.pods)
        rest = [f"{old} older"] if old else []
        rest += [f"{ending} still ending"] if ending else []
        return f"{run} ({', '.join(rest)})" if rest else run

    @property
    def trouble(self) -> Trouble | None:
        """The trouble that keeps the pods of the newest template from coming; None if the cluster names none."""
        found = [pod.trouble for pod in self.pods if pod.coming]
        if self.updated < self.desired:
            kind, made = self.kind.of(self.manifest)
            found.append(kind.trouble(made, self.refusal))
        return worst(one for one in found if one is not None)

    @property
    def lost_words(self) -> str:
        """The pods that are listed and gone, as the end of a sentence; empty without any."""
        if not self.lost:
            return ""
        first, more = self.lost[0], len(self.lost) - 1
        where = f" on node {first.node}" if first.node else ""
        return f"; pod {first.name}{where} is lost and does not go{f', and {more} more' if more else ''}"

    def blocked_words(self, *, in_vain: bool = False) -> str:
        """The old pods for which its controller waits, and the command that ends it, as the end of a sentence; empty without any.

        A controller that goes on when all pods are Ready waits for a broken pod too, of which the template asks no more.
        `in_vain` counts all old pods that are not Ready, otherwise only pods whose trouble the cluster names.
        """
        kind, made = self.kind.of(self.manifest)
        if self.observed_generation < self.generation or not kind.waits_for_ready(made):
            return ""
        names = [
            pod.name
            for pod in self.pods
            if not pod.current
            and not pod.ready
            and not pod.terminating
            and (in_vain or pod.trouble is not None)
        ]
        if not names:
            return ""
        found = next(pod.trouble for pod in self.pods if pod.name == names[0])
        return (
            f"; its controller replaces no pod while {names[0]} of an older template is not Ready"
            f"{f' ({found.message})' if found is not None else ''}, so delete it: "
            f"kubectl delete pod {' '.join(names)} --namespace {self.ref.namespace}"
        )

    @property
    def serving(self) -> tuple[PodState, ...]:
        """Ready pods of the newest template."""
        return tuple(pod for pod in self.pods if pod.current and pod.ready)

    @property
    def newest_revision(self) -> str | None:
        """Name of the revision of the template as it stands; None before the first pod of it exists."""
        if self.observed_generation < self.generation:
            return None
        return next((pod.revision for pod in self.pods if pod.current and pod.revision), None)

    @property
    def identifiable(self) -> bool:
        """Ready pods run the template as it stands, on one GPU class: only they tell that class and the image's digest.

        Between a change of the template and its controller's first pod of it, pods of the template before would pass for the
        newest ones.
        """
        known = self.observed_generation >= self.generation and bool(self.serving)
        return known and len(self.gpu_classes) < 2

    @property
    def startup_s(self) -> float | None:
        """A middle one of the measured starts of current pods, s."""
        known = [pod.startup_s for pod in self.pods if pod.current and pod.startup_s is not None]
        return median_low(known) if known else None

    @property
    def grace_s(self) -> float:
        """The pods' termination grace period, s."""
        return float(self.template["spec"].get("terminationGracePeriodSeconds", 30))


@dataclass(frozen=True, slots=True)
class NearbyObjects:
    """The objects around a workload.

    Attributes:
        makers: objects of `WorkloadKind.makers` of its namespace (metadata suffices); makers of others are skipped.
        pods: pods of its namespace; pods of others are skipped.
        lost_nodes: names of nodes whose kubelet does not say that it is Ready.
        warnings: what events say of pods that have a node and no container, and of the workload, by uid.
    """

    makers: Iterable[Manifest] = ()
    pods: Iterable[Manifest] = ()
    node_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lost_nodes: Collection[str] = ()
    warnings: Mapping[str, str] = field(default_factory=dict)


def observe(
    kind: WorkloadKind,
    manifest: Manifest,
    around: NearbyObjects,
    *,
    container_name: str | None,
    gpu_label: str,
    now: datetime,
) -> Workload:
    """Put a workload and the objects around it together; without the engine's `container_name` the template shows it."""
    meta, makers, (pods_kind, made) = manifest["metadata"], tuple(around.makers), kind.of(manifest)
    template = pods_kind.template(made)
    engine = ServedEngine.of(template, container_name)
    newest, owners = pods_kind.newest_revision(made, makers), pods_kind.owners(made, makers)
    pods, lost = _pods(pods_kind, owners, newest, engine, around, now)
    counts = pods_kind.counts(made)
    surge, unavailable = pods_kind.strategy(made, counts.desired)
    written, writer = _last_write(meta, kind.own_writers)
    pods = tuple(
        replace(pod, gpu_product=around.node_labels.get(pod.node, {}).get(gpu_label, "")) for pod in pods
    )
    products = {pod.gpu_product for pod in pods if pod.node and not pod.terminating}
    return Workload(
        kind=kind,
        ref=Ref(kind.resource, meta["namespace"], meta["name"], meta["uid"]),
        manifest=manifest,
        template=template,
        engine=engine,
        generation=int(meta.get("generation", 0)),
        observed_generation=kind.observed_generation(manifest),
        **counts._asdict(),
        held=kind.held(manifest),
        max_surge=surge,
        max_unavailable=unavailable,
        value=kind.value_of(manifest),
        given=pods_kind.value_of(made),
        value_managers=kind.value_managers(manifest),
        last_writer=writer,
        last_write_time=parse_time(written),
        scaled_by=_autoscaler(made["metadata"]),
        owner=f"{owner['kind']} {owner['name']}" if (owner := owner_of(manifest)) else None,
        pods=pods,
        gpu_products=tuple(sorted(product for product in products if product)),
        gpu_hint=(template["spec"].get("nodeSelector") or {}).get(gpu_label),
        lost=lost,
        refusal=next((around.warnings[uid] for uid in (meta["uid"], *owners) if uid in around.warnings), ""),
        workers=pods_kind.workers(made),
        returned=kind.returned(manifest, makers),
    )


def _pods(
    kind: WorkloadKind,
    owners: Collection[str],
    newest: str,
    engine: ServedEngine | None,
    around: NearbyObjects,
    now: datetime,
) -> tuple[tuple[PodState, ...], tuple[PodState, ...]]:
    """The workload's pods by name, and pods that are listed and gone."""
    name = engine.name if engine is not None else ""
    devices = engine.devices.resources if engine is not None else ()
    listed = sorted(
        (pod for pod in around.pods if owner_uid(pod) in owners and not is_finished(pod)),
        key=lambda pod: str(pod["metadata"]["name"]),
    )
    states: list[PodState] = []
    lost: list[PodState] = []
    for pod in listed:
        warning = around.warnings.get(pod["metadata"]["uid"], "")
        revision = kind.revision_of(pod)
        state = _pod(
            pod, revision, current=revision == newest, container=name, devices=devices, warning=warning
        )
        (lost if is_lost(pod, around.lost_nodes, now) else states).append(state)
    return tuple(states), tuple(lost)


def _autoscaler(meta: Mapping[str, Any]) -> str | None:
    """Field manager of the number of replicas, if it was set as autoscalers set it: by the subresource `scale`.

    Kubernetes' own autoscaler writes as the controller manager, for KEDA too; `kubectl scale` uses the same subresource.
    Nothing else has to be read, and no right to read autoscalers is needed.
    """
    for entry in meta.get("managedFields") or []:
        fields: Any = entry.get("fieldsV1") or {}
        manager = str(entry.get("manager", ""))
        if (
            entry.get("subresource") == "scale"
            and "f:replicas" in (fields.get("f:spec") or {})
            and _AUTOSCALERS.search(manager)
        ):
            return manager
    return None


def _last_write(meta: Mapping[str, Any], own: Collection[str]) -> tuple[str, str]:
    """Time and name of the newest entry of a writer who is neither this one nor the controller; one that only took fields away has none."""
    entries = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in meta.get("managedFields") or []
        if not entry.get("subresource") and entry.get("manager") not in {FIELD_MANAGER, NEXT_MANAGER, *own}
    ]
    return max(entries, default=("", ""))


def _pod(
    pod: Manifest, revision: str, *, current: bool, container: str, devices: Collection[str], warning: str
) -> PodState:
    meta, spec = pod["metadata"], pod.get("spec") or {}
    ready_since, start = true_since(pod, "Ready"), true_since(pod, "PodScheduled")
    engine = container_status(pod, container)
    ended = (
        (engine.get("state") or {}).get("terminated")
        or (engine.get("lastState") or {}).get("terminated")
        or {}
    )
    # A restarted container, or a probe that missed, makes a pod Ready long after it was scheduled: that is no start-up time.
    start_s = (ready_since - start).total_seconds() if ready_since and start else math.inf
    fresh = int(engine.get("restartCount", 0)) == 0 and start_s <= _LONGEST_START_S
    return PodState(
        name=meta["name"],
        uid=meta["uid"],
        current=current,
        ready_since=ready_since,
        startup_s=start_s if fresh else None,
        terminating="deletionTimestamp" in meta,
        node=str(spec.get("nodeName", "")),
        image_id=str(engine.get("imageID", "")),
        value=(meta.get("annotations") or {}).get(ANNOTATION),
        trouble=trouble_of(pod, devices, warning) if ready_since is None else None,
        revision=revision,
        created=parse_time(meta.get("creationTimestamp")),
        crashes=int(engine.get("restartCount", 0)),
        # An engine that was asked to stop, and did, has not crashed.
        crashed=parse_time(ended.get("finishedAt")) if ended.get("exitCode") else None,
        started=started(pod, container),
    )
