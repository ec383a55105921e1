"""The commands of the installation's pages and of the runbooks, run as they stand there against a real API server.

No node is up, so nothing is scheduled: what is tested is that every command is understood, names fields and objects that
exist, and is accepted. What needs a running pod, a registry or Prometheus is left out by name.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from breakeven.fitting import fit_points
from breakeven.readers.reading import read_text
from localcluster import LocalCluster
from localcluster.binaries import ensure

# Product files whose change runs these tests at the next landing.
COVERS = ("docs/install.md", "docs/large-fleets.md", "docs/upgrade.md", "docs/runbooks/")

ROOT = Path(__file__).parents[2]
# In the order of a reader: the last one removes what the first one made.
INSTALL = [ROOT / "docs" / f"{name}.md" for name in ("install", "large-fleets", "upgrade")]
RUNBOOKS = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
# A registry, a pod, or somebody who measures would be needed.
_NEEDS_MORE = (
    "docker ",
    "kubectl wait",
    "kubectl logs",
    "curl ",
    "breakeven doctor",
    "kubectl breakeven doctor",
)
_WORDS = {"NAMESPACE": "llm", "NAME": "chat", "PROFILE": "chat-p1", "LOAD": "4"}


def console(page: Path) -> list[str]:
    """Commands after `$ ` in blocks of a console, lines ending in a backslash joined."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    return [match for block in blocks for match in re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)]


def indented(page: Path) -> list[str]:
    """Commands of a runbook: indented lines that begin with a program's name; names filled in."""
    lines = re.findall(r"^ {4,}((?:kubectl|breakeven|helm|curl) .*)$", page.read_text(), re.MULTILINE)
    return [re.sub("|".join(_WORDS), lambda word: _WORDS[word[0]], line) for line in lines]


def runnable(commands: list[str]) -> list[str]:
    return [command for command in commands if not command.startswith(_NEEDS_MORE)]


# A CRD goes after its objects. For a minute the API server looks whether they are gone, and begins again if its storage of a
# kind that is seconds old was not ready for the first look.
COMMAND_S = 240


@pytest.fixture(scope="module")
def cluster():
    # Of its own: the page installs the chart and removes it again.
    with LocalCluster() as running:
        yield running


@pytest.fixture
def shell(cluster, tmp_path):
    """Runs one command line in the repository, with the programs that a reader has on the path."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("kubectl", "helm"):
        (tools / name).symlink_to(ensure([name])[name])
    (tmp_path / "charts").symlink_to(ROOT / "charts")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ, "PATH": path, "KUBECONFIG": str(cluster.kubeconfig), "HOME": str(tmp_path),
        "HELM_CACHE_HOME": str(tmp_path / "helm"),
    }  # fmt: skip

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=COMMAND_S, check=False,
        )  # fmt: skip
        # The API server drops a field that it does not know with no more than a warning.
        failed = done.returncode != 0 or "unknown field" in done.stderr
        assert not failed, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


def installing() -> list[str]:
    return [command for page in INSTALL for command in runnable(console(page))]


def test_the_commands_have_been_found():
    assert len(installing()) >= 17
    assert all(len(indented(page)) >= 3 for page in RUNBOOKS)


def test_installing_using_and_removing_goes_as_the_page_says(cluster, shell):
    for command in installing():
        shell(command)
        if command.startswith("helm install"):
            cluster.until_established()
    assert "speculativeservices" not in shell(
        "kubectl api-resources --api-group=breakeven.dev --cached=false"
    )


def test_runbooks_say_what_the_api_server_takes(cluster, shell):
    shell("helm install breakeven charts/breakeven --namespace breakeven --create-namespace --set replicas=0")
    cluster.until_established()
    shell(
        "helm upgrade breakeven charts/breakeven --namespace breakeven --reuse-values"
    )  # something to roll back to
    shell("kubectl create namespace llm --dry-run=client -o yaml | kubectl apply -f -")
    shell("kubectl apply -n llm -f examples/vllm-a100.yaml -f examples/speculativeservice.yaml")
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(profile()))
    # As the operator writes it, which does not run here.
    in_force = json.dumps({"status": {"calibration": {"profile": "chat-p1"}}})
    shell(f"kubectl patch specsvc chat -n llm --subresource=status --type=merge --patch='{in_force}'")
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(lease()))
    for page in RUNBOOKS:
        for command in runnable(indented(page)):
            shell(command)
    spec = json.loads(shell("kubectl get specsvc chat -n llm -o json"))["spec"]
    assert spec["updatePolicy"]["mode"] == "RollingUpdate"


def profile():
    points = ROOT / "examples" / "points.csv"
    text = fit_points(read_text(points.read_text(), str(points), None), 0.9).to_json()
    return {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "SpeculationProfile",
        "metadata": {"name": "chat-p1", "namespace": "llm"},
        "spec": {
            "serviceRef": {"name": "chat"},
            "fingerprint": "0123456789ab",
            "gpuProduct": "NVIDIA-A100-SXM4-80GB",
            "profile": text,
        },
    }


def lease():
    """The Lease, as the leading operator writes it."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "breakeven", "namespace": "breakeven"},
        "spec": {"holderIdentity": "breakeven-0"},
    }
