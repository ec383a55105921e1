"""The state folder, ports, certificates, kubeconfigs and audit log."""

import contextlib
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from localcluster import audit, descendants, kubeconfig, pki
from localcluster.components import AUDIT_POLICY
from localcluster.failure import LocalClusterError
from localcluster.free_ports import free_ports
from localcluster.nodes import DEFAULT, GpuNode, is_ready, with_this_package
from localcluster.state import ClusterEndpoints, StateFolder


@pytest.fixture
def state(tmp_path):
    folder = StateFolder.at(tmp_path / "state")
    folder.create()
    return folder


def test_removing_a_cluster_leaves_other_files_alone(state):
    (state.root / "demo.png").touch()
    (state.root / "etcd/member").mkdir(parents=True)
    state.save(ClusterEndpoints("https://127.0.0.1:6443", 1, 2))
    (state.root / "bin/kubectl").symlink_to("/bin/true")
    state.remove()
    assert [p.name for p in state.root.iterdir()] == ["demo.png"]


def test_removing_a_cluster_removes_the_folder_when_nothing_else_is_in_it(state):
    state.remove()
    assert not state.root.exists()
    state.remove()


def test_state_is_closed_to_other_users(state):
    assert stat.S_IMODE(state.root.stat().st_mode) == 0o700


def test_endpoints_survive_the_round_trip(state):
    endpoints = ClusterEndpoints("https://127.0.0.1:6443", 2379, 2380, "http://127.0.0.1:9090")
    state.save(endpoints)
    assert state.load() == endpoints
    assert endpoints.api_port == 6443


def test_loading_where_no_cluster_is_says_how_to_get_one(tmp_path):
    with pytest.raises(LocalClusterError, match="make cluster-up"):
        StateFolder.at(tmp_path).load()


def test_one_cluster_per_folder(state):
    held = state.lock()
    assert held is not None
    assert state.lock() is None
    state.remove()
    os.close(held)
    # The file that was locked is gone: the next process gets a lock that others see.
    again = state.lock()
    assert again is not None
    assert state.lock() is None
    os.close(again)


def test_a_lock_on_a_file_that_is_gone_is_none(state, monkeypatch):
    # A cluster that stops between this one's open and lock takes the file away with its lock.
    take = fcntl.flock
    taken: list[int] = []

    def stop_the_other_first(descriptor, how):
        if not taken:
            (state.root / "lock").unlink()
        taken.append(descriptor)
        take(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", stop_the_other_first)
    held = state.lock()
    assert os.path.samestat(os.fstat(held), (state.root / "lock").stat())
    assert len(taken) == 2
    os.close(held)


def test_ports_are_free_distinct_and_no_clients(tmp_path):
    lowest_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(1024 < port < lowest_of_clients for port in ports)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[0]))
        taken.listen()
        assert ports[0] not in free_ports(200)


def test_two_processes_are_never_given_the_same_port():
    """Neither listens yet, and each takes so many that eleven of them would be the other's too."""
    script = "from localcluster.free_ports import free_ports; print(*free_ports(500), flush=True); input()"
    with contextlib.ExitStack() as running:
        given: list[bytes] = []
        for _ in range(2):
            command = [sys.executable, "-c", script]
            environment, pipe = with_this_package(os.environ), subprocess.PIPE
            child = running.enter_context(subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe))
            running.callback(child.kill)
            given += child.stdout.readline().split()
    assert len(set(given)) == 1000


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    pki.write(folder)
    return folder


def load(folder, name):
    return x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())


def test_everybody_is_signed_by_the_authority(certificates):
    authority = load(certificates, "ca")
    for identity in pki.IDENTITIES:
        certificate = load(certificates, identity.name)
        certificate.verify_directly_issued_by(authority)
        key = serialization.load_pem_private_key((certificates / f"{identity.name}.key").read_bytes(), None)
        assert key.public_key() == certificate.public_key()
        assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_only_parts_that_must_are_administrators(certificates):
    masters = x509.Name.from_rfc4514_string("O=system:masters").rdns[0]
    assert {i.name for i in pki.IDENTITIES if masters in load(certificates, i.name).subject.rdns} == {
        "admin",
        "node-agent",
    }


def test_keys_are_their_owners_only(certificates):
    keys = list(certificates.glob("*.key"))
    assert len(keys) == len(pki.IDENTITIES) + 2
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_kubeconfig_is_self_contained_and_private(certificates, tmp_path):
    path = tmp_path / "kubeconfig"
    kubeconfig.write(path, server="https://127.0.0.1:1", pki=certificates, identity="admin")
    document = yaml.safe_load(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert document["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert set(document["users"][0]["user"]) == {"client-certificate-data", "client-key-data"}


def audit_line(name, **changes):
    event = {
        "stage": "ResponseComplete",
        "verb": "patch",
        "requestURI": "/apis/apps/v1/namespaces/llm/deployments/x?fieldManager=breakeven",
        "user": {"username": "system:serviceaccount:breakeven:operator"},
        "objectRef": {"resource": "deployments", "namespace": "llm", "name": name, "apiGroup": "apps"},
        "responseStatus": {"code": 200},
        "requestReceivedTimestamp": "2026-01-31T10:00:00.123456Z",
        "requestObject": {"spec": {}},
    } | changes
    return json.dumps(event) + "\n"


def test_audit_events_come_in_order_through_rotation_without_unfinished_lines(tmp_path):
    (tmp_path / "audit-2026-01-31T10-00-00.000.log").write_text(audit_line("first"))
    log = tmp_path / "audit.log"
    log.write_text(audit_line("panicked", stage="Panic") + audit_line("second") + audit_line("third")[:-20])
    (tmp_path / "policy.yaml").write_text(AUDIT_POLICY)
    events = audit.AuditLog(log).events()
    assert [event.name for event in events] == ["first", "second"]
    assert (events[0].group, events[0].resource, events[0].namespace, events[0].subresource) == (
        "apps",
        "deployments",
        "llm",
        "",
    )
    assert events[0].at.utcoffset() is not None
    assert events[0].wrote


@pytest.mark.parametrize(
    "changes",
    [
        {"responseStatus": {"code": 409}},
        {"requestURI": "/x?dryRun=All&fieldManager=y"},
        {"responseStatus": {}},
    ],
)
def test_refused_and_rehearsed_requests_wrote_nothing(changes):
    assert not audit.AuditEvent.of(json.loads(audit_line("x", **changes))).wrote


def test_audit_log_that_does_not_exist_yet_is_empty(tmp_path):
    assert audit.AuditLog(tmp_path / "audit.log").events() == ()


def test_an_audit_log_is_read_on_from_where_it_was_left(tmp_path):
    """Also through a rotation between two readings, and a line that was half written at the first."""
    log = tmp_path / "audit.log"
    audit_log = audit.AuditLog(log)
    second = audit_line("second")
    log.write_text(audit_line("first") + second[:-20])
    (first,) = audit_log.events()
    with log.open("a") as lines:
        lines.write(second[-20:] + audit_line("third"))
    log.rename(tmp_path / "audit-2026-01-31T10-00-00.000.log")
    log.write_text(audit_line("fourth"))
    events = audit_log.events()
    assert [event.name for event in events] == ["first", "second", "third", "fourth"]
    assert events[0] is first


def test_default_nodes_are_an_a100_and_an_h100():
    assert [(n.product, n.gpus) for n in DEFAULT] == [
        ("NVIDIA-A100-SXM4-80GB", 8),
        ("NVIDIA-H100-80GB-HBM3", 8),
    ]


@given(
    name=st.from_regex(r"[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True),
    product=st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True),
    gpus=st.integers(0, 999),
)
def test_nodes_are_read_as_they_are_written(name, product, gpus):
    node = GpuNode(name, product, gpus)
    assert GpuNode.parse(str(node)) == node


@pytest.mark.parametrize(
    "text", ["", "a100", "a=B", "a=B:", "A=B:1", "a=B:-1", "a=B:1:2", "a b=C:1", "a=B:1\n"]
)
def test_wrong_nodes_are_refused_with_an_example(text):
    with pytest.raises(LocalClusterError, match="for example a100-0=NVIDIA-A100-SXM4-80GB:8"):
        GpuNode.parse(text)


def test_readiness_is_read_from_the_condition():
    ready = {
        "status": {
            "conditions": [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": "True"}]
        }
    }
    unready = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    assert is_ready(ready)
    assert not any(is_ready(node) for node in (unready, {}, None))


def test_children_find_this_package_from_anywhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    home = str(Path(pki.__file__).parents[1])
    assert with_this_package({})["PYTHONPATH"] == home
    assert with_this_package({"PYTHONPATH": f"{home}:lib"})["PYTHONPATH"] == f"{home}:{tmp_path}/lib"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_programs_name_cannot_confuse_its_stat_line(name):
    assert descendants.parse_stat(f"17 ({name}) S 4 17 17 0 -1") == ("S", 4)
