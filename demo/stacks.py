"""`make demo STORY=stacks`: a StatefulSet, a LeaderWorkerSet and vLLM's own shell manifest come to the right arm in one cluster.

Each is measured on copies of its pods and rolled in its own way: the StatefulSet pod by pod, the groups by their real
controller, the Deployment by surge. The arm is right by the law that was measured on the very target.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from rich.console import Console

from breakeven.phrases import spoken
from breakeven.serving.opt_in import VARIABLE
from demo import installation
from demo.performance import Casting, Scene, perform, what_to_try
from demo.record import ServiceRecord
from demo.story import Story, tell
from demo.summary import Check, safety_checks, tell_checks
from localcluster import LocalCluster

_GROUPS = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
_REPLICAS = 2
_CAST = (
    Casting("chat", "A100", "RollingUpdate", _REPLICAS, resource="statefulsets"),
    Casting("code", "H100", "RollingUpdate", _REPLICAS, seed=2, resource="leaderworkersets", controller="lws-controller"),
    Casting("page", "A100", "RollingUpdate", _REPLICAS, seed=3),
)  # fmt: skip
_KINDS = {"chat": "a StatefulSet", "code": "a LeaderWorkerSet", "page": "vLLM's shell manifest"}
_SHELL = installation.EXAMPLES / "stacks" / "vllm-kubernetes-page.yaml"
_MIN_GAIN = 0.05
_ROLL_TIMEOUT_S = 400.0
_MEASURE_S = 10.0


def play(costs: Path, console: Console, *, keep: bool) -> list[Check]:
    """Play it; whether each of the three came to the right arm, and nobody lost a request."""

    def installed(cluster: LocalCluster) -> str:
        installation.apply(cluster, *manifests())
        return f"{', '.join(_KINDS.values())}, of {_REPLICAS} pods each"

    performance = perform(costs, console, _CAST, installed, _acts, keep=keep)
    checks = judge(performance.record.services, performance.told, performance.writes)
    checks += safety_checks(performance.record, performance.failures)
    tell_checks(console, checks)
    if keep:
        what_to_try(console, performance.cluster)
    return checks


def manifests() -> list[installation.Manifest]:
    """The three targets, their Services, and a SpeculativeService on each."""
    deployment, service = installation.deployment("vllm-a100.yaml", _REPLICAS)
    groups, beside = installation.deployment("vllm-h100.yaml", _REPLICAS)
    services = [installation.service(one.name, f"{one.name}-vllm", one.mode) for one in _CAST]
    services[0]["spec"]["targetRef"]["kind"] = "StatefulSet"
    services[1]["spec"]["targetRef"] |= _GROUPS
    for one in services:
        # Twice as many engines as in a day's story share the machine's cores; other arms and the answer gate are part of that story.
        one["spec"]["calibration"]["answers"] = {"check": "Disabled"}
        for method in one["spec"]["candidates"]["methods"]:
            method |= {"schedule": "Never", "adaptiveVerification": "Never"}
    return [stateful(deployment), service, grouped(groups), beside, shell(deployment), *services]


def stateful(deployment: installation.Manifest) -> installation.Manifest:
    """The same pods as a StatefulSet."""
    manifest = copy.deepcopy(deployment)
    manifest["kind"] = "StatefulSet"
    del manifest["spec"]["strategy"]
    manifest["spec"]["serviceName"] = manifest["metadata"]["name"]
    return manifest


def grouped(deployment: installation.Manifest) -> installation.Manifest:
    """The same pods as groups of one, of which one more starts before another ends."""
    template = copy.deepcopy(deployment["spec"]["template"])
    surge = {"rollingUpdateConfiguration": {"maxUnavailable": 0, "maxSurge": 1}}
    groups = {"size": 1, "workerTemplate": template}
    spec = {
        "replicas": deployment["spec"]["replicas"],
        "leaderWorkerTemplate": groups,
        "rolloutStrategy": surge,
    }
    return {**_GROUPS, "metadata": deployment["metadata"], "spec": spec}


def shell(deployment: installation.Manifest) -> installation.Manifest:
    """The manifest of vLLM's Kubernetes page, whose shell stays, with the lines of docs/stacks.md.

    Args:
        deployment: whose probes and drain lines it takes, as a user would add them. Its weights and its secret are left out:
            the simulated engine has none.
    """
    page: installation.Manifest = yaml.safe_load(_SHELL.read_text())
    (container,) = page["spec"]["template"]["spec"]["containers"]
    pod = copy.deepcopy(deployment["spec"]["template"]["spec"])
    (ours,) = pod["containers"]
    (text,) = container["args"]
    lines = "--served-model-name page --shutdown-timeout 120"
    arm = f'--speculative-config "${VARIABLE}"'
    ours["command"] = container["command"]
    ours["args"] = [f"exec {text} {lines} {arm}"]
    ours["name"] = container["name"]
    meta = copy.deepcopy(deployment["spec"]["template"]["metadata"])
    meta["labels"] = {"app": "page-vllm"}
    page["metadata"] = {"name": "page-vllm", "labels": {"app": "page-vllm"}}
    page["spec"] |= {
        "replicas": deployment["spec"]["replicas"],
        "selector": {"matchLabels": {"app": "page-vllm"}},
        "strategy": deployment["spec"]["strategy"],
        "template": {"metadata": meta, "spec": pod},
    }
    return page


async def _acts(scene: Scene) -> dict[str, Story]:
    """Calibrations, then the low load that each profile asks for, until every target has come to its arm."""
    director, view = scene.director, scene.view
    profiles = await scene.measured("of each on pods of their own")
    stories = {name: tell(profile, _MIN_GAIN) for name, profile in profiles.items()}
    for name, story in stories.items():
        view.step(f"measured: {name}, {_KINDS[name]}: {story.sentence}")
    phases = {name: story.phases[0] for name, story in stories.items()}
    view.step("low load: " + ", ".join(f"{name} {phase.rps:.1f} rps" for name, phase in phases.items()))
    await director.play(phases, timeout_s=_ROLL_TIMEOUT_S, measure_s=_MEASURE_S)
    await scene.photographed("board", "service")
    return stories


def judge(
    services: Mapping[str, ServiceRecord],
    stories: Mapping[str, Story],
    writes: Mapping[str, Sequence[str]],
) -> list[Check]:
    """Whether each came to the arm that is right for it, by writes to itself alone.

    Args:
        services: what was seen.
        stories: what the profile of each said should run.
        writes: of the operator to each target, by the API server's audit log.
    """
    checks: list[Check] = []
    for name, service in services.items():
        phase = stories[name].phases[0]
        settled_s = next((one.settled_s - one.started_s for one in service.phases if one.settled_s), None)
        checks.append(
            Check(
                f"{_KINDS[name]}, {name}: {spoken(phase.best)} runs at {phase.rps:.1f} rps per replica",
                settled_s is not None and service.samples[-1].arm in phase.acceptable,
                f"{spoken(service.samples[-1].arm)} "
                + (f"after {settled_s:.0f} s" if settled_s else "at the end"),
            )
        )
        arms = [sample.arm for sample in service.samples if sample.arm not in {"", "?", "-"}]
        rolled = bool(arms) and arms[0] not in phase.acceptable
        made = writes.get(name, ())
        checks.append(
            Check(
                f"{name}: {'rolled by a write to itself' if rolled else 'never rolled'}",
                bool(made) == rolled,
                "; ".join(made) or "no write",
            )
        )
    return checks
