"""Objects that nobody can read beside a good service, before the operator comes and while it watches, on a real API server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from localcluster import LocalCluster
from operatorcluster import manifests

CRDS = Path(__file__).parents[2] / "crds"
SEEN_S = 120


def nested(levels: int) -> str:
    return '{"f:a":' * levels + '{".":{}}' + "}" * levels


def written_deep(levels: int, group: str, kind: str, name: str, spec: str) -> str:
    """An object of a tenant who says himself who wrote what, so deep that no schema of any kind can forbid it."""
    entry = (
        f'{{"manager": "bob", "operation": "Update", "apiVersion": "{group}", "fieldsType": "FieldsV1", '
        f'"time": "2026-01-01T00:00:00Z", "fieldsV1": {{"f:spec": {nested(levels)}}}}}'
    )
    return (
        f'{{"apiVersion": "{group}", "kind": "{kind}", "metadata": {{"name": "{name}", "namespace": "default", '
        f'"managedFields": [{entry}]}}, "spec": {spec}}}'
    )


def odd_objects(levels: int) -> list[tuple[str, str]]:
    """Each with the path under which it is made."""
    target = json.dumps({**manifests.target()["spec"], "replicas": 0})
    run = '{"serviceRef": {"name": "nobody"}}'
    ours = "breakeven.dev/v1alpha1"
    return [
        (
            "/apis/apps/v1/namespaces/default/deployments",
            written_deep(levels, "apps/v1", "Deployment", f"odd-{levels}", target),
        ),
        (
            f"/apis/{ours}/namespaces/default/calibrationruns",
            written_deep(levels, ours, "CalibrationRun", f"odd-{levels}", run),
        ),
        (
            f"/apis/{ours}/namespaces/default/speculativeservices",
            written_deep(
                levels,
                ours,
                "SpeculativeService",
                f"odd-{levels}",
                json.dumps({**manifests.service()["spec"], "targetRef": {"name": f"odd-{levels}"}}),
            ),
        ),
    ]


@contextlib.contextmanager
def operator(cluster: LocalCluster, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    settings = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "BREAKEVEN_BIND_ADDRESS": "127.0.0.1",
        "BREAKEVEN_PORT": "0",
        "BREAKEVEN_CYCLE_SECONDS": "2",
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKEVEN_")}
    with log.open("wb") as out:
        command = [sys.executable, "-m", "breakeven_operator", "run"]
        child = subprocess.Popen(command, env={**inherited, **settings}, stderr=out, stdout=out)
        try:
            yield child
        finally:
            child.terminate()
            child.wait(60)


@pytest.fixture
def control_plane() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        running.kubectl("apply", "--server-side", f"--filename={CRDS}")
        running.until_established()
        yield running


def make(cluster: LocalCluster, levels: int) -> None:
    for path, text in odd_objects(levels):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(text)
            file.flush()
            cluster.kubectl("create", "--raw", path, f"--filename={file.name}")


def seen(cluster: LocalCluster, name: str, path: str, value: object) -> None:
    cluster.kubectl("wait", f"specsvc/{name}", f"--for=jsonpath={{{path}}}={value}", f"--timeout={SEEN_S}s")


def test_objects_that_nobody_can_read_stop_no_service(control_plane, tmp_path):
    log = tmp_path / "operator.log"
    service = manifests.service(updatePolicy={"mode": "Disabled"})
    documents = (manifests.target(), service)
    control_plane.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(documents))
    make(control_plane, 230)
    with operator(control_plane, log) as child:
        seen(control_plane, "chat", ".status.target.replicas", 1)
        # While it watches, and so deep that a parser that recurses would end the process.
        make(control_plane, 3000)
        control_plane.kubectl("scale", f"deployment/{manifests.TARGET}", "--replicas=3")
        seen(control_plane, "chat", ".status.target.replicas", 3)
        for levels in (230, 3000):
            seen(control_plane, f"odd-{levels}", ".status.decision.reason", "TargetUnreadable")
        assert child.poll() is None
    said = log.read_text()
    for levels in (230, 3000):
        # Once for each version: the controller writes its status too.
        assert f"Deployment default/odd-{levels} cannot be read" in said
        # Of a run and of a service nobody reads who wrote it.
        assert f"CalibrationRun default/odd-{levels} cannot be read" not in said
