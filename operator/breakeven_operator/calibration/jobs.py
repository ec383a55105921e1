"""One Job per arm: the engine as native sidecar, the load driver as main container, and nothing that outlives it.

Nothing holds a GPU when the operator is dead: the Job ends with its driver or at its own deadline, and is removed
some time after. A pod that was preempted or evicted is replaced by the Job controller and goes on from the points it
stored; any other failure ends the Job, because the same engine would fail the same way again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import Field

from breakeven.arm import ADAPTIVE
from breakeven.methods import ADAPTIVE_KEY
from breakeven_operator.calibration import answer_secrets, podcopy, sending
from breakeven_operator.calibration.transition import RunView
from breakeven_operator.kinds import (
    ARM_LABEL,
    CRONJOBS,
    JOBS,
    MANAGED_BY,
    ROLE_BINDINGS,
    RUN_LABEL,
    RUNS,
    SERVICE_ACCOUNTS,
    SERVICE_LABEL,
    SERVICES,
    Resource,
    new_object,
    owner_reference,
)
from breakeven_operator.ports import Manifest
from breakeven_operator.resources.base import StatusModel
from breakeven_operator.resources.calibrationrun import CalibrationPlan, PlannedArm
from breakeven_operator.resources.calibrationspec import Calibration
from breakeven_operator.resources.candidates import table_of
from breakeven_operator.settings import Settings
from breakeven_operator.workloads.served_engine import ServedEngine

DRIVER = "driver"
_MAX_NAME = (
    57  # the Job controller appends `-xxxxx` for the pod, whose name is also a label value of 63 characters
)
TOKEN_MOUNT = {
    "name": "breakeven-token",
    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    "readOnly": True,
}
ENGINE_VARIABLES = "BREAKEVEN_ENGINE_"
"""Before the names of variables that the driver takes over from the engine: its interpreter reads none of them."""
CERTIFICATE_PATH = "/var/run/breakeven/certificate"
SECURITY_CONTEXT: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    # PodSecurity `restricted` asks for it if the target's pod names none.
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Privileges of every container that runs Breakeven's image: none."""
_DRIVER_RESOURCES = {"requests": {"cpu": "500m", "memory": "192Mi"}, "limits": {"memory": "512Mi"}}


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """Time for measuring, given to the driver, and time from the Job's start after which Kubernetes ends it, operator or not.

    `halved` if the arm's second start measures half of the loads.
    """

    sweep_s: int
    active_s: int
    halved: bool = False


class TrialPlan(StatusModel):
    """The measurement of one Job: the document that its driver reads. The plan is without its arms.

    `judged` are Jobs of the arms whose answers are judged, no speculation first; empty if the driver judges none. `prompts` is
    the path of the file of prompts. The ceiling point has `max_concurrency` clients. `halved` as in TrialLimits. `other_address` is
    the address of the pod whose engine a gate compares with; None otherwise.
    """

    run: str
    arm: PlannedArm
    plan: CalibrationPlan
    service: str = ""
    judged: tuple[str, ...] = ()
    prompts: str | None = None
    max_seconds: Annotated[int, Field(ge=1)]
    max_concurrency: Annotated[int, Field(ge=2)]
    halved: bool = False
    other_address: str | None = None

    @property
    def drafts(self) -> str | None:
        """The draft length per batch size that the engine runs, or the word if it chooses itself; None if it drafts by one length."""
        config = json.loads(self.arm.speculative_config)
        table = table_of(config)
        if (config or {}).get(ADAPTIVE_KEY) is True:
            return ADAPTIVE
        return None if table is None else str(table)

    @property
    def text(self) -> str:
        """The document as the value of a variable, in which Kubernetes finds nothing to expand."""
        document = self.to_json_object()
        document["plan"].pop("arms", None)
        return json.dumps(document).replace("$", "\\u0024")


def arm_label(arm: str) -> str:
    """The arm's name as a label value: `eagle/7` becomes `eagle-7`."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", arm).strip("-").lower()


def job_name(run: str, arm: str) -> str:
    """Name of the arm's Job; the same run and arm always give the same name, cut with a hash when too long."""
    name = f"{run}-{arm_label(arm)}"
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 7].rstrip('-.')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def made_name(service: str) -> str:
    """Name of a service's CronJob, and of the ServiceAccount and RoleBinding of its drivers."""
    return f"breakeven-{service}"


def build_job(
    view: RunView,
    plan: CalibrationPlan,
    arm: PlannedArm,
    limits: TrialLimits,
    other_address: str | None = None,
) -> dict[str, Any]:
    """The Job that measures one arm, owned by the run; `other_address` as in TrialPlan.

    Raises:
        NotCopyableError: the template cannot be copied; the message says why.
    """
    assert view.target is not None  # noqa: S101 - a run without its target has ended before it comes here
    meta, template, settings = view.run["metadata"], view.target.template, view.settings
    engine = podcopy.engine_of(view.target.engine)
    address = podcopy.engine_address(engine)
    own = {
        SERVICE_LABEL: view.run["spec"]["serviceRef"]["name"],
        RUN_LABEL: meta["name"],
        ARM_LABEL: arm_label(arm.arm),
    }
    selector = view.target.manifest["spec"].get("selector") or {}
    labels = podcopy.pod_labels(template, selector, view.selectors, {**MANAGED_BY, **own})
    podcopy.check_isolation(template, labels, view.network_policies)
    trial = TrialPlan(
        run=meta["name"],
        arm=arm,
        plan=plan,
        service=own[SERVICE_LABEL],
        judged=tuple(job_name(meta["name"], one.arm) for one in plan.arms if not one.second_start)
        if arm.arm == plan.judge
        else (),
        prompts=sending.file_of(sending.workload_spec(plan.workload).prompts),
        max_seconds=limits.sweep_s,
        max_concurrency=podcopy.max_concurrency(engine),
        halved=limits.halved,
        other_address=other_address,
    )
    queue = {"kueue.x-k8s.io/queue-name": settings.trial_queue_name} if settings.trial_queue_name else {}
    pod = {
        "metadata": {"labels": labels, "annotations": podcopy.pod_annotations(template)},
        "spec": _pod_spec(view, trial, engine, address),
    }
    return new_object(
        JOBS,
        job_name(meta["name"], arm.arm),
        meta["namespace"],
        {**own, **queue},
        owner_reference(RUNS, meta["name"], meta["uid"]),
        spec={**_life(plan, limits, settings), "template": pod},
    )


def _life(plan: CalibrationPlan, limits: TrialLimits, settings: Settings) -> dict[str, Any]:
    """How often the Job tries, how long it runs, and how long it stays."""
    evicted = {"type": "DisruptionTarget", "status": "True"}
    return {
        "backoffLimit": 0,
        "activeDeadlineSeconds": limits.active_s,
        # Answers go with the arm's Job, so it stays until they are judged.
        "ttlSecondsAfterFinished": max(
            settings.trial_ttl_s,
            plan.budget.max_duration_seconds if plan.answers_seconds else 0,
        ),
        "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [evicted]}]},
    }


def _pod_spec(
    view: RunView, trial: TrialPlan, engine: ServedEngine, address: podcopy.EngineAddress
) -> dict[str, Any]:
    """The copied pod: its engine as sidecar, the load driver as main container."""
    settings, plan, arm = view.settings, trial.plan, trial.arm
    spec = podcopy.pod_spec(engine, settings.gpu_label, plan.gpu_product)
    config = sending.imposed(plan.workload, json.loads(arm.speculative_config), arm.k)
    startup_s, discreet = plan.startup_deadline_seconds, sending.own_prompts(plan)
    spec["initContainers"].append(podcopy.engine_sidecar(engine, config, startup_s, discreet=discreet))
    as_root = (spec.get("securityContext") or {}).get("runAsUser") == 0
    spec["containers"] = [_driver(trial, engine, address, settings, as_root=as_root)]
    volume = sending.volume_of(sending.workload_spec(plan.workload).prompts)
    answers = [answer_secrets.answers_volume(trial.judged)] if trial.judged else []
    if trial.plan.pods_at_once is not None:
        _prefer_machines(spec, view, trial)
    spec["volumes"] = [*(spec.get("volumes") or []), token_volume(), *([volume] if volume else []), *answers]
    spec |= {
        "restartPolicy": "Never",
        "serviceAccountName": made_name(view.run["spec"]["serviceRef"]["name"]),
        # The engine is a third party's image: only the driver gets the token, by the volume above.
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 30,
    }
    if settings.trial_priority_class:
        spec["priorityClassName"] = settings.trial_priority_class
    return spec


def _prefer_machines(spec: dict[str, Any], view: RunView, trial: TrialPlan) -> None:
    """Prefer the machine of the run's other pods, which then share its minutes; Kubernetes lets nobody choose the GPU.

    Where the first starts stood on several machines, a second start prefers another one than its arm's first start.
    """
    same = {"labelSelector": {"matchLabels": {RUN_LABEL: trial.run}}, "topologyKey": "kubernetes.io/hostname"}
    beside = {"weight": 50, "podAffinityTerm": same}
    affinity = spec.setdefault("affinity", {})
    affinity["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [beside]}
    nodes = {
        (pod["metadata"].get("labels") or {}).get(ARM_LABEL): (pod.get("spec") or {}).get("nodeName")
        for pod in view.pods
    }
    node = nodes.get(arm_label(trial.arm.first)) if trial.arm.second_start else None
    if node is not None and len(set(nodes.values()) - {None}) > 1:
        other = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]}
        preferred = "preferredDuringSchedulingIgnoredDuringExecution"
        own = affinity.get("nodeAffinity") or {}
        terms = [*(own.get(preferred) or []), {"weight": 100, "preference": other}]
        affinity["nodeAffinity"] = {**own, preferred: terms}


def _driver(
    trial: TrialPlan,
    engine: ServedEngine,
    address: podcopy.EngineAddress,
    settings: Settings,
    *,
    as_root: bool,
) -> dict[str, Any]:
    """The load driver: reads one document from its environment, talks to the engine at the pod's own address."""
    env: list[dict[str, Any]] = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "BREAKEVEN_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "BREAKEVEN_TRIAL", "value": trial.text},
        {"name": "BREAKEVEN_URL", "value": f"{address.scheme}://$(POD_IP):{address.port}"},
    ]
    if trial.plan.pods_at_once is not None:
        env.append({"name": "BREAKEVEN_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    others: dict[str, Any] = {}
    prompts = sending.workload_spec(trial.plan.workload).prompts
    mounts: list[dict[str, Any]] = [TOKEN_MOUNT, *sending.mount_of(prompts)]
    if trial.judged:
        mounts.append(answer_secrets.MOUNT)
    elif trial.plan.answers_seconds:
        path = f"metadata.labels['{answer_secrets.JOB_UID_LABEL}']"
        env.append({"name": "BREAKEVEN_JOB_UID", "valueFrom": {"fieldRef": {"fieldPath": path}}})
    if address.key_variable is not None:
        env.append({**address.key_variable, "name": "BREAKEVEN_API_KEY"})
    elif engine.container.get("envFrom") and engine.flag("--api-key") is None:
        # The key may be among them (VLLM_API_KEY); by reference, like the engine's own. PYTHONPATH may be, too.
        others["envFrom"] = [
            {**source, "prefix": f"{ENGINE_VARIABLES}{source.get('prefix', '')}"}
            for source in engine.container["envFrom"]
        ]
    if address.certificate is not None:
        mount, path = _certificate(engine.container, address.certificate)
        env.append({"name": "BREAKEVEN_CA_FILE", "value": path})
        mounts += mount
    return {**_container(settings, "trial", env, mounts, _DRIVER_RESOURCES, as_root=as_root), **others}


def _container(
    settings: Settings,
    command: str,
    env: Sequence[Manifest],
    mounts: Sequence[Manifest],
    resources: Manifest,
    *,
    as_root: bool = False,
) -> dict[str, Any]:
    """A container of Breakeven's image that runs one of its commands."""
    return {
        "name": DRIVER,
        "image": settings.trial_image,
        **({"imagePullPolicy": settings.trial_image_pull_policy} if settings.trial_image_pull_policy else {}),
        "command": ["breakeven-operator"],
        "args": [command],
        "env": env,
        "resources": resources,
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # A pod that runs as root by the target's own wish would be refused with runAsNonRoot.
        "securityContext": {**SECURITY_CONTEXT, **({} if as_root else {"runAsNonRoot": True})},
    }


def _certificate(container: Manifest, file: str) -> tuple[list[dict[str, Any]], str]:
    """The engine's mount that holds a file, at a place of its own in the driver, and the file's path there.

    At the engine's path it could lie over the driver's own program.
    """
    holding = [
        mount
        for mount in container.get("volumeMounts") or []
        if file == mount["mountPath"] or file.startswith(f"{mount['mountPath'].rstrip('/')}/")
    ]
    if not holding:
        # The engine's image holds it, which the driver does not see.
        return [], file
    mount = max(holding, key=lambda one: len(one["mountPath"]))
    below = PurePosixPath(file).relative_to(mount["mountPath"])
    # A single file of a volume is mounted as one.
    place = CERTIFICATE_PATH if below.parts else f"{CERTIFICATE_PATH}/{PurePosixPath(file).name}"
    return [{**mount, "mountPath": place, "readOnly": True}], str(PurePosixPath(place) / below)


def token_volume() -> dict[str, Any]:
    """The token volume that Kubernetes would mount into every container; here one container mounts it."""
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    return {
        "name": TOKEN_MOUNT["name"],
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [namespace]}},
            ]
        },
    }


def trial_access(service: Manifest, cluster_role: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """ServiceAccount and RoleBinding of one service's drivers; the service owns both, and they go with it.

    The chart creates the ClusterRole with the drivers' few rights.
    """
    # A driver mounts its token itself; nothing else that might run under this account gets one unasked.
    account = _of_service(SERVICE_ACCOUNTS, service, automountServiceAccountToken=False)
    meta = account["metadata"]
    binding = _of_service(
        ROLE_BINDINGS,
        service,
        roleRef={"apiGroup": ROLE_BINDINGS.group, "kind": "ClusterRole", "name": cluster_role},
        subjects=[{"kind": SERVICE_ACCOUNTS.kind, "name": meta["name"], "namespace": meta["namespace"]}],
    )
    return account, binding


def _of_service(resource: Resource, service: Manifest, **parts: Any) -> dict[str, Any]:
    """An object that is made once for each service, and goes with it."""
    meta = service["metadata"]
    owner = owner_reference(SERVICES, meta["name"], meta["uid"])
    labels = {SERVICE_LABEL: meta["name"]}
    return new_object(resource, made_name(meta["name"]), meta["namespace"], labels, owner, **parts)


def schedule_job(service: Manifest, settings: Settings) -> dict[str, Any] | None:
    """The CronJob whose Jobs ask for a calibration; None if the service has no schedule.

    Its Jobs only create a CalibrationRun and hold no GPU; `kubectl create job --from=cronjob/...` does the same by
    hand. Missed times are not made up for: one calibration is as good as three.
    """
    calibration = Calibration.read((service["spec"].get("calibration") or {}), "spec.calibration")
    if calibration.schedule is None:
        return None
    labels = {**MANAGED_BY, SERVICE_LABEL: service["metadata"]["name"]}
    return _of_service(
        CRONJOBS,
        service,
        spec={
            "schedule": calibration.schedule,
            **({"timeZone": calibration.time_zone} if calibration.time_zone else {}),
            "suspend": bool(service["spec"].get("paused", False)),
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 3600,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 1,
            "jobTemplate": {
                "metadata": {"labels": labels},
                "spec": {
                    "backoffLimit": 2,
                    "activeDeadlineSeconds": 300,
                    "ttlSecondsAfterFinished": 3600,
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": _asking_pod(service, settings),
                    },
                },
            },
        },
    )


def _asking_pod(service: Manifest, settings: Settings) -> dict[str, Any]:
    """The pod that asks for a calibration of the service: one container of Breakeven's image, without a GPU."""
    meta = service["metadata"]
    env = [
        {"name": "BREAKEVEN_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "BREAKEVEN_SERVICE", "value": meta["name"]},
        {"name": "BREAKEVEN_SERVICE_UID", "value": meta["uid"]},
    ]
    resources = {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}}
    return {
        "restartPolicy": "Never",
        "serviceAccountName": made_name(meta["name"]),
        "automountServiceAccountToken": False,
        "containers": [_container(settings, "request-run", env, [TOKEN_MOUNT], resources)],
        "volumes": [token_volume()],
    }
