"""Targets, services and profiles as people and the operator write them, with every interval short."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import yaml

from operatorcluster.target_engine import A100, METHOD, OUTPUT_TOKENS, PROMPT_TOKENS, profile_json

Manifest = dict[str, Any]
ANNOTATION = "breakeven.dev/speculative-config"
TARGET = "chat-vllm"

_TARGET = """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: chat-vllm
  labels: {app: chat-vllm}
spec:
  replicas: 1
  selector: {matchLabels: {app: chat-vllm}}
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata:
      labels: {app: chat-vllm}
      annotations: {prometheus.io/scrape: "true", prometheus.io/port: "8000"}
    spec:
      nodeSelector: {nvidia.com/gpu.product: GPU}
      terminationGracePeriodSeconds: 15
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        args:
        - org/chat-8b
        - --served-model-name=chat
        - --port=8000
        - --shutdown-timeout=10
        - --speculative-config=$(BREAKEVEN_SPECULATIVE_CONFIG)
        env:
        - name: BREAKEVEN_SPECULATIVE_CONFIG
          valueFrom: {fieldRef: {fieldPath: "metadata.annotations['breakeven.dev/speculative-config']"}}
        ports: [{name: http, containerPort: 8000}]
        resources: {requests: {cpu: 10m, memory: 64Mi}, limits: {nvidia.com/gpu: 1}}
        startupProbe: {httpGet: {path: /health, port: http}, periodSeconds: 1, failureThreshold: 60, timeoutSeconds: 5}
        # An engine that a busy machine holds up for a second is Ready: without it a lone pod's users would have none.
        readinessProbe: {httpGet: {path: /health, port: http}, periodSeconds: 1, timeoutSeconds: 5}
        # Users of the tests look every 0.2 s and act half a second later; the rest is for a machine that is busy.
        lifecycle: {preStop: {sleep: {seconds: 4}}}
"""

_SERVICE: Manifest = {
    "apiVersion": "breakeven.dev/v1alpha1",
    "kind": "SpeculativeService",
    "metadata": {"name": "chat"},
    "spec": {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": TARGET},
        "updatePolicy": {
            "mode": "RollingUpdate",
            "cooldownSeconds": 0,
            "stabilizationWindowSeconds": 0,
            "lookbackSeconds": 0,
            # Against hanging: three pods one after another take a fifth of it on a quiet machine.
            "rollDeadlineSeconds": 300,
        },
        "candidates": {"methods": [METHOD]},
        "calibration": {
            "loads": 5,
            "pointSeconds": 3,
            "warmupSeconds": 0,
            # Minutes of each calibration; test_chart_operator.py turns them on.
            "answers": {"check": "Disabled"},
            "workload": {"promptTokens": PROMPT_TOKENS, "outputTokens": OUTPUT_TOKENS},
        },
        "metricsSource": {"windowSeconds": 6, "stalenessSeconds": 5, "minRequests": 5},
    },
}


def target(name: str = TARGET, gpu: str = A100, *, scraped: bool = True) -> Manifest:
    """A vLLM Deployment of one replica with opt-in and drain lines."""
    manifest: Manifest = yaml.safe_load(_TARGET.replace("chat-vllm", name).replace("GPU", gpu, 1))
    if not scraped:
        del manifest["spec"]["template"]["metadata"]["annotations"]
    return manifest


def stateful_target(replicas: int) -> Manifest:
    """The same pods as a StatefulSet."""
    manifest = target()
    del manifest["spec"]["strategy"]
    manifest["kind"] = "StatefulSet"
    manifest["spec"] |= {"replicas": replicas, "serviceName": TARGET}
    return manifest


def stateful_service(**changes: Any) -> Manifest:
    """A SpeculativeService on it; changes as those of `service`."""
    manifest = service(**changes)
    manifest["spec"]["targetRef"]["kind"] = "StatefulSet"
    return manifest


def stepwise_target(replicas: int, *steps: Manifest) -> Manifest:
    """The same pods as an Argo Rollout, whose canary has these steps."""
    manifest = target()
    manifest |= {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
    canary = {"maxSurge": 1, "maxUnavailable": 0, "steps": list(steps)}
    manifest["spec"] |= {"replicas": replicas, "strategy": {"canary": canary}}
    return manifest


def stepwise_service(**changes: Any) -> Manifest:
    """A SpeculativeService on it; changes as those of `service`."""
    manifest = service(**changes)
    manifest["spec"]["targetRef"] |= {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
    return manifest


def grouped_target(replicas: int, size: int = 1, *, leaders_apart: bool = False) -> Manifest:
    """The same pods as leaders of a LeaderWorkerSet's groups; workers beside them hold a GPU and wait.

    Args:
        replicas: groups.
        size: pods of each.
        leaders_apart: leaders and workers have templates of their own.
    """
    deployment = target()
    template = deployment["spec"]["template"]
    groups: Manifest = {"size": size, "workerTemplate": template}
    if leaders_apart:
        worker = copy.deepcopy(template)
        worker["metadata"] = {"labels": {"app": "chat-worker"}}
        (container,) = worker["spec"]["containers"]
        worker["spec"]["containers"] = [
            {
                "name": "worker",
                "image": "busybox",
                "command": ["sleep", "100000"],
                "env": container["env"],
                "resources": container["resources"],
            }
        ]
        groups |= {"leaderTemplate": template, "workerTemplate": worker}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": deployment["metadata"],
        "spec": {"replicas": replicas, "leaderWorkerTemplate": groups},
    }


def grouped_service(**changes: Any) -> Manifest:
    """A SpeculativeService on it; changes as those of `service`."""
    manifest = service(**changes)
    manifest["spec"]["targetRef"] |= {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    return manifest


_PRESET = """
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: chat-vllm}
spec:
  model: {uri: "hf://org/chat-8b", name: chat}
  storageInitializer: {enabled: false}
  replicas: 1
  labels: {app: chat-vllm}
  annotations: {prometheus.io/scrape: "true", prometheus.io/port: "8000"}
  template:
    nodeSelector: {nvidia.com/gpu.product: GPU}
    containers:
    - name: main
      image: vllm/vllm-openai:v0.32.0
      securityContext: {runAsNonRoot: false}
      env:
      - name: BREAKEVEN_SPECULATIVE_CONFIG
        valueFrom: {fieldRef: {fieldPath: "metadata.annotations['breakeven.dev/speculative-config']"}}
      - {name: VLLM_ADDITIONAL_ARGS, value: "--speculative-config='$(BREAKEVEN_SPECULATIVE_CONFIG)'"}
      resources: {requests: {cpu: 10m, memory: 64Mi}, limits: {nvidia.com/gpu: "1"}}
      startupProbe: {httpGet: {path: /health, port: 8000, scheme: HTTP}, periodSeconds: 1, failureThreshold: 60}
"""


def preset_target(replicas: int) -> Manifest:
    """The same engine as an LLMInferenceService, whose preset starts and drains it."""
    manifest: Manifest = yaml.safe_load(_PRESET.replace("GPU", A100, 1))
    manifest["spec"]["replicas"] = replicas
    return manifest


_PRESET_OF_GROUPS = """
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceServiceConfig
metadata: {name: kserve-config-llm-worker-data-parallel}
spec:
  template:
    terminationGracePeriodSeconds: 60
    containers:
    - name: main
      image: vllm/vllm-openai:v0.32.0
      command:
      - /bin/bash
      - -c
      - |-
        eval "exec vllm serve /mnt/models --served-model-name chat --port 8000 --shutdown-timeout 10 ${VLLM_ADDITIONAL_ARGS} $@"
      - --
      ports: [{containerPort: 8000, protocol: TCP}]
      lifecycle: {preStop: {exec: {command: [/bin/sleep, "5"]}}}
      readinessProbe: {httpGet: {path: /health, port: 8000, scheme: HTTP}, periodSeconds: 1}
  worker:
    containers:
    - {name: main, image: busybox, command: [sleep, "100000"]}
"""


def preset_of_groups() -> Manifest:
    """A preset of a namespace's own for services with workers, of the shape of KServe's."""
    manifest: Manifest = yaml.safe_load(_PRESET_OF_GROUPS)
    return manifest


def preset_target_of_groups(groups: int, size: int) -> Manifest:
    """The same with workers: groups of so many pods, which its controller makes a LeaderWorkerSet of."""
    manifest = preset_target(groups)
    spec = manifest["spec"]
    (leader,) = spec["template"]["containers"]
    worker = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "100000"],
        "securityContext": leader["securityContext"],
        "resources": leader["resources"],
    }
    spec["parallelism"] = {"data": size, "dataLocal": 1}
    spec["worker"] = {"nodeSelector": spec["template"]["nodeSelector"], "containers": [worker]}
    return manifest


def predictor_target(replicas: int) -> Manifest:
    """The same engine as an InferenceService in Standard mode, with a container of its own."""
    deployment = target()
    template = deployment["spec"]["template"]
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": TARGET, "annotations": {"serving.kserve.io/deploymentMode": "Standard"}},
        "spec": {
            "predictor": {
                **template["spec"],
                **template["metadata"],
                "minReplicas": replicas,
                "deploymentStrategy": {"type": "RollingUpdate", **deployment["spec"]["strategy"]},
            }
        },
    }


def predictor_service(**changes: Any) -> Manifest:
    """A SpeculativeService on it; changes as those of `service`."""
    manifest = service(**changes)
    manifest["spec"]["targetRef"] |= {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService"}
    return manifest


def preset_service(**changes: Any) -> Manifest:
    """A SpeculativeService on it; changes as those of `service`."""
    manifest = service(**changes)
    manifest["spec"]["targetRef"] |= {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
    }
    return manifest


def engine(manifest: Manifest) -> Manifest:
    """The engine's container of a target."""
    container: Manifest = manifest["spec"]["template"]["spec"]["containers"][0]
    return container


def service(name: str = "chat", target_name: str = TARGET, **changes: Any) -> Manifest:
    """A SpeculativeService; `changes` go into its spec, mappings into what stands there."""
    manifest = copy.deepcopy(_SERVICE)
    manifest["metadata"]["name"] = name
    manifest["spec"]["targetRef"]["name"] = target_name
    for part, change in changes.items():
        if isinstance(change, Mapping):
            manifest["spec"].setdefault(part, {}).update(change)
        else:
            manifest["spec"][part] = change
    return manifest


def profile(fingerprint: str, service_name: str = "chat", gpu: str = A100) -> Manifest:
    """A SpeculationProfile of the engine's true law."""
    return {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "SpeculationProfile",
        "metadata": {"name": f"{service_name}-known", "labels": {"breakeven.dev/service": service_name}},
        "spec": {
            "serviceRef": {"name": service_name},
            "gpuProduct": gpu,
            "model": "org/chat-8b",
            "fingerprint": fingerprint,
            "profile": profile_json(),
        },
    }
