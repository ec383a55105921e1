"""Installs the operator from its chart, and the examples with the changes that a short demo needs.

Every change is a line in `shortened`, with the value that production has, and ends up in the demo's summary.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.updatepolicy import PRODUCTION, Timing
from localcluster import LocalCluster
from localcluster.free_ports import free_ports

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
CHART = ROOT / "charts" / "breakeven"
NAMESPACE = "llm"
OPERATOR_NAMESPACE = "breakeven"

Manifest = dict[str, Any]
# Short answers: many requests per second, so that a few seconds at each load tell something.
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 16
WINDOW_S = 12

# Production's long times, shortened. Values are of this demo only; `shortened` lists them beside the defaults.
_SHORT_SPEC: Mapping[str, Any] = {
    "updatePolicy": {
        "cooldownSeconds": 15,
        # A verdict holds the six windows before a roll against those after it: five of them are at the load that asks for it.
        "stabilizationWindowSeconds": 60,
        # Minutes ago somebody tried another load: that is no day that comes again.
        "lookbackSeconds": 0,
        "rollDeadlineSeconds": 180,
    },
    "calibration": {
        "loads": 7,
        "pointSeconds": 4,
        "warmupSeconds": 1,
        # The simulated engines are slow: short answers, and not all of those that are asked for alone.
        "answers": {"check": "Warn", "maxSecondsPerArm": 20, "outputTokens": 48},
        "workload": {"promptTokens": PROMPT_TOKENS, "outputTokens": OUTPUT_TOKENS},
    },
    "metricsSource": {"windowSeconds": WINDOW_S, "stalenessSeconds": 8, "minRequests": 15},
}
_CANDIDATES: Mapping[str, Any] = {
    "methods": [
        {
            "name": "eagle",
            "method": "eagle3",
            "model": "AngelSlim/Qwen3-8B_eagle3",
            "draftLengths": [3],
        }
    ]
}
# The Recommend service speculates already, by a static flag, as many users do before they ask whether it pays.
_STATIC_ARM = '{"method":"eagle3","model":"AngelSlim/Qwen3-8B_eagle3","num_speculative_tokens":3}'
PROBE_PERIOD_S = 1
# Longer than this demo's users take to learn that a pod goes, on a busy machine too.
PRE_STOP_S = 5
OPERATOR_CYCLE_S = 2
# Both services are measured at once.
PARALLEL_CALIBRATIONS = 2
ALERT_DELAY_S = 3


def install_operator(cluster: LocalCluster, timing: Timing) -> None:
    """Install the chart as a user would, with an operator that looks more often than in production."""
    cluster.helm(
        "install",
        "breakeven",
        str(CHART),
        "--namespace",
        OPERATOR_NAMESPACE,
        "--create-namespace",
        "--set",
        f"prometheus.address={cluster.prometheus_url}",
        "--set",
        f"operator.cycleSeconds={OPERATOR_CYCLE_S}",
        "--set",
        f"operator.statusRefreshSeconds={OPERATOR_CYCLE_S}",
        "--set",
        f"calibration.maxParallel={PARALLEL_CALIBRATIONS}",
        *(f"--set=timing.{name}={value}" for name, value in timing.to_json_object().items()),
        # All pods of this machine share its loopback.
        "--set",
        f"board.port={free_ports(1)[0]}",
    )


def board_address(cluster: LocalCluster) -> str:
    """Where the board of the operator is, on this machine's loopback."""
    port = cluster.kubectl(
        "get", "deployment", "breakeven", f"--namespace={OPERATOR_NAMESPACE}",
        '--output=jsonpath={.spec.template.spec.containers[0].ports[?(@.name=="board")].containerPort}',
    ).stdout  # fmt: skip
    return f"http://127.0.0.1:{port}/"


def alert_rules(cluster: LocalCluster, folder: Path) -> list[Path]:
    """The chart's alert rules as Prometheus loads them, with the delays shortened; the paths written."""
    rendered = cluster.helm(
        "template",
        "breakeven",
        str(CHART),
        "--show-only",
        "templates/alerts.yaml",
        "--set",
        "alerts.prometheusRule=Always",
        "--set",
        f"alerts.rules.SpeculationUnprofitable.for={ALERT_DELAY_S}s",
    ).stdout
    path = folder / "breakeven-rules.yaml"
    path.write_text(rendered)
    return [path]


def apply_examples(cluster: LocalCluster) -> dict[str, Manifest]:
    """Apply both Deployments and both SpeculativeServices; returns the latter by name."""
    chat, code = deployment("vllm-a100.yaml", replicas=2), deployment("vllm-h100.yaml", replicas=1)
    _run_statically(code[0])
    services = [
        service("chat", "chat-vllm", "RollingUpdate"),
        service("code", "code-vllm", "Recommend"),
    ]
    apply(cluster, *chat, *code, *services)
    return {item["metadata"]["name"]: item for item in services}


def apply(cluster: LocalCluster, *manifests: Manifest) -> None:
    """Apply manifests, in order, in the demo's namespace, which is made where it is missing."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(namespace))
    cluster.kubectl("apply", "--namespace", NAMESPACE, "-f", "-", stdin=yaml.safe_dump_all(manifests))


def measure_again(cluster: LocalCluster, service: str, attempt: int) -> None:
    """Ask the operator for another calibration, as a person would."""
    value = f"breakeven.dev/recalibrate=attempt-{attempt}"
    cluster.kubectl("annotate", "--overwrite", "--namespace", NAMESPACE, "specsvc", service, value)


def set_mode(cluster: LocalCluster, service: str, mode: str) -> None:
    """Change what the operator may do, as a person would."""
    patch = json.dumps({"spec": {"updatePolicy": {"mode": mode}}})
    cluster.kubectl("patch", "--namespace", NAMESPACE, "specsvc", service, "--type=merge", f"--patch={patch}")


def restart(cluster: LocalCluster, deployment: str) -> None:
    """Restart a Deployment as its owner would."""
    cluster.kubectl("rollout", "restart", "--namespace", NAMESPACE, "deployment", deployment)


def operator_log(cluster: LocalCluster) -> tuple[str, int]:
    """The log of the operator's process, and how often its container was restarted."""
    where = f"--namespace={OPERATOR_NAMESPACE}"
    text = cluster.kubectl("logs", where, "deployment/breakeven").stdout
    restarts = cluster.kubectl(
        "get", "pods", where, "--selector=app.kubernetes.io/name=breakeven",
        "--output=jsonpath={.items[*].status.containerStatuses[*].restartCount}",
    ).stdout  # fmt: skip
    return text, sum(map(int, restarts.split()))


def service(name: str, target: str, mode: str) -> Manifest:
    """`examples/speculativeservice.yaml` for one target, with this demo's candidates and short intervals."""
    manifest: Manifest = copy.deepcopy(_load("speculativeservice.yaml")[0])
    manifest["metadata"]["name"] = name
    spec = manifest["spec"]
    spec["targetRef"]["name"] = target
    spec["candidates"] = copy.deepcopy(dict(_CANDIDATES))
    spec.pop("slo", None)
    spec["calibration"].pop("schedule", None)
    _merge(spec, _SHORT_SPEC)
    spec["updatePolicy"]["mode"] = mode
    return manifest


def shortened(timing: Timing) -> list[tuple[str, str, str]]:
    """(setting, production value, this demo's value) of everything that differs."""
    minimal = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "SpeculativeService",
        "metadata": {"name": "defaults"},
        "spec": {"targetRef": {"name": "x"}, "candidates": dict(_CANDIDATES)},
    }
    spec = SpeculativeService.read(minimal, "defaults").spec.to_json_object()
    rows = []
    for path, value in _leaves(_SHORT_SPEC):
        default: Any = spec
        for key in path:
            default = (default or {}).get(key)
        if default != value:
            rows.append((".".join(path), "derived" if default is None else str(default), str(value)))
    rows.append(
        (
            "candidates of examples/speculativeservice.yaml",
            "eagle/2, eagle/7, lookup/4, a schedule each, eagle/adaptive",
            "eagle/3, its schedule, eagle/adaptive",
        )
    )
    rows.append(("vLLM readinessProbe.periodSeconds", "5", str(PROBE_PERIOD_S)))
    rows.append(("vLLM preStop sleep, s", "10", str(PRE_STOP_S)))
    rows.append(("calibrations at the same time", "1", str(PARALLEL_CALIBRATIONS)))
    production = PRODUCTION.to_json_object()
    rows += [
        (f"timing.{name} of the chart", str(production[name]), str(value))
        for name, value in timing.to_json_object().items()
        if value != production[name]
    ]
    rows.append(("operator cycle, s", "15", str(OPERATOR_CYCLE_S)))
    rows.append(("alert SpeculationUnprofitable, for", "10m", f"{ALERT_DELAY_S}s"))
    return rows


def deployment(example: str, replicas: int) -> list[Manifest]:
    """The Deployment of an example and its Service, with probes and draining made short."""
    manifests = _load(example)
    pod = manifests[0]["spec"]["template"]["spec"]
    manifests[0]["spec"]["replicas"] = replicas
    container = pod["containers"][0]
    container["readinessProbe"]["periodSeconds"] = PROBE_PERIOD_S
    container["startupProbe"]["periodSeconds"] = PROBE_PERIOD_S
    container["lifecycle"]["preStop"]["sleep"]["seconds"] = PRE_STOP_S
    # The example asks for a real engine's memory and CPU; here they only have to fit the simulated node.
    container["resources"]["requests"] = {"cpu": "1", "memory": "1Gi"}
    return manifests


def _run_statically(deployment: Manifest) -> None:
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["args"] = [
        f"--speculative-config={_STATIC_ARM}" if item.startswith("--speculative-config") else item
        for item in container["args"]
    ]


def _load(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def _merge(base: Manifest, change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = copy.deepcopy(value)


def _leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value
