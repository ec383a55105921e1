"""`kubectl breakeven` as its users start it: the real kubectl finds it on PATH, and the real API server takes or refuses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from localcluster.binaries import ensure
from operatorcluster import manifests
from operatorcluster.stage import condition, decision
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/plugin/",)

PIN = {"updatePolicy": {"mode": "Recommend"}}
LIMIT_S = 180


@pytest.fixture
def shell(place, tmp_path):
    """Runs one program with kubectl and the plugin on PATH; returns what it did."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "kubectl").symlink_to(ensure(["kubectl"])["kubectl"])
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**place.stage.cluster.environment, "PATH": path, "HOME": str(tmp_path)}

    def run(*words, stdin=""):
        return subprocess.run(
            words, cwd=tmp_path, env=environment, input=stdin, capture_output=True, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip

    return run


@pytest.fixture
def plugin(place, shell):
    """Output of a verb in the place's namespace, which has to succeed."""

    def run(verb, *words):
        done = shell("kubectl", "breakeven", verb, *words, f"--namespace={place.name}")
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


def spec(place):
    return place.get("specsvc", "chat")["spec"]


def noted(place):
    return place.get("specsvc", "chat")["metadata"].get("annotations") or {}


def until_acted_upon(place):
    """The operator has read the last change of the spec, and found it good."""
    generation = place.get("specsvc", "chat")["metadata"]["generation"]
    place.until_service(
        "its spec is read and it is ready",
        lambda status: (
            status.get("observedGeneration") == generation
            and condition({"status": status}, "Ready").get("status") == "True"
        ),
    )


def managers(place):
    """Writers of the service."""
    return {entry["manager"] for entry in place.get("specsvc", "chat")["metadata"]["managedFields"]}


def posing(place, folder, name):
    """The option that names the administrator's kubeconfig, in the name of somebody else."""
    config = yaml.safe_load(Path(place.stage.cluster.kubeconfig).read_text())
    for user in config["users"]:
        user["user"]["as"] = name
    (folder / name).write_text(yaml.safe_dump(config))
    return f"--kubeconfig={folder / name}"


def test_kubectl_finds_the_plugin_and_completes_it(place, shell):
    assert "/kubectl-breakeven" in shell("kubectl", "plugin", "list").stdout
    done = shell("kubectl", "__complete", "breakeven", "recal")
    assert done.stdout.startswith("recalibrate\t"), done
    place.apply(manifests.service(paused=True))
    done = shell("kubectl", "__complete", "breakeven", "explain", "-n", place.name, "")
    assert done.stdout.splitlines()[0] == "chat", done


@pytest.mark.always
def test_every_verb_that_shows_shows_what_the_operator_says(place, plugin, shell, tmp_path):
    place.managed(**PIN)
    place.until_service("a decision", lambda status: (status.get("calibration") or {}).get("profile"))
    plugin("pin", "chat", "eagle/3")
    place.until_service("eagle/3 is recommended", lambda status: decision(status).get("arm") == "eagle/3")

    table = plugin("status", "chat").splitlines()
    assert table[0].split()[:3] == ["NAME", "ARM", "PAYS"]
    assert "Recommend, pinned" in table[1]
    assert "chat-known" in table[1]
    assert "no operator runs" not in "".join(table)
    assert place.name in shell("kubectl", "breakeven", "status", "-A").stdout

    text = " ".join(plugin("explain", "chat").split())
    assert "updatePolicy.pinnedArm asks for eagle/3" in text
    assert "the mode is Recommend, so the target is not rolled to eagle/3" in text

    patch = plugin("export", "chat")
    assert plugin("diff", "chat").splitlines()[-1].startswith(f"+{manifests.ANNOTATION}: ")
    applied = shell(
        "kubectl", "apply", "--server-side", "--dry-run=server", "-o", "json", "-f", "-", stdin=patch
    )
    template = json.loads(applied.stdout)["spec"]["template"]["metadata"]["annotations"]
    assert json.loads(template[manifests.ANNOTATION])["num_speculative_tokens"] == 3
    assert place.annotation() is None, "nothing was written"

    plugin("report", "chat")
    assert "eagle/3" in (tmp_path / "chat.html").read_text()
    # Its Prometheus is the operator's, which it finds in the operator's pod.
    assert "Does speculation pay?" in plugin("doctor", "chat")
    words = (
        "kubectl",
        "breakeven",
        "history",
        "chat",
        "--since=1h",
        "--window-seconds=120",
        f"--namespace={place.name}",
    )
    # Series are looked for every half minute of the past. A young engine is there at the next one, and then is too young for a window.
    until("the past names windows", lambda: "windows" in (done := shell(*words)).stdout + done.stderr)


def test_every_verb_that_changes_does_what_the_manifest_would(place, plugin, shell):
    place.managed(**PIN)
    place.until_service("a profile", lambda status: (status.get("calibration") or {}).get("profile"))

    printed = plugin("pause", "chat", "--dry-run=client", "-o", "yaml")
    # The maker of the object owns the default `paused: false`.
    dry = ("--server-side", "--force-conflicts", "--dry-run=server", "--output=json", "--filename=-")
    applied = shell("kubectl", "apply", *dry, stdin=printed)
    assert applied.returncode == 0, applied.stderr
    assert json.loads(applied.stdout)["spec"]["paused"] is True
    assert "server dry run" in plugin("pause", "chat", "--dry-run=server")
    assert not spec(place).get("paused")

    assert "speculativeservice/chat paused" in plugin("pause", "chat")
    assert spec(place)["paused"] is True
    assert "kubectl-breakeven" in managers(place)
    until_acted_upon(place)

    plugin("resume", "chat", "--retry")
    assert spec(place)["paused"] is False
    assert noted(place)["breakeven.dev/resume"].startswith("20")

    assert "the mode is Recommend" in plugin("pin", "chat", "none")
    assert spec(place)["updatePolicy"]["pinnedArm"] == "none"
    until_acted_upon(place)
    plugin("unpin", "chat")
    assert "pinnedArm" not in spec(place)["updatePolicy"]
    assert spec(place)["updatePolicy"]["mode"] == "Recommend"

    runs = {run["metadata"]["name"] for run in place.all("calrun")}
    plugin("recalibrate", "chat")
    until("a run is made", lambda: {run["metadata"]["name"] for run in place.all("calrun")} - runs)


def test_what_the_api_server_refuses_is_one_line_and_status_1(place, shell, tmp_path):
    place.apply(manifests.service(paused=True))
    here = f"--namespace={place.name}"
    done = shell("kubectl", "breakeven", "pin", "chat", "owl/9", here)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "pinnedArm names no candidate" in done.stderr

    done = shell("kubectl", "breakeven", "explain", "chatt", here)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert '"chatt" not found' in done.stderr

    # A user who may look and nothing else; the stranger may not even do that.
    place.kubectl(
        "create", "role", "viewer", "--verb=get,list", "--resource=speculativeservices.breakeven.dev"
    )
    place.kubectl("create", "rolebinding", "viewer", "--role=viewer", "--user=viewer")
    before = spec(place)
    viewer, stranger = (posing(place, tmp_path, name) for name in ("viewer", "stranger"))
    until(
        "the viewer may look", lambda: shell("kubectl", "breakeven", "status", here, viewer).returncode == 0
    )
    for verb in (["pause", "chat"], ["resume", "chat"], ["recalibrate", "chat"], ["pin", "chat", "none"]):
        done = shell("kubectl", "breakeven", *verb, here, viewer)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert 'User "viewer" cannot patch resource "speculativeservices"' in done.stderr
    for verb in (["status"], ["explain", "chat"], ["export", "chat"]):
        done = shell("kubectl", "breakeven", *verb, here, stranger)
        assert (done.returncode, done.stderr.count("\n"), "forbidden" in done.stderr) == (1, 1, True)
    assert spec(place) == before
    assert noted(place).keys().isdisjoint({"breakeven.dev/recalibrate", "breakeven.dev/resume"})
