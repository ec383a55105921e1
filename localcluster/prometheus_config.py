"""Configuration of Prometheus and Alertmanager; pure.

Which pods are scraped is what a PodMonitor would say on a cluster with the Prometheus operator; here the pod says it
itself, by the annotations that most charts use:

* `prometheus.io/scrape: "true"` - scrape this pod;
* `prometheus.io/port` - only this one of its declared ports (default: every declared port);
* `prometheus.io/path` - instead of `/metrics`.

The labels are those a PodMonitor gives: `namespace`, `pod`, `container`, `endpoint` (the port's name), `job`
(`NAMESPACE/localcluster`, as NAMESPACE/NAME of a PodMonitor) and `instance`, and `node` besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from localcluster.failure import LocalClusterError
from localcluster.state import StateFolder

USER: Final = "localcluster:prometheus"
_POD: Final = "__meta_kubernetes_pod_"
_ANNOTATION: Final = f"{_POD}annotation_prometheus_io_"


def read_only_access() -> list[dict[str, Any]]:
    """RBAC objects: Prometheus may see pods and the nodes and namespaces they are in, and change nothing."""
    name = "localcluster-prometheus"
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["pods", "nodes", "namespaces"],
                    "verbs": ["get", "list", "watch"],
                }
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
        },
    ]


def configuration(
    *,
    kubeconfig: Path,
    scrape_interval_s: float,
    rule_files: Sequence[Path],
    alertmanager: str,
    extra_scrapes: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Prometheus' configuration document.

    Args:
        kubeconfig: of a user who may list pods.
        scrape_interval_s: seconds between scrapes, and between evaluations of rules.
        rule_files: files with `groups:`.
        alertmanager: its URL, or empty.
        extra_scrapes: further entries of `scrape_configs`, for targets that are not pods.
    """
    interval = f"{round(scrape_interval_s * 1000)}ms"
    document: dict[str, Any] = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(path) for path in rule_files],
        "scrape_configs": [
            {
                "job_name": "pods",
                "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(kubeconfig)}],
                "relabel_configs": _pod_relabelling(),
            },
            *extra_scrapes,
        ],
    }
    if alertmanager:
        target = alertmanager.removeprefix("http://")
        document["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [target]}]}]}
    return document


def _pod_relabelling() -> list[dict[str, Any]]:
    declared, wanted = "__tmp_declared_port", "__tmp_wanted_port"
    return [
        {"source_labels": [f"{_ANNOTATION}scrape"], "regex": "true", "action": "keep"},
        {"source_labels": [f"{_POD}phase"], "regex": "Succeeded|Failed", "action": "drop"},
        {"source_labels": [f"{_POD}container_port_protocol"], "regex": "TCP", "action": "keep"},
        # RE2 has no back-references: that two labels are equal is asked by `keepequal`.
        {"source_labels": [f"{_POD}container_port_number"], "target_label": declared},
        {"source_labels": [f"{_POD}container_port_number"], "target_label": wanted},
        {"source_labels": [f"{_ANNOTATION}port"], "regex": r"(\d+)", "target_label": wanted},
        {"source_labels": [wanted], "target_label": declared, "action": "keepequal"},
        {"source_labels": [f"{_ANNOTATION}path"], "regex": "(.+)", "target_label": "__metrics_path__"},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": [f"{_POD}name"], "target_label": "pod"},
        {"source_labels": [f"{_POD}container_name"], "target_label": "container"},
        {"source_labels": [f"{_POD}container_port_name"], "target_label": "endpoint"},
        {"source_labels": [f"{_POD}node_name"], "target_label": "node"},
        {
            "source_labels": ["__meta_kubernetes_namespace"],
            "replacement": "$1/localcluster",
            "target_label": "job",
        },
    ]


def alertmanager_configuration() -> dict[str, Any]:
    """Alerts arrive and can be read at `/api/v2/alerts`; nothing is sent anywhere."""
    return {
        "route": {"receiver": "nobody", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "nobody"}],
    }


def rule_document(text: str, where: str) -> dict[str, Any]:
    """Rule groups out of a rule file, or out of PrometheusRule manifests as a chart renders them.

    Raises:
        LocalClusterError: neither is in it.
    """
    groups: list[Any] = []
    for document in yaml.safe_load_all(text):
        if isinstance(document, dict):
            rules = document.get("spec", {}) if document.get("kind") == "PrometheusRule" else document
            groups += rules.get("groups", [])
    if not groups:
        raise LocalClusterError(f"{where}: no rule groups; expected `groups:` or a PrometheusRule")
    return {"groups": groups}


def write_rules(folder: Path, files: Iterable[Path]) -> list[Path]:
    """Puts the rules of each file where Prometheus loads them; removes those of an earlier call."""
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.glob("*.yaml"):
        earlier.unlink()
    written = []
    for position, file in enumerate(files):
        target = folder / f"{position:02d}-{file.stem}.yaml"
        target.write_text(yaml.safe_dump(rule_document(file.read_text(), str(file)), sort_keys=False))
        written.append(target)
    return written


def prometheus_command(program: Path, state: StateFolder, url: str, *, lookback_s: float) -> list[str]:
    """Prometheus; its pages and API on loopback, without the switches that let any visitor stop or reload it."""
    return [
        str(program),
        f"--config.file={state.root / 'prometheus' / 'prometheus.yaml'}",
        f"--storage.tsdb.path={state.root / 'prometheus' / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        f"--query.lookback-delta={round(lookback_s * 1000)}ms",
        "--log.level=warn",
    ]


def alertmanager_command(program: Path, state: StateFolder, url: str) -> list[str]:
    """Alertmanager, alone: no gossip port."""
    return [
        str(program),
        f"--config.file={state.root / 'alertmanager' / 'alertmanager.yaml'}",
        f"--storage.path={state.root / 'alertmanager' / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]
