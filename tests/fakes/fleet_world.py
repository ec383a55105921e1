"""A whole operator in memory: fake cluster, kubelet and Prometheus around the real fleet loop, decisions and writer."""

from __future__ import annotations

import asyncio
import copy
import copyreg
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from prometheus_client import CollectorRegistry

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.laws.latency import open_loop_latency
from breakeven_operator.actions import FitOutcome
from breakeven_operator.cluster.cluster_objects import (
    ClusterObjects,
    file_profile,
)
from breakeven_operator.cluster.fitter import FitTurns
from breakeven_operator.cluster.observer import Observer, joined_targets
from breakeven_operator.cluster.prometheus_answers import PrometheusReader, QueryLimits
from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.cluster.watched_objects import WatchedObjects
from breakeven_operator.cluster.writer import DryRun, Writer
from breakeven_operator.kinds import (
    CLAIMS,
    DEPLOYMENTS,
    EVENTS,
    LEADER_WORKER_SETS,
    NODES,
    PODS,
    PROFILES,
    SERVICES,
    STATEFULSETS,
    Ref,
)
from breakeven_operator.loop.cycle import Reconciler
from breakeven_operator.packed import joined, pack, unpack
from breakeven_operator.ports import PrometheusAccess
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.candidates import Candidates
from breakeven_operator.resources.updatepolicy import Timing
from breakeven_operator.serve.telemetry import Telemetry
from breakeven_operator.settings import Settings
from breakeven_operator.step import ProfileEntry
from breakeven_operator.workloads.known import KINDS, made_of
from breakeven_operator.workloads.object_facts import node_is_lost
from breakeven_operator.workloads.workload import NearbyObjects, observe
from fakes.api_server import FakeCluster
from fakes.fleet_metrics import FakePrometheus
from fakes.kopf_in_memory import FedObjects
from fakes.kubelet import FakeKubelet
from fakes.lawful_profile import lawful_profile_json
from fakes.load_course import CoursePart, played
from fakes.manual_clock import FakeClock
from fakes.notes import memory_of
from fakes.scheduling import claims_of

GPU = "NVIDIA-A100-SXM4-80GB"
EAGLE = Arm("eagle3", 3, "eagle")
VALUE = '{"method":"eagle3","model":"org/head","num_speculative_tokens":3}'
"""The annotation's value of EAGLE."""

# none against eagle: C1R 0.5, C2R 1.6, break-even 9.1 rps per replica, saturation 20 and 12.5 rps.
LAWS = {NO_SPECULATION: (1.0, 0.05), EAGLE: (0.5, 0.08)}
BREAK_EVEN_RPS = (1.0 - 0.5) / (0.08 - 0.5 * 0.05)

TARGET = yaml.safe_load("""
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat-vllm, namespace: llm}
spec:
  replicas: 2
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector: {matchLabels: {app: chat-vllm}}
  template:
    metadata: {labels: {app: chat-vllm}, annotations: {prometheus.io/scrape: "true"}}
    spec:
      terminationGracePeriodSeconds: 150
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        args: [org/model, --served-model-name=chat, --shutdown-timeout=120, "--speculative-config=$(BREAKEVEN_SPECULATIVE_CONFIG)"]
        env:
        - name: BREAKEVEN_SPECULATIVE_CONFIG
          valueFrom: {fieldRef: {fieldPath: "metadata.annotations['breakeven.dev/speculative-config']"}}
        resources: {limits: {nvidia.com/gpu: 1}}
        lifecycle: {preStop: {sleep: {seconds: 10}}}
""")

SERVICE = yaml.safe_load("""
apiVersion: breakeven.dev/v1alpha1
kind: SpeculativeService
metadata: {name: chat, namespace: llm}
spec:
  targetRef: {name: chat-vllm}
  updatePolicy: {mode: RollingUpdate, cooldownSeconds: 600, stabilizationWindowSeconds: 60, lookbackSeconds: 0}
  candidates: {methods: [{name: eagle, method: eagle3, model: org/head, draftLengths: [3], schedule: Never, adaptiveVerification: Never}]}
  calibration: {answers: {check: Warn}}
""")

TIMING = Timing(backoff_seconds=300)
"""Times of the installation: a pause after an undone roll that tests can wait for, else production's."""


def as_stateful_set(deployment: dict[str, Any]) -> dict[str, Any]:
    """The same pods as a StatefulSet, with what the API server fills in."""
    spec = {name: value for name, value in deployment["spec"].items() if name != "strategy"}
    spec |= {
        "serviceName": deployment["metadata"]["name"],
        "podManagementPolicy": "OrderedReady",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
    }
    return {**copy.deepcopy(deployment), "kind": "StatefulSet", "spec": copy.deepcopy(spec)}


def as_leader_worker_set(deployment: dict[str, Any]) -> dict[str, Any]:
    """The same pods as groups of one, with what the API server fills in."""
    spec = {
        "replicas": deployment["spec"]["replicas"],
        "leaderWorkerTemplate": {"size": 1, "workerTemplate": deployment["spec"]["template"]},
        "rolloutStrategy": {
            "rollingUpdateConfiguration": {"partition": 0, "maxSurge": 0, "maxUnavailable": 1}
        },
    }
    return copy.deepcopy(
        {
            **deployment,
            "apiVersion": LEADER_WORKER_SETS.api_version,
            "kind": LEADER_WORKER_SETS.kind,
            "spec": spec,
        }
    )


class RecordedFits:
    """The `Fitter` port: returns the fits that a test gave it."""

    def __init__(self) -> None:
        self.outcome = FitOutcome(None, "no fit in this test")

    async def fit(self, points_csv: str, arguments: Sequence[str]) -> FitOutcome:
        return self.outcome


class FleetObjects(ClusterObjects):
    """Lists at every reading, and reads each version of a profile once, as the watch does."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster, ())
        self._filed: dict[tuple[str, str], ProfileEntry] = {}

    async def profiles(self) -> list[ProfileEntry]:
        before, self._filed = self._filed, {}
        for manifest in await self.read(PROFILES):
            version = manifest["metadata"]["uid"], manifest["metadata"]["resourceVersion"]
            self._filed[version] = before.get(version) or file_profile(manifest)
        return list(self._filed.values())


def _over(task: asyncio.Task[None]) -> str:
    """A task that is over is the same in a copy: of a question for which no cycle waits one is left."""
    assert task.done(), task
    return "over"


copyreg.pickle(asyncio.Task, _over)


class CycleReport(NamedTuple):
    """Services that a cycle left, and plans that it did not carry out to their end."""

    left: int
    errors: list[str]


class FleetWorld:
    """A cluster with one serving target and one service.

    Attributes:
        laws: C1 and C2 (s) that the pods of each arm have. laws_on: those of pods on nodes of another GPU class.
        loaded_s, loaded_tokens: latency (s) and tokens per step that the last `load` set.
        leads: whether the writer may act.
        shown: lines of a dry run.
        pods_per_query: fleets of more are read by ReplicaSet.
        max_parallel_rolls, max_parallel_calibrations: of the operator's settings.
        timing: of the operator's settings, from the next `restart` on.
        kind: of the target: a Deployment, `stateful`, `grouped`, or what `form` makes of the Deployment.
        watched: objects are read by watches after the next `restart`; other people's changes then come by no watch.
        watching: settings of services that are made for annotated workloads, from the next `restart` on; empty: none are.
        left: what the last cycle showed: its world, and the services as it left them; None before the first one.
    """

    def __init__(
        self,
        edit: Callable[[dict[str, Any]], None] = lambda _spec: None,
        target: Callable[[dict[str, Any]], None] = lambda _target: None,
        *,
        dry_run: bool = False,
        pods_per_query: int = 500,
        max_parallel_rolls: int = 3,
        max_parallel_calibrations: int = 1,
        stateful: bool = False,
        grouped: bool = False,
        form: Callable[[dict[str, Any]], dict[str, Any]] = copy.deepcopy,
        timing: Timing = TIMING,
    ) -> None:
        if stateful or grouped:
            form = as_leader_worker_set if grouped else as_stateful_set
        deployment = form(TARGET)
        self.kind = next(one for one in KINDS if one.kind == deployment["kind"])
        self.max_parallel_rolls = max_parallel_rolls
        # A test says what it is about; the other times stay those of these tests.
        self.timing = TIMING.replace(**timing.model_dump(exclude_unset=True))
        self.max_parallel_calibrations = max_parallel_calibrations
        self.clock = FakeClock()
        self.cluster = FakeCluster(self.clock)
        self.kubelet = FakeKubelet(self.cluster, self.clock)
        self.prometheus = FakePrometheus(
            self.cluster, self.clock, latency_of=self._latency_of, tokens_of=self._tokens_of
        )
        self.laws = dict(LAWS)
        self.laws_on: dict[str, dict[Arm, tuple[float, float]]] = {}
        self.loaded_s: float | None = None
        self.loaded_tokens: float | None = None
        self.fits = RecordedFits()
        self.leads = True
        self.shown: list[str] = []
        self.dry_run = dry_run
        self.pods_per_query = pods_per_query
        self.watched = False
        self.watching: dict[str, Any] = {}
        self.takes_proposals = True
        self.left: tuple[Snapshot, Sequence[SpeculativeService]] | None = None
        self.add_node("a100-0")
        target(deployment)
        made = KINDS[self.kind].made_as
        for name in claims_of(KINDS[self.kind].template(deployment)["spec"]) if not made else ():
            # The access mode of most storage classes.
            claim = {
                "metadata": {"name": name, "namespace": "llm"},
                "spec": {"accessModes": ["ReadWriteOnce"]},
            }
            self.cluster.put(CLAIMS, claim)
        self.cluster.put(self.kind, deployment, manager="helm")
        self.kubelet.settle()
        self.clock.advance(1000.0)
        service = copy.deepcopy(SERVICE)
        service["spec"]["targetRef"] |= {"apiVersion": self.kind.api_version, "kind": self.kind.kind}
        edit(service["spec"])
        self.cluster.put(SERVICES, service)
        self.restart()

    def add_node(self, name: str, *, gpus: int | None = None, product: str = GPU) -> None:
        """A node with so many GPUs, or with room for everything."""
        labels = {"nvidia.com/gpu.product": product}
        status: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "True"}]}
        if gpus is not None:
            status["allocatable"] = {"nvidia.com/gpu": str(gpus)}
        self.cluster.put(NODES, {"metadata": {"name": name, "labels": labels}, "status": status})

    def restart(self) -> None:
        """A new operator process: nothing but the cluster is left."""
        self.registry = CollectorRegistry()
        self.telemetry = Telemetry(self.registry)
        objects: ClusterObjects = FleetObjects(self.cluster)
        if self.watched:
            own = FedObjects(self.cluster, self.clock)
            objects = WatchedObjects(self.cluster, self.clock, own, relist_s=3600.0)
        answers = PrometheusReader(
            self.prometheus,
            self.clock,
            default_source=PrometheusAccess("http://prometheus:9090"),
            limits=QueryLimits(pods_per_query=self.pods_per_query),
        )
        self.observer = Observer(self.cluster, self.clock, objects, answers, self._settings())
        writer = (
            DryRun(self.shown.append)
            if self.dry_run
            else Writer(
                self.cluster,
                FitTurns(self.fits, self.clock),
                self.clock,
                objects,
                may_act=self._may_act,
                reporter="test",
            )
        )
        self.fleet = Reconciler(
            self.clock,
            self.observer,
            writer,
            self.telemetry,
            self._settings(),
            self._left_by_cycle,
        )

    def _settings(self) -> Settings:
        given: dict[str, Any] = {
            "trial_image": "breakeven:test",
            "max_parallel_rolls": self.max_parallel_rolls,
            "max_parallel_calibrations": self.max_parallel_calibrations,
            "timing": self.timing,
            "next_rollout": "true" if self.takes_proposals else "false",
        }
        return Settings().model_copy(update=given | self.watching)

    def _left_by_cycle(self, world: Snapshot, services: Sequence[SpeculativeService]) -> None:
        self.left = world, services

    def _may_act(self) -> bool:
        return self.leads

    def copied(self) -> FleetWorld:
        """Another world in the same state, at a hundredth of what it takes to get there again; its gauges are new."""
        assert not self.dry_run, "what is shown would go to the first one"
        registry = CollectorRegistry()
        anew = {self.registry: registry, self.telemetry: Telemetry(registry)}
        return copy.deepcopy(self, {id(old): new for old, new in anew.items()})

    def add_services(self, count: int, **policy: Any) -> None:
        """More services, `service-00` and so on, each with a serving target of its own: `vllm-00`."""
        for number in range(count):
            target, service = copy.deepcopy(TARGET), copy.deepcopy(SERVICE)
            target["metadata"]["name"] = service["spec"]["targetRef"]["name"] = f"vllm-{number:02}"
            service["metadata"]["name"] = f"service-{number:02}"
            service["spec"]["updatePolicy"].update(policy)
            self.cluster.put(DEPLOYMENTS, target, manager="helm")
            self.cluster.put(SERVICES, service)
        self.kubelet.settle()
        self.clock.advance(1000.0)

    async def cycle(self, seconds: float = 15.0) -> CycleReport:
        """One cycle after some time in which pods start and stop."""
        for _ in range(max(1, round(seconds / 5))):
            self.clock.advance(5.0)
            self.kubelet.step()
        left = await self.fleet.cycle()
        return CycleReport(left, list(self.fleet.errors))

    async def until(self, done: Callable[[], bool], *, cycles: int = 120) -> None:
        """Cycles until something holds; fails when it does not."""
        for _ in range(cycles):
            if done():
                return
            await self.cycle()
        raise AssertionError(f"not within {cycles} cycles; decision: {self.decision}")

    def calibrate(
        self,
        *,
        name: str = "chat-p1",
        fingerprint: str | None = None,
        arms: Iterable[Arm] = LAWS,
        profile: str | None = None,
        product: str = GPU,
    ) -> None:
        """Put an accepted profile of the target on a GPU class there: of LAWS, unless its JSON is given."""
        target = self.target
        spec = {
            "serviceRef": {"name": "chat"},
            "gpuProduct": product,
            "fingerprint": fingerprint or target.identity.fingerprint,
            "createdTime": self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            "profile": profile or profile_json(tuple(arms)),
            "model": target.identity.model,
            "image": target.engine.container["image"],
            "arms": [one for arm in arms if (one := self._measured(arm)) is not None],
        }
        self.cluster.put(
            PROFILES,
            {
                "apiVersion": "breakeven.dev/v1alpha1",
                "kind": "SpeculationProfile",
                "metadata": {"name": name, "namespace": target.ref.namespace},
                "spec": spec,
            },
        )

    def _measured(self, arm: Arm) -> dict[str, Any] | None:
        """An arm of a profile as a calibration writes it: with the drafter that the spec names now."""
        services = {one["metadata"]["name"]: one for one in self.cluster.of(SERVICES)}
        service = services.get("chat", next(iter(services.values())))
        method = Candidates.read(service["spec"]["candidates"], "candidates").method_of(arm)
        if method is None:
            return None
        return {
            "arm": arm.name,
            "points": 6,
            "drafter": method.drafter,
        }

    async def speculate(self, *, judged: bool = True) -> None:
        """Low load, a profile, and the roll to speculation that follows; its judgement too, unless that is left to come."""
        self.calibrate()
        self.load(3.0)
        await self.until(lambda: self.phase == "Confirming")
        if judged:
            self.load(3.0)
            await self.until(lambda: self.phase is None)

    async def confirmed_roll(self) -> dict[str, Any]:
        """The entry of the first roll, after every pod was replaced and measured, and it kept its promise."""
        before = {pod["metadata"]["uid"] for pod in self.cluster.of(PODS)}
        await self.until(lambda: self.phase == "Confirming")
        self.load(3.0)
        await self.until(lambda: self.phase is None)
        assert before.isdisjoint(pod["metadata"]["uid"] for pod in self.cluster.of(PODS))
        entry: dict[str, Any]
        (entry,) = self.whole["history"]
        assert (entry["result"], entry["fromArm"], entry["toArm"]) == ("Confirmed", "none", "eagle/3")
        assert abs(float(entry["measuredSpeedup"]) / float(entry["predictedSpeedup"]) - 1) < 0.05
        assert self.rolls == [("apply", self.kind.plural, "chat-vllm")]
        return entry

    async def goes_back(self) -> None:
        """Speculate with six replicas, and leave it beyond the break-even."""
        self.service["spec"]["updatePolicy"]["maxUtilizationPercent"] = 95
        await self.speculate()
        self.load(9.3)
        await self.until(lambda: self.value == "null")
        await self.until(lambda: self.phase == "Confirming")
        assert self.whole["current"]["podsByArm"] == [{"arm": "none", "pods": 6}]

    def load(self, rps: float) -> None:
        """Every pod gets this rate, and answers with the latency of the arm it runs."""
        arm = EAGLE if self.value not in {None, "null"} else NO_SPECULATION
        _, c2_s = self.laws[arm]
        traffic = self.prometheus.traffic
        if self.loaded_s is not None:
            # Counts until now belong to the load before.
            self.prometheus.count()
        traffic.rps, traffic.answered_share = rps, min(1.0, 1 / c2_s / max(rps, 1e-9))
        traffic.latency_s = self.loaded_s = self.lawful_s(arm, rps)
        traffic.tokens_per_step = self.loaded_tokens = 2.5 if arm == EAGLE else 1.0

    def play(self, *stretches: CoursePart, seed: int = 0, patience_s: float = math.inf) -> None:
        """From now on every pod goes through this course of load on the arm in place."""
        arm = EAGLE if self.value not in {None, "null"} else NO_SPECULATION
        begins_s = self.clock.now().timestamp()
        course = played(self.laws[arm], stretches, begins_s, seed=seed, patience_s=patience_s)
        self.prometheus.course = course
        self.prometheus.traffic.came_at_s, self.prometheus.traffic.scrape_s = course.came_at_s, 5.0

    def lawful_s(self, arm: Arm, rps: float, product: str = GPU) -> float:
        """Latency (s) of an arm at a rate, by its law."""
        c1_s, c2_s = self.laws_on.get(product, self.laws)[arm]
        return float(open_loop_latency(c1_s, c2_s, rps)) if rps * c2_s < 0.95 else 30.0

    def _latency_of(self, pod: dict[str, Any]) -> float | None:
        """Of a pod's own arm; where a test has set the latency by hand, of the pods that run the target's template."""
        value = (pod["metadata"].get("annotations") or {}).get("breakeven.dev/speculative-config")
        traffic = self.prometheus.traffic
        if self.loaded_s is None or (traffic.latency_s != self.loaded_s and value == self.value):
            return None
        arm = EAGLE if value not in {None, "null"} else NO_SPECULATION
        product = self.products.get(pod["spec"].get("nodeName", ""), GPU)
        return self.lawful_s(arm, self.prometheus.reached_rps(pod), product)

    @property
    def products(self) -> dict[str, str]:
        """GPU classes by node, of those whose labels name one."""
        label = "nvidia.com/gpu.product"
        labels = {
            node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in self.cluster.of(NODES)
        }
        return {name: found[label] for name, found in labels.items() if label in found}

    def _tokens_of(self, pod: dict[str, Any]) -> float | None:
        """Of a pod's own arm, unless a test has set the tokens per step, or the load of this pod, by hand."""
        if pod["metadata"]["name"] in self.prometheus.by_pod:
            return None
        if self.prometheus.traffic.tokens_per_step != self.loaded_tokens:
            return None
        value = (pod["metadata"].get("annotations") or {}).get("breakeven.dev/speculative-config")
        return 2.5 if value not in {None, "null"} else 1.0

    @property
    def target(self) -> Any:
        """The target as the operator sees it."""
        from breakeven_operator.kinds import REPLICASETS

        makers = [*self.cluster.of(REPLICASETS), *self.cluster.of(STATEFULSETS)]
        asked = Ref(self.kind, "llm", "chat-vllm")
        keys = {ref: (ref.resource.plural, "llm", ref.name) for ref in (asked, *made_of(asked))}
        shown = {ref: self.cluster.shown(key) for ref, key in keys.items() if key in self.cluster.objects}
        return observe(
            KINDS[self.kind],
            joined_targets([asked], shown)[0][asked],
            NearbyObjects(
                makers,
                self.cluster.of(PODS),
                {name: {"nvidia.com/gpu.product": product} for name, product in self.products.items()},
                [node["metadata"]["name"] for node in self.cluster.of(NODES) if node_is_lost(node)],
            ),
            container_name=None,
            gpu_label="nvidia.com/gpu.product",
            now=self.clock.now(),
        )

    @property
    def service(self) -> dict[str, Any]:
        return self.cluster.objects["speculativeservices", "llm", "chat"]

    @property
    def status(self) -> dict[str, Any]:
        return self.service.get("status") or {}

    @property
    def whole(self) -> dict[str, Any]:
        """The status with its notes, a copy."""
        return joined(self.status)

    @property
    def memory(self) -> dict[str, Any]:
        return memory_of(self.status)

    @memory.setter
    def memory(self, fields: Mapping[str, Any]) -> None:
        notes = unpack(self.status["workings"]["notes"])
        self.status["workings"]["notes"] = pack({**notes, "workings": {"memory": fields}})

    @property
    def decision(self) -> dict[str, Any]:
        return self.whole.get("decision") or {}

    @property
    def reason(self) -> str | None:
        return self.decision.get("reason")

    @property
    def phase(self) -> str | None:
        return (self.status.get("rollout") or {}).get("phase")

    @property
    def value(self) -> str | None:
        return KINDS[self.kind].value_of(self.cluster.objects[self.kind.plural, "llm", "chat-vllm"])

    @property
    def rolls(self) -> list[tuple[str, str, str]]:
        """Writes of the operator to the target."""
        return [write for write in self.cluster.writes if write[1] == self.kind.plural]

    @property
    def events(self) -> list[str]:
        return [event["reason"] for event in self.cluster.of(EVENTS)]

    def condition(self, name: str) -> dict[str, Any]:
        return next(c for c in self.status["conditions"] if c["type"] == name)


@functools.cache
def profile_json(arms: tuple[Arm, ...] = tuple(LAWS)) -> str:
    """A profile of LAWS."""
    return fleet_profile_json({arm: LAWS[arm] for arm in arms})


def fleet_profile_json(
    laws: Mapping[Arm, tuple[float, float]],
    gpu: str = GPU,
    schedules: Mapping[Arm, str] | None = None,
) -> str:
    """A profile of laws (C1 s, C2 s) at the lengths of the fleet's requests; drafts yield its tokens per step."""
    return lawful_profile_json(
        laws,
        {arm: 2.5 if arm.k else 1.0 for arm in laws},
        prompt_tokens=200.0,
        output_tokens=100.0,
        gpu=gpu,
        schedules=schedules,
    )
