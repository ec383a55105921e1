"""Two releases of the chart side by side, each with a selector: each leads its own Lease, and leaves the other one's services alone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from localcluster import LocalCluster
from localcluster.free_ports import free_ports
from operatorcluster.stage import CHART
from operatorcluster.waiting import until

HOME = "breakeven"
RELEASES = ("breakeven-a", "breakeven-b")


def service(name: str, **labels: str) -> dict[str, object]:
    return {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "SpeculativeService",
        "metadata": {"name": name, "namespace": "llm", "labels": labels},
        "spec": {
            "targetRef": {"name": name},
            "candidates": {"methods": [{"name": "lookup", "method": "ngram", "draftLengths": [3]}]},
        },
    }


MORE = dict(
    zip(RELEASES, ((), ("crds.install=false", "calibration.priorityClass.create=false")), strict=True)
)

# On the loopback, which the operators of all clusters share.
BOARD_PORTS = dict(zip(RELEASES, free_ports(2), strict=True))


def install(cluster: LocalCluster, verb: str, release: str, selector: dict[str, object]) -> None:
    """Helm's install or upgrade of one of the releases."""
    cluster.helm(
        verb, release, str(CHART), f"--namespace={HOME}", "--create-namespace", "--set=operator.cycleSeconds=1",
        f"--set-json=operator.serviceSelector={json.dumps(selector)}", f"--set=board.port={BOARD_PORTS[release]}",
        *(f"--set={one}" for one in MORE[release]),
        "--wait", "--timeout=300s",
    )  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        running.start_nodes()
        running.kubectl("create", "namespace", "llm")
        for release in RELEASES:
            install(running, "install", release, {"matchLabels": {"shard": release[-1]}})
        yield running


def apply(cluster: LocalCluster, *documents: dict[str, object]) -> None:
    cluster.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(documents))


def writers(cluster: LocalCluster, name: str) -> set[str]:
    """Accounts that wrote a service's status."""
    return {
        event.user.rpartition(":")[2]
        for event in cluster.audit_events()
        if (event.resource, event.name, event.subresource) == ("speculativeservices", name, "status")
    }


def warnings(cluster: LocalCluster, release: str) -> list[str]:
    text = cluster.kubectl("logs", f"--namespace={HOME}", f"deployment/{release}").stdout
    lines = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
    return [line["message"] for line in lines if "overlap" in line.get("message", "")]


def test_each_leads_its_own_lease_and_writes_its_own_services_alone(cluster):
    apply(cluster, service("chat", shard="a"), service("code", shard="b"), service("nobody"))
    for name, release in zip(("chat", "code"), RELEASES, strict=True):
        until(f"{release} decides about {name}", lambda name=name: writers(cluster, name))
        assert writers(cluster, name) == {release}
    leases = json.loads(cluster.kubectl("get", "leases", f"--namespace={HOME}", "--output=json").stdout)[
        "items"
    ]
    holders = {one["metadata"]["name"]: one["spec"]["holderIdentity"] for one in leases}
    assert holders.keys() == set(RELEASES)
    for release in RELEASES:
        assert holders[release].startswith(f"{release}-")
        assert warnings(cluster, release) == []
    # A service changes hands with its label.
    cluster.kubectl("label", "--overwrite", "--namespace=llm", "specsvc/chat", "shard=b")
    cluster.kubectl(
        "patch", "--namespace=llm", "specsvc/chat", "--type=merge", "--patch", '{"spec": {"updatePolicy": {"mode": "Disabled"}}}'
    )  # fmt: skip
    until("the other one takes it over", lambda: writers(cluster, "chat") == set(RELEASES))
    assert writers(cluster, "code") == {RELEASES[1]}
    assert writers(cluster, "nobody") == set()
    refused = [event for event in cluster.audit_events() if ":breakeven" in event.user and event.code == 403]
    assert refused == []


def test_selectors_that_overlap_are_said_in_one_line_and_the_older_lease_decides(cluster):
    install(cluster, "upgrade", RELEASES[1], {"matchExpressions": [{"key": "shard", "operator": "Exists"}]})
    apply(cluster, service("both", shard="a"))
    until("it is decided about", lambda: writers(cluster, "both"))
    expected = "overlap (services: 1, the first is llm/both): the holder of breakeven-a, which is older, decides about them"
    for release in RELEASES:
        said = until(f"{release} says so", lambda release=release: warnings(cluster, release))
        assert len([line for line in said if expected in line]) == 1, said
    assert writers(cluster, "both") == {RELEASES[0]}
