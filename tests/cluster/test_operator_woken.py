"""A person's change is seen at once: on a real API server, by an operator whose timer alone would take ten minutes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from localcluster import LocalCluster
from operatorcluster import manifests

pytestmark = pytest.mark.always

CRDS = Path(__file__).parents[2] / "crds"
CYCLE_S, SEEN_S = 600, 180


@pytest.fixture
def control_plane():
    with LocalCluster() as running:
        running.kubectl("apply", "--server-side", f"--filename={CRDS}")
        running.until_established()
        yield running


@contextlib.contextmanager
def operator(cluster):
    settings = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "BREAKEVEN_BIND_ADDRESS": "127.0.0.1",
        "BREAKEVEN_PORT": "0",
        "BREAKEVEN_CYCLE_SECONDS": str(CYCLE_S),
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKEVEN_")}
    command = [sys.executable, "-m", "breakeven_operator", "run"]
    child = subprocess.Popen(command, env={**inherited, **settings})
    try:
        yield
    finally:
        child.terminate()
        child.wait(60)


def told(cluster, replicas):
    cluster.kubectl(
        "wait",
        "specsvc/chat",
        f"--for=jsonpath={{.status.target.replicas}}={replicas}",
        f"--timeout={SEEN_S}s",
    )


def test_a_new_service_and_a_changed_target_wait_for_no_timer(control_plane):
    with operator(control_plane):
        documents = (
            manifests.target(),
            manifests.service(updatePolicy={"mode": "Disabled"}),
        )
        control_plane.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(documents))
        told(control_plane, 1)
        control_plane.kubectl("scale", f"deployment/{manifests.TARGET}", "--replicas=3")
        told(control_plane, 3)
