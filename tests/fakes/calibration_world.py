"""A service, its target and a small world in which a run's actions have their effects."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import yaml

from breakeven.fitting import fit_points
from breakeven.profile import Profile
from breakeven.readers.reading import read_text
from breakeven_operator import calibration
from breakeven_operator.actions import (
    Action,
    Create,
    Delete,
    DoneFit,
    EmitEvent,
    Fit,
    FitOutcome,
    WriteStatus,
)
from breakeven_operator.calibration.jobs import DRIVER, TrialPlan
from breakeven_operator.calibration.podcopy import ENGINE
from breakeven_operator.calibration.transition import RunView
from breakeven_operator.kinds import ARM_LABEL, JOBS, PROFILES, RUNS
from breakeven_operator.resources.base import AGAIN
from breakeven_operator.settings import Settings, read_settings
from breakeven_operator.step import ProfileEntry
from breakeven_operator.workloads.known import DEPLOYMENT
from breakeven_operator.workloads.workload import NearbyObjects, PodState, Workload, observe

START = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)

TARGET = yaml.safe_load("""
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat-vllm, namespace: llm, uid: target-uid}
spec:
  replicas: 2
  selector: {matchLabels: {app: chat-vllm}}
  template:
    metadata:
      labels: {app: chat-vllm, team: nlp, tier: serving, kueue.x-k8s.io/queue-name: serving}
      annotations:
        prometheus.io/scrape: "true"
        kubectl.kubernetes.io/restartedAt: "2026-11-20T00:00:00Z"
        breakeven.dev/speculative-config: '{"method":"ngram","num_speculative_tokens":3}'
        vault.hashicorp.com/role: llm
    spec:
      hostNetwork: true
      nodeName: a100-7
      priorityClassName: serving-critical
      priority: 1000000
      serviceAccountName: chat
      schedulerName: bin-packer
      nodeSelector: {pool: gpu}
      tolerations: [{key: nvidia.com/gpu, operator: Exists}]
      imagePullSecrets: [{name: registry}]
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]
      affinity:
        nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a]}]}]}}
        podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname}]}
      initContainers:
      - {name: fetch-drafter, image: fetch:1}
      - {name: log-shipper, image: logs:1, restartPolicy: Always}
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        command: [vllm, serve]
        args: [Qwen/Qwen3-8B, --port=8001, "--served-model-name=chat", --spec-method, ngram, --spec-tokens=3, --api-key=$(CHAT_KEY)]
        env:
        - {name: BREAKEVEN_SPECULATIVE_CONFIG, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['breakeven.dev/speculative-config']"}}}
        - {name: CHAT_KEY, valueFrom: {secretKeyRef: {name: chat-key, key: token}}}
        - {name: HF_HOME, value: /models}
        ports: [{name: http, containerPort: 8001, hostPort: 8001}]
        resources: {limits: {nvidia.com/gpu: 2}, requests: {cpu: "4"}}
        lifecycle: {preStop: {sleep: {seconds: 10}}}
        livenessProbe: {httpGet: {path: /health, port: http}}
        readinessProbe: {httpGet: {path: /health, port: http}, periodSeconds: 5}
        volumeMounts: [{name: weights, mountPath: /models}]
      - {name: auth-proxy, image: proxy:1}
      volumes: [{name: weights, persistentVolumeClaim: {claimName: weights}}]
""")

SERVICE = yaml.safe_load("""
apiVersion: breakeven.dev/v1alpha1
kind: SpeculativeService
metadata: {name: chat, namespace: llm, uid: service-uid, generation: 1}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: chat-vllm, containerName: vllm}
  candidates:
    methods:
    - {name: eagle, method: eagle3, model: org/eagle, draftLengths: [2, 7], schedule: Never, adaptiveVerification: Never}
  calibration:
    schedule: "0 3 * * 0"
    answers: {check: Disabled}
    loads: 5
    pointSeconds: 20
    warmupSeconds: 5
    startupDeadlineSeconds: 600
    pendingDeadlineSeconds: 300
    budget: {maxGpuSeconds: 6000, maxDurationSeconds: 7200}
    workload: {promptTokens: 64, outputTokens: 32}
""")

RUN = yaml.safe_load("""
apiVersion: breakeven.dev/v1alpha1
kind: CalibrationRun
metadata: {name: chat-7f3c2, namespace: llm, uid: run-uid, generation: 1}
spec: {serviceRef: {name: chat}, trigger: Initial}
""")

SETTINGS = read_settings({"BREAKEVEN_TRIAL_IMAGE": "ghcr.io/breakeven-dev/breakeven:1.0.0"})


def timestamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=16)
def fitted(points_csv: str) -> FitOutcome:
    """Outcome of the library's fit; many tests measure the same points."""
    return FitOutcome(fit_points(read_text(points_csv, "points")).to_json(), None)


@dataclass
class World:
    """The cluster as one run sees it; `turn` is one cycle of the operator."""

    run: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(RUN))
    service: dict[str, Any] | None = field(default_factory=lambda: copy.deepcopy(SERVICE))
    target: dict[str, Any] | None = field(default_factory=lambda: copy.deepcopy(TARGET))
    now: datetime = START
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    cluster_events: list[dict[str, Any]] = field(default_factory=list)
    image_digest: str = "sha256:aa"
    identifiable: bool = True
    may_start: bool = True
    places: int = 1
    duplicate_of: str | None = None
    in_force: Profile | None = None
    known_profiles: tuple[ProfileEntry, ...] = ()
    settings: Settings = SETTINGS
    config_maps: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    files_problem: str | None = None
    warnings: dict[str, str] = field(default_factory=dict)
    claims: tuple[dict[str, Any], ...] = ()
    network_policies: tuple[dict[str, Any], ...] = ()
    said: list[EmitEvent] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)
    profiles: list[dict[str, Any]] = field(default_factory=list)
    most_jobs: int = 0
    _uids: Any = field(default_factory=lambda: itertools.count(1))

    def view(self) -> RunView:
        return RunView(
            run=self.run,
            service=self.service,
            target=self.workload,
            jobs=tuple(self.jobs.values()),
            pods=tuple(self.pods.values()),
            selectors=({"matchLabels": {"tier": "serving"}},),
            may_start=self.may_start,
            places=self.places,
            duplicate_of=self.duplicate_of,
            settings=self.settings,
            events=tuple(self.cluster_events),
            warnings=self.warnings,
            in_force=self.in_force,
            profiles=self.known_profiles,
            config_maps=self.config_maps,
            files_problem=self.files_problem,
            claims=self.claims,
            network_policies=self.network_policies,
        )

    @property
    def workload(self) -> Workload | None:
        """The target as the operator sees it, with a pod that serves if it is identifiable."""
        if self.target is None:
            return None
        found = observe(
            DEPLOYMENT, self.target, NearbyObjects(), container_name="vllm", gpu_label="gpu", now=self.now
        )
        pod = PodState("a", "a", True, START, 20.0, False, "a100-7", f"vllm@{self.image_digest}", None)
        return replace(
            found, pods=(pod,) if self.identifiable else (), gpu_products=("NVIDIA-A100-SXM4-80GB",)
        )

    @property
    def fingerprint(self) -> str:
        """That of the target as it stands."""
        assert self.workload is not None
        assert self.workload.identity is not None
        return self.workload.identity.fingerprint

    def turn(self, seconds: float = 15.0) -> dict[str, Any]:
        """One cycle; returns the run's status."""
        self.now += timedelta(seconds=seconds)
        self.do(calibration.advance(self.view(), self.now))
        return self.status

    def answer_fit(self, outcome: FitOutcome | None = None) -> dict[str, Any]:
        """The fit that was asked for last, for a schedule, has its outcome: by the library, unless one is given."""
        fit = self.fits[-1]
        if outcome is None:
            outcome = fitted(fit.points_csv)
        self.do(calibration.advance(self.view(), self.now, DoneFit(fit, outcome)))
        return self.status

    def do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case WriteStatus(ref=ref, status=status, manager="breakeven-import"):
                    assert list(status) == ["points"], "the importer writes points and nothing else"
                    self.status["points"] = json.loads(json.dumps(status["points"]))
                case WriteStatus(ref=ref, status=status) if ref.resource == RUNS:
                    theirs = {"points", "answers", "findings"}
                    assert not theirs & set(status), "points, answers and findings belong to the drivers"
                    kept = {name: self.status[name] for name in theirs if self.status.get(name)}
                    self.run["status"] = json.loads(json.dumps(status)) | kept
                case WriteStatus():
                    pass
                case Create(resource=resource, body=body) if resource == JOBS:
                    job = json.loads(json.dumps(body))
                    job["metadata"] |= {
                        "uid": f"job-{next(self._uids)}",
                        "creationTimestamp": timestamp(self.now),
                    }
                    self.jobs[job["metadata"]["name"]] = job
                    self.most_jobs = max(self.most_jobs, len(self.jobs))
                case Create(resource=resource, body=body) if resource == PROFILES:
                    self.profiles.append(json.loads(json.dumps(body)))
                case Delete(ref=ref):
                    job = self.jobs.pop(ref.name)
                    assert job["metadata"]["uid"] == ref.uid
                    self.pods = {
                        name: pod for name, pod in self.pods.items() if name.rpartition("-")[0] != ref.name
                    }
                case EmitEvent():
                    self.said.append(action)
                case Fit():
                    self.fits.append(action)
                case _:
                    raise AssertionError(action)

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.run.setdefault("status", {})
        return status

    @property
    def job(self) -> dict[str, Any]:
        (job,) = self.jobs.values()
        return job

    def place_pod(self, suffix: str = "aaaaa", job: dict[str, Any] | None = None) -> dict[str, Any]:
        """The scheduler binds a pod of a Job, or of the only one; its engine starts to load."""
        job = job or self.job
        name = f"{job['metadata']['name']}-{suffix}"
        placed = timestamp(self.now)
        self.pods[name] = {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "creationTimestamp": placed,
                "labels": {ARM_LABEL: job["metadata"]["labels"][ARM_LABEL]},
            },
            "status": {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": placed}],
                "initContainerStatuses": [
                    {"name": ENGINE, "image": "vllm", "state": {"running": {"startedAt": placed}}}
                ],
                "containerStatuses": [
                    {
                        "name": DRIVER,
                        "image": "breakeven",
                        "state": {"waiting": {"reason": "PodInitializing"}},
                    }
                ],
            },
        }
        return self.pods[name]

    def start_driver(self, pod: dict[str, Any]) -> None:
        pod["status"]["phase"] = "Running"
        pod["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": timestamp(self.now)}}

    def driver_env(self, name: str) -> str:
        """A variable of the present Job's driver."""
        (driver,) = self.job["spec"]["template"]["spec"]["containers"]
        return str(next(entry["value"] for entry in driver["env"] if entry["name"] == name))

    @property
    def trial(self) -> dict[str, Any]:
        """The document of the present Job's driver."""
        document: dict[str, Any] = json.loads(self.driver_env("BREAKEVEN_TRIAL"))
        return document

    def measured_table(self) -> str:
        """The schedule that the present Job's driver measures."""
        return str(TrialPlan.read(self.trial, "trial").drafts)

    def store(
        self,
        arm: str,
        count: int,
        c1_s: float = 1.0,
        c2_s: float = 0.05,
        flag: str = "",
        drafted_per_step: float | None = None,
    ) -> None:
        """The driver stores `count` points that obey a law."""
        points = self.status.setdefault("points", [])
        statuses = {each["arm"]: each for each in self.status["armStatuses"]}
        first = arm.removesuffix(AGAIN)
        method, _, k = first.partition("/")
        status = statuses[first]
        table = {"schedule": status["schedule"]} if "schedule" in status else {}
        if first.endswith("/adaptive"):
            table = {"schedule": "adaptive"}
        k = str(self.trial["arm"]["k"]) if table else k
        for index in range(count):
            rps = 0.8 / c2_s * (index + 1) / (count + 1)
            latency_s = c1_s / (1 - rps * c2_s)
            points.append(
                {
                    "arm": arm,
                    "index": index,
                    "time": timestamp(self.now),
                    "method": "none" if first == "none" else "eagle3",
                    **({"start": arm} if arm != first else {}),
                    "k": int(k or 0),
                    **({"candidate": method} if k else {}),
                    **table,
                    "loadMode": "poisson",
                    "requestRateRps": f"{rps:.6f}",
                    "meanLatencyS": f"{latency_s:.6f}",
                    "meanInflight": f"{rps * latency_s:.6f}",
                    "achievedRps": f"{rps:.6f}",
                    "promptTokens": "64",
                    "outputTokens": "32",
                    "requests": 200,
                    "windowS": "20",
                    **({"flag": flag} if flag else {}),
                    **({"accept": ["0.7", "0.5"], "drafts": "900", "tokensPerStep": "2.2"} if k else {}),
                    **({"draftedPerStep": f"{drafted_per_step:g}"} if drafted_per_step is not None else {}),
                }
            )

    def finish_job(self, pod: dict[str, Any], job: dict[str, Any] | None = None) -> None:
        ended = {
            "terminated": {"exitCode": 0, "startedAt": timestamp(self.now), "finishedAt": timestamp(self.now)}
        }
        pod["status"]["phase"] = "Succeeded"
        for kind in ("initContainerStatuses", "containerStatuses"):
            pod["status"][kind][0]["state"] = ended
        (job or self.job)["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}

    def measure_arm(self, points: int = 5, **law: float) -> str:
        """The whole life of one arm's Job, from being created to being complete; returns the arm."""
        arm: str = next(a["arm"] for a in self.status["armStatuses"] if a["phase"] == "Starting")
        pod = self.place_pod()
        self.turn(60)
        self.start_driver(pod)
        self.turn()
        self.store(
            arm,
            points,
            law.get("c1_s", 1.0),
            law.get("c2_s", 0.05),
            drafted_per_step=law.get("drafted_per_step"),
        )
        self.turn(100)
        self.finish_job(pod)
        return arm

    def measure_beside(self, arm: str, points: int = 5, c1_s: float = 1.0, c2_s: float = 0.05) -> None:
        """The whole life of an arm's Job while those of the arms before it wait with their answers."""
        name = self.arm_status(arm)["job"]
        others = {key: self.jobs.pop(key) for key in list(self.jobs) if key != name}
        pod = self.place_pod()
        self.jobs |= others
        self.turn(60)
        self.start_driver(pod)
        self.turn()
        self.jobs = {name: self.jobs.pop(name)}
        self.store(arm, points, c1_s, c2_s)
        self.jobs |= others
        self.turn(100)
        self.jobs = {name: self.jobs.pop(name)}
        self.finish_job(pod)
        self.jobs |= others
        self.turn()

    def second_starts(self, points: int = 2, laws: Mapping[str, tuple[float, float]] | None = None) -> None:
        """The second starts of all arms that have one and were not skipped, from the first of them on, whose Job is there."""
        for arm in [one["arm"] for one in self.status["armStatuses"] if one["arm"].endswith(AGAIN)]:
            if self.arm_status(arm)["phase"] == "Starting":
                self.measure_beside(arm, points, *(laws or {}).get(arm.removesuffix(AGAIN), (1.0, 0.05)))

    def arm_status(self, arm: str) -> dict[str, Any]:
        """How measuring an arm goes."""
        found: dict[str, Any] = next(each for each in self.status["armStatuses"] if each["arm"] == arm)
        return found

    def fail_job(self, reason: str = "PodFailurePolicy", message: str = "a container failed") -> None:
        self.job["status"] = {
            "conditions": [{"type": "Failed", "status": "True", "reason": reason, "message": message}]
        }

    def budget(self, **budget: int) -> None:
        assert self.service is not None
        self.service["spec"]["calibration"]["budget"] = budget


def schedule_before_lookup() -> World:
    """A world whose service has a second method after the one with a schedule."""
    world = World()
    assert world.service is not None
    methods = world.service["spec"]["candidates"]["methods"]
    del methods[0]["schedule"]
    methods.append({"name": "lookup", "method": "ngram", "draftLengths": [4], "schedule": "Never"})
    return world
