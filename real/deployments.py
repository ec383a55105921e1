"""Objects for the one-machine cluster: the image of the real engine, its Deployment, a simulated twin, the service."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.load_driver.sent_workload import SYNTHETIC
from demo.installation import CHART, NAMESPACE, OPERATOR_NAMESPACE
from localcluster import GpuNode, LocalCluster
from real.cores import CoreSplit
from real.engine_process import CORE, LOOPBACK
from real.gpu import OwnEngine
from real.pair_rows import AGAIN
from real.pairs import Script
from real.served_model import ServedModel

ROOT = Path(__file__).resolve().parent.parent
MODEL = "chat"
TARGET = "chat-vllm"
BESIDE = "chat-vllm-beside"
SERVICE = "chat"
PORT = 8000
IMAGE = "vllm/vllm-openai-cpu:v0.32.0"
SIMULATED_IMAGE = "vllm/vllm-openai:v0.32.0"
# An engine takes one "GPU" of its node: one serves while another is measured, or comes up during a roll.
CPU_NODE = GpuNode("cpu-0", "one-x86-64-core", 2)
SIMULATED_NODE = GpuNode("a100-0", "NVIDIA-A100-SXM4-80GB", 4)
LOOKUP, DRAFTER = "lookup", "drafter"
DRAFT_LENGTH = 3
_LOOKED_UP = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}

Manifest = dict[str, Any]


def images(python: Path, cores: CoreSplit) -> list[Manifest]:
    """The table of images for the node agent: the real engine's, by the Python that has vLLM, on the engine's core."""
    launcher = str(Path(__file__).with_name("engine_process.py"))
    return [
        {
            "images": ["vllm/vllm-openai-cpu:*"],
            "entrypoint": [str(python), launcher, "serve"],
            "aliases": [["vllm", "serve"]],
            "defaults": {"--host": "{pod_ip}"},
            "env": {
                "PYTHONUNBUFFERED": "1",
                CORE: str(cores.engine),
                # One thread, where its process is; vLLM would bind it to a core before the process itself may go there.
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "DO_NOT_TRACK": "1",
                **LOOPBACK,
                "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
            },
        }
    ]


def engine_arguments(served: ServedModel, port: int = PORT) -> list[str]:
    """Arguments of both engines, without those that choose the arm."""
    return [
        str(served.target),
        f"--served-model-name={MODEL}",
        f"--port={port}",
        *(() if served.speaks else ("--load-format=dummy",)),
        "--dtype=float32",
        "--enforce-eager",
        f"--max-model-len={served.max_length}",
        f"--max-num-seqs={served.max_batch}",
        # Every prompt is another one; what a repeated one would save is not what is measured.
        "--no-enable-prefix-caching",
        "--shutdown-timeout=60",
    ]


# The script of a GPU, as long as one core needs for its loads.
SHORT_SCRIPT = Script(
    arms=(NO_SPECULATION, Arm("ngram", DRAFT_LENGTH), Arm("ngram", 8)),
    whole_s=1200.0,
    start_s=400.0,
    decode_clients=(1, 8),
    decode_answer=32,
    decode_s=2.5,
    streams=4,
    stream_tokens=900,
    prompts=(64, 256),
    every_s=1.0,
    each=4,
    quiet_s=1.0,
    rps=1.5,
    inflight=2.0,
    prompt=48,
    answer=48,
    warmup_s=3.0,
    rounds=1,
    closed_clients=4,
    answers=(24, 72),
    text=SYNTHETIC,
)


def own_engines(
    served: ServedModel, python: Path, cores: CoreSplit, ports: Sequence[int]
) -> dict[str, OwnEngine]:
    """The engines of the short script by name, as pods run them; the restarted one has nothing else, so that it shows a start."""
    (image,) = images(python, cores)
    arms = SHORT_SCRIPT.arms
    words = {
        arm.name: () if arm == NO_SPECULATION else (f"--speculative-config={_lookup(arm.k)}",) for arm in arms
    }
    return {
        name: OwnEngine((*image["entrypoint"], *engine_arguments(served, port), *own), port, image["env"])
        for (name, own), port in zip({**words, AGAIN: ()}.items(), ports, strict=True)
    }


def _lookup(k: int) -> str:
    return json.dumps({"method": "ngram", "num_speculative_tokens": k, **_LOOKED_UP})


def target(served: ServedModel) -> Manifest:
    """The Deployment of the real engine, with opt-in and drain lines."""
    return _deployment(
        TARGET,
        IMAGE,
        CPU_NODE,
        [*engine_arguments(served), "--speculative-config=$(BREAKEVEN_SPECULATIVE_CONFIG)"],
        [
            {
                "name": "BREAKEVEN_SPECULATIVE_CONFIG",
                "valueFrom": {
                    "fieldRef": {"fieldPath": "metadata.annotations['breakeven.dev/speculative-config']"}
                },
            }
        ],
    )


def beside(served: ServedModel, speculative_config: str) -> Manifest:
    """The Deployment of a real engine that is no target: it is measured in turn with the one that is."""
    arguments = [*engine_arguments(served), f"--speculative-config={speculative_config}"]
    return _deployment(BESIDE, IMAGE, CPU_NODE, arguments, [])


def simulated(name: str, served: ServedModel, speculative_config: str) -> Manifest:
    """The Deployment of the simulated engine, started with the same words."""
    arguments = [*engine_arguments(served), f"--speculative-config={speculative_config}"]
    return _deployment(name, SIMULATED_IMAGE, SIMULATED_NODE, arguments, [])


def _deployment(
    name: str, image: str, node: GpuNode, arguments: Sequence[str], env: Sequence[Mapping[str, Any]]
) -> Manifest:
    health = {"httpGet": {"path": "/health", "port": "http"}}
    container = {
        "name": "vllm",
        "image": image,
        "args": list(arguments),
        "env": list(env),
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"nvidia.com/gpu": 1}},
        "startupProbe": {**health, "periodSeconds": 2, "failureThreshold": 450},
        "readinessProbe": {**health, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 6},
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            # Compiled and loaded in minutes on a busy machine; a roll is given up by the operator, not by this.
            "progressDeadlineSeconds": 1200,
            "template": {
                "metadata": {
                    "labels": {"app": name},
                    "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": str(PORT)},
                },
                "spec": {
                    "nodeSelector": {"nvidia.com/gpu.product": node.product},
                    "terminationGracePeriodSeconds": 90,
                    "containers": [container],
                },
            },
        },
    }


def service(served: ServedModel) -> Manifest:
    """The SpeculativeService: no speculation, n-gram lookup (and its schedule), a draft model."""
    methods = [
        {
            "name": LOOKUP,
            "method": "ngram",
            "draftLengths": list(served.draft_lengths),
            "options": _LOOKED_UP,
            **({} if len(served.draft_lengths) > 1 else {"schedule": "Never"}),
        },
        {
            "name": DRAFTER,
            "method": "draft_model",
            "model": str(served.drafter),
            "draftLengths": [DRAFT_LENGTH],
            "schedule": "Never",
            # It needs CUDA graphs, and this vLLM runs on a CPU.
            "adaptiveVerification": "Never",
        },
    ]
    workload = {"promptTokens": served.shape.prompt_tokens, "outputTokens": served.shape.output_tokens}
    return {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "SpeculativeService",
        "metadata": {"name": SERVICE},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": TARGET},
            "candidates": {"methods": methods},
            "calibration": {**served.calibration, "startupDeadlineSeconds": 900, "workload": workload},
            "metricsSource": {
                "windowSeconds": served.window_s,
                "stalenessSeconds": 15,
                "minRequests": 15,
            },
            "updatePolicy": {
                "mode": "Recommend",
                "cooldownSeconds": 15,
                "stabilizationWindowSeconds": 5,
                "lookbackSeconds": 0,
                "rollDeadlineSeconds": 900,
            },
        },
    }


def stand_up(cluster: LocalCluster, table: Path) -> None:
    """Nodes, Prometheus and the operator from its chart.

    Args:
        cluster: started.
        table: the file that `images` is written to.
    """
    cluster.start_nodes((CPU_NODE, SIMULATED_NODE), extra_arguments=["--images", str(table)])
    cluster.start_prometheus(scrape_interval_s=1.0, alertmanager=False, lookback_s=10.0)
    cluster.helm(
        "install", "breakeven", str(CHART), f"--namespace={OPERATOR_NAMESPACE}", "--create-namespace",
        f"--set=prometheus.address={cluster.prometheus_url}",
        "--set=operator.cycleSeconds=3,operator.statusRefreshSeconds=3,timing.replicasQuietSeconds=10",
        "--wait", "--timeout=300s",
    )  # fmt: skip
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl(
        "wait", "--for=create", "serviceaccount/default", f"--namespace={NAMESPACE}", "--timeout=180s"
    )


def apply(cluster: LocalCluster, *documents: Manifest) -> None:
    """`kubectl apply` in the run's namespace."""
    cluster.kubectl("apply", f"--namespace={NAMESPACE}", "--filename=-", stdin=yaml.safe_dump_all(documents))
