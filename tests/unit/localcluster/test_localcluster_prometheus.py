"""Prometheus' scrape targets, and the rules that it loads."""

import ipaddress
import re
from pathlib import Path

import pytest
import yaml

from localcluster import components, prometheus_config
from localcluster.failure import LocalClusterError
from localcluster.state import ClusterEndpoints, StateFolder

GROUP = {"name": "g", "rules": [{"alert": "A", "expr": "up == 0"}]}


def configured(**changes):
    arguments = {"kubeconfig": Path("/k"), "scrape_interval_s": 0.5, "rule_files": [], "alertmanager": ""}
    return prometheus_config.configuration(**(arguments | changes))


def relabel(labels, rules):
    """Prometheus' relabelling, as much of it as the configuration uses (documentation, `relabel_config`)."""
    labels = dict(labels)
    for rule in rules:
        value = ";".join(labels.get(name, "") for name in rule["source_labels"])
        found = re.fullmatch(rule.get("regex", "(.*)"), value)
        match rule.get("action", "replace"):
            case "keep" if not found:
                return None
            case "drop" if found:
                return None
            case "keepequal" if value != labels.get(rule["target_label"], ""):
                return None
            case "replace" if found:
                replacement = re.sub(r"\$(\d)", r"\\\1", rule.get("replacement", "$1"))
                labels[rule["target_label"]] = found.expand(replacement)
    return {k: v for k, v in labels.items() if not k.startswith("__") or k == "__metrics_path__"}


def target(annotations, port="8000", protocol="TCP", phase="Running"):
    pod = "__meta_kubernetes_pod_"
    return {
        "__address__": f"127.1.0.5:{port}",
        "__metrics_path__": "/metrics",
        "__meta_kubernetes_namespace": "llm",
        f"{pod}name": "chat-0",
        f"{pod}node_name": "a100-0",
        f"{pod}phase": phase,
        f"{pod}container_name": "vllm",
        f"{pod}container_port_name": "http",
        f"{pod}container_port_number": port,
        f"{pod}container_port_protocol": protocol,
        **{f"{pod}annotation_prometheus_io_{k}": v for k, v in annotations.items()},
    }


@pytest.fixture
def rules():
    return configured()["scrape_configs"][0]["relabel_configs"]


def test_a_scraped_pod_has_the_labels_of_a_pod_monitor(rules):
    assert relabel(target({"scrape": "true"}), rules) == {
        "__metrics_path__": "/metrics",
        "namespace": "llm",
        "pod": "chat-0",
        "container": "vllm",
        "endpoint": "http",
        "node": "a100-0",
        "job": "llm/localcluster",
    }


@pytest.mark.parametrize(
    "pod",
    [
        target({}),
        target({"scrape": "false"}),
        target({"scrape": "true"}, phase="Succeeded"),
        target({"scrape": "true"}, phase="Failed"),
        target({"scrape": "true"}, protocol="UDP"),
        target({"scrape": "true", "port": "8000"}, port="8001"),
    ],
    ids=["unasked", "refused", "succeeded", "failed", "udp", "other-port"],
)
def test_what_is_not_scraped(rules, pod):
    assert relabel(pod, rules) is None


def test_port_and_path_can_be_named(rules):
    chosen = relabel(target({"scrape": "true", "port": "8000", "path": "/stats"}), rules)
    assert chosen["__metrics_path__"] == "/stats"


def test_intervals_are_those_asked_for():
    assert configured(scrape_interval_s=0.5)["global"] == {
        "scrape_interval": "500ms",
        "scrape_timeout": "500ms",
        "evaluation_interval": "500ms",
    }


def test_alerts_go_to_the_alertmanager_if_there_is_one():
    assert "alerting" not in configured()
    alerting = configured(alertmanager="http://127.0.0.1:9093")["alerting"]
    assert alerting["alertmanagers"][0]["static_configs"][0]["targets"] == ["127.0.0.1:9093"]


def test_prometheus_may_only_read():
    role = next(o for o in prometheus_config.read_only_access() if o["kind"] == "ClusterRole")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_rules_come_from_rule_files_and_from_manifests(tmp_path):
    plain, manifest = tmp_path / "a.yaml", tmp_path / "b.yaml"
    plain.write_text(yaml.safe_dump({"groups": [GROUP]}))
    documents = [{"kind": "ServiceAccount"}, None, {"kind": "PrometheusRule", "spec": {"groups": [GROUP]}}]
    manifest.write_text(yaml.safe_dump_all(documents))
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/earlier.yaml").touch()
    written = prometheus_config.write_rules(tmp_path / "rules", [plain, manifest])
    assert [yaml.safe_load(path.read_text()) for path in written] == [{"groups": [GROUP]}] * 2
    assert sorted((tmp_path / "rules").iterdir()) == written


def test_a_file_without_rules_is_refused_by_name():
    with pytest.raises(LocalClusterError, match=r"^x\.yaml: no rule groups"):
        prometheus_config.rule_document("kind: Deployment\n", "x.yaml")


def test_everything_listens_on_loopback_only(tmp_path):
    state = StateFolder.at(tmp_path)
    endpoints = ClusterEndpoints("https://127.0.0.1:6443", 2379, 2380)
    program = Path("/bin/x")
    commands = [
        components.etcd(program, state, endpoints),
        components.api_server(program, state, endpoints),
        prometheus_config.prometheus_command(program, state, "http://127.0.0.1:9090", lookback_s=300),
        prometheus_config.alertmanager_command(program, state, "http://127.0.0.1:9093"),
    ]
    for command in commands:
        listening = [flag for flag in command if re.search(r"(listen|bind)[-_.\w]*=", flag)]
        assert listening
        for flag in listening:
            for address in re.findall(r"\d+\.\d+\.\d+\.\d+", flag):
                assert ipaddress.ip_address(address).is_loopback, flag
            assert "=:" not in flag
    # No server at all in these two.
    for command in (components.controller_manager(program, state), components.scheduler(program, state)):
        assert "--secure-port=0" in command


def test_tools_leave_no_file_in_the_home_folder(tmp_path):
    env = components.tool_environment(
        StateFolder.at(tmp_path), {"HOME": "/home/me", "KUBECONFIG": "/home/me/.kube"}
    )
    assert env.pop("HOME") == "/home/me"
    assert len(env) == 5
    assert all(Path(value).is_relative_to(tmp_path) for value in env.values())
