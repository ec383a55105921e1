"""The one-machine cluster as a whole: it is a real one, and nothing of it stays behind."""

import http.server
import json
import os
import select
import signal
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster import LocalCluster, LocalClusterError
from localcluster.free_ports import free_ports
from localcluster.nodes import with_this_package

# Product files whose change runs these tests at the next landing.
COVERS = ("localcluster/",)

PARTS = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
# A node that nobody plays: enough for the scheduler, and independent of the node agent.
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "bare", "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}},
}
NODE_STATUS = {
    "status": {
        "capacity": {"cpu": "8", "memory": "32Gi", "pods": "32", "nvidia.com/gpu": "2"},
        "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "32", "nvidia.com/gpu": "2"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": ""}],
    }
}


def pod(name, gpus, port=None, **metadata):
    container: dict[str, Any] = {
        "name": "main",
        "image": "vllm/vllm-openai:v0.32.0",
        "resources": {"limits": {"nvidia.com/gpu": gpus}},
    }
    if port:
        container["ports"] = [{"name": "http", "containerPort": port}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {
            "containers": [container],
            # The node lifecycle controller misses this node's Lease: it must not keep the pods away.
            "tolerations": [{"operator": "Exists"}],
        },
    }


def mentioning(folder):
    """Every process of this machine with the folder on its command line, whoever's child it is."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            pid = int(entry.name)
            if str(folder) in cmdline(pid):
                found.append(pid)
    return found


def cmdline(pid):
    """A process's command line; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


@pytest.fixture(scope="module")
def bare():
    """A control plane with one node that nobody plays."""
    with LocalCluster() as running:
        running.kubectl("create", "-f", "-", stdin=yaml.safe_dump(NODE))
        patch = ["--subresource=status", "--type=merge", "--patch", json.dumps(NODE_STATUS)]
        running.kubectl("patch", "node", "bare", *patch)
        yield running


def create(cluster, document):
    cluster.kubectl("create", "-f", "-", stdin=yaml.safe_dump(document))


def test_it_comes_up_at_the_pinned_version(bare):
    facts = json.loads(bare.kubectl("version", "--output=json").stdout)
    assert facts["serverVersion"]["gitVersion"] == facts["clientVersion"]["gitVersion"]
    assert facts["serverVersion"]["minor"] == facts["serverVersion"]["gitVersion"].split(".")[1]
    assert [p.name for p in bare.processes()[:4]] == PARTS
    assert all(p.returncode is None for p in bare.processes())


def test_the_scheduler_binds_by_gpus(bare):
    create(bare, pod("fits", 2))
    bare.kubectl("wait", "--for=condition=PodScheduled", "pod/fits", "--timeout=180s")
    # Not earlier: a pod that the scheduler sees before the node's GPUs waits, and the other one would take one of them.
    create(bare, pod("does-not-fit", 1))
    bare.kubectl("wait", "--for=condition=PodScheduled=false", "pod/does-not-fit", "--timeout=180s")
    assert (
        json.loads(bare.kubectl("get", "pod", "fits", "--output=json").stdout)["spec"]["nodeName"] == "bare"
    )
    waiting = json.loads(bare.kubectl("get", "pod", "does-not-fit", "--output=json").stdout)
    assert "Insufficient nvidia.com/gpu" in waiting["status"]["conditions"][0]["message"]
    bare.kubectl("delete", "pod", "fits", "does-not-fit", "--force", "--grace-period=0")


def test_rbac_is_real(bare):
    bare.kubectl("create", "serviceaccount", "nobody")
    token = bare.kubectl("create", "token", "nobody").stdout.strip()
    stranger = [f"--kubeconfig={os.devnull}", f"--server={bare.api_url}", f"--token={token}"]
    trust = f"--certificate-authority={bare.state_dir}/pki/ca.crt"
    refused = bare.kubectl("get", "secrets", *stranger, trust, check=False)
    assert "system:serviceaccount:default:nobody" in refused.stderr
    assert "forbidden" in refused.stderr


def test_strangers_are_not_let_in(bare):
    trusting = ssl.create_default_context(cafile=bare.state_dir / "pki/ca.crt")
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(f"{bare.api_url}/api", context=trusting)
    refused.value.close()


def test_the_audit_log_has_the_writes_and_nothing_that_only_reads(bare):
    bare.kubectl("create", "configmap", "seen", "--from-literal=a=1")
    bare.kubectl("get", "configmap", "seen")
    bare.kubectl("create", "configmap", "rehearsed", "--dry-run=server")
    bare.kubectl("create", "configmap", "seen", check=False)
    bare.kubectl("create", "secret", "generic", "hidden", "--from-literal=a=1")
    bare.kubectl("delete", "configmap", "seen")
    mine = [
        event
        for event in bare.audit_events()
        if event.user == "admin" and event.resource in {"configmaps", "secrets"}
    ]
    assert [(e.verb, e.name or e.body["metadata"]["name"], e.code, e.wrote) for e in mine if e.resource == "configmaps"] == [
        ("create", "seen", 201, True),
        ("create", "rehearsed", 201, False),
        ("create", "seen", 409, False),
        ("delete", "seen", 200, True),
    ]  # fmt: skip
    assert mine[0].body["data"] == {"a": "1"}
    assert next(e for e in mine if e.resource == "secrets").body is None
    assert {e.verb for e in bare.audit_events()} <= {
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
    }


class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name="m"} 3\n'
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        """Silence."""


@pytest.fixture
def page():
    """A metrics page on an address in 127.0.0.0/8, as a pod here has one."""
    server = http.server.ThreadingHTTPServer(("127.1.0.5", free_ports(1)[0]), Metrics)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address
    server.shutdown()
    thread.join()
    server.server_close()


def until(question, answer):
    """Asks until the answer is there; Prometheus has no way to be waited for."""
    pause = threading.Event()
    for _ in range(1800):
        found = question()
        if answer(found):
            return found
        pause.wait(0.1)
    raise AssertionError(found)


def ask(url, query):
    with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}") as response:
        return json.load(response)["data"]["result"]


def test_prometheus_scrapes_annotated_pods_and_fires_alerts(bare, page, tmp_path):
    address, port = page
    scraped = {"annotations": {"prometheus.io/scrape": "true"}}
    create(bare, pod("asked", 0, port, **scraped))
    create(bare, pod("not-asked", 0, port))
    status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
    for name in ("asked", "not-asked"):
        bare.kubectl("wait", "--for=condition=PodScheduled", f"pod/{name}", "--timeout=180s")
        bare.kubectl(
            "patch", "pod", name, "--subresource=status", "--type=merge", "--patch", json.dumps(status)
        )
    rules = tmp_path / "rules.yaml"
    alert = {"alert": "Busy", "expr": "vllm:num_requests_running > 2", "labels": {"severity": "warning"}}
    rules.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [alert]}]}))
    bare.start_prometheus([rules], scrape_interval_s=0.5)

    (sample,) = until(lambda: ask(bare.prometheus_url, "vllm:num_requests_running"), bool)
    assert sample["value"][1] == "3"
    labels = sample["metric"]
    assert (labels["namespace"], labels["pod"], labels["endpoint"], labels["model_name"]) == (
        "default",
        "asked",
        "http",
        "m",
    )
    assert {r["metric"]["pod"] for r in ask(bare.prometheus_url, "up")} == {"asked"}

    def alerts():
        with urllib.request.urlopen(f"{bare.alertmanager_url}/api/v2/alerts") as response:
            return json.load(response)

    (fired,) = until(alerts, bool)
    assert (fired["labels"]["alertname"], fired["labels"]["pod"]) == ("Busy", "asked")

    bare.stop_process("prometheus")
    with pytest.raises(OSError, match="refused"):
        ask(bare.prometheus_url, "up")
    bare.restart_process("prometheus")
    until(lambda: _answers(bare.prometheus_url), bool)

    empty = tmp_path / "other.yaml"
    empty.write_text(
        yaml.safe_dump({"groups": [{"name": "h", "rules": [{"record": "a:b", "expr": "vector(1)"}]}]})
    )
    bare.load_rules([empty])
    until(lambda: ask(bare.prometheus_url, "a:b"), bool)


def _answers(url):
    try:
        return ask(url, "vector(1)")
    except OSError:
        return []


def test_wrong_rules_are_refused_before_they_are_loaded(bare, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("groups: [{name: g, rules: [{alert: A, expr: 'up =='}]}]")
    with pytest.raises(LocalClusterError, match=r"promtool check rules .* exit"):
        bare.start_prometheus([rules])


def test_helm_installs_into_it_and_leaves_nothing_in_the_home_folder(bare, tmp_path, monkeypatch):
    # Found (or built) now: with another home folder it would be looked for there.
    assert bare.helm("version", "--short").stdout.startswith("v3.")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: c\nversion: 1.0.0\nkubeVersion: '>=1.36.0'\n")
    (chart / "templates/cm.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-chart}\ndata: {a: {{ .Values.a | quote }}}\n"
    )
    bare.helm("install", "release", str(chart), "--set=a=b")
    assert bare.kubectl("get", "configmap", "from-chart", "--output=jsonpath={.data.a}").stdout == "b"
    bare.helm("uninstall", "release")
    assert list(home.iterdir()) == []


def test_it_stops_cleanly_and_a_folder_holds_one_cluster(tmp_path):
    folder = tmp_path / "state"
    with LocalCluster(folder) as running:
        assert len(mentioning(folder)) >= len(PARTS)
        with pytest.raises(LocalClusterError, match=r"a cluster runs in .*/state already"):
            LocalCluster(folder).start()
        assert running.kubectl("get", "namespaces").returncode == 0
        assert LocalCluster.attach(folder).api_url == running.api_url
    assert mentioning(folder) == []
    assert not folder.exists()
    running.stop()


def test_a_part_that_cannot_start_is_named_with_its_last_words(tmp_path, monkeypatch):
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "etcd").write_text("#!/bin/sh\necho no room on the disk >&2\nexit 3\n")
    (assets / "etcd").chmod(0o755)
    monkeypatch.setenv("BREAKEVEN_ASSETS", str(assets))
    folder = tmp_path / "state"
    with pytest.raises(LocalClusterError, match=r"etcd ended with 3: no room on the disk"):
        LocalCluster(folder).start()
    assert mentioning(folder) == []
    assert not folder.exists()


STARTER = """
import sys, time
from pathlib import Path
import yaml
from localcluster import LocalCluster
folder, pod = Path(sys.argv[1]), yaml.safe_load(sys.argv[2])
with LocalCluster(folder) as cluster:
    cluster.start_nodes()
    cluster.kubectl("create", "-f", "-", stdin=yaml.safe_dump(pod))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/busy", "--timeout=180s")
    print("up", flush=True)
    time.sleep(600)
"""


def ended(pidfds):
    """Waits until each of the processes has ended, whoever's child it is."""
    for descriptor in pidfds:
        if not select.select([descriptor], [], [], 120)[0]:
            return False
        os.close(descriptor)
    return True


@pytest.mark.parametrize("victim", ["starter", "supervisor"])
def test_everything_dies_with_whoever_is_killed(tmp_path, victim):
    folder = tmp_path / "state"
    busy = pod("busy", 1)
    # The folder on its command line, so that the pod's own process is among those found below.
    script = "while :; do sleep 1; done"
    busy["spec"]["containers"][0] |= {
        "image": "busybox:1",
        "command": ["sh", "-c", script, "busy", str(folder)],
    }
    command = [sys.executable, "-c", STARTER, str(folder), yaml.safe_dump(busy)]
    with subprocess.Popen(command, env=with_this_package(os.environ), stdout=subprocess.PIPE) as starter:
        assert starter.stdout.readline() == b"up\n"
        processes = {pid: cmdline(pid) for pid in mentioning(folder) if pid != starter.pid}
        parts = [*PARTS, "localcluster.supervisor", "localcluster.nodeagent", script]
        assert [part for part in parts if not any(part in words for words in processes.values())] == []
        pidfds = [os.pidfd_open(pid) for pid in processes]
        supervisor = next(pid for pid, words in processes.items() if "localcluster.supervisor" in words)
        os.kill(starter.pid if victim == "starter" else supervisor, signal.SIGKILL)
        assert ended(pidfds)
        starter.kill()
    if victim == "supervisor":
        # Nobody was left to tidy up; the next one to come does.
        LocalCluster(folder).stop()
    assert not folder.exists()


def localcluster(*arguments, cwd):
    command = [sys.executable, "-m", "localcluster", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=with_this_package(os.environ), capture_output=True, text=True, check=False
    )


def test_the_command_line_leaves_a_cluster_and_takes_it_away(tmp_path):
    up = localcluster("up", "--node", "n=NVIDIA-H100-80GB-HBM3:4", "--scrape-interval", "1", cwd=tmp_path)
    assert up.returncode == 0, up.stderr
    kubeconfig = Path(up.stdout.strip())
    assert kubeconfig == tmp_path / ".local/kubeconfig"
    assert kubeconfig.is_file()
    assert "already" in localcluster("up", cwd=tmp_path).stderr

    shown = localcluster("status", "--json", cwd=tmp_path)
    facts = json.loads(shown.stdout)
    assert shown.returncode == 0
    assert [p["name"] for p in facts["processes"]] == [*PARTS, "nodeagent", "alertmanager", "prometheus"]
    assert all(p["returncode"] is None and p["resident_bytes"] > 1e6 for p in facts["processes"])
    nodes = subprocess.run(
        [tmp_path / ".local/bin/kubectl", "--kubeconfig", kubeconfig, "get", "nodes", "--output=name"],
        env=os.environ | {"KUBECACHEDIR": str(tmp_path / ".local/kubectl")},
        capture_output=True,
        check=True,
    )
    assert nodes.stdout == b"node/n\n"

    assert localcluster("down", cwd=tmp_path).returncode == 0
    assert mentioning(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    gone = localcluster("status", cwd=tmp_path)
    assert gone.returncode == 1
    assert gone.stderr.startswith("localcluster: no cluster runs in")
    assert localcluster("down", cwd=tmp_path).returncode == 0
