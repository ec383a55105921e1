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

pytestmark = pytest.mark.always

CRDS = Path(__file__).parents[2] / "crds"
SEEN_S = 180


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


@pytest.fixture(scope="module")
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
        # While it watches, and so deep that a parser that recurses would end the process; with what is around it 9,999 levels,
        # the most that the API server stores.
        make(control_plane, 3000)
        make(control_plane, 9990)
        control_plane.kubectl("scale", f"deployment/{manifests.TARGET}", "--replicas=3")
        seen(control_plane, "chat", ".status.target.replicas", 3)
        for levels in (230, 3000, 9990):
            seen(control_plane, f"odd-{levels}", ".status.decision.reason", "TargetUnreadable")
        assert child.poll() is None
    said = log.read_text()
    for levels in (230, 3000, 9990):
        # Once for each version: the controller writes its status too.
        assert f"Deployment default/odd-{levels} cannot be read" in said
        # Of a run and of a service nobody reads who wrote it.
        assert f"CalibrationRun default/odd-{levels} cannot be read" not in said


# Which the API server takes and a date of Python cannot hold in UTC.
NO_TIME_IN_UTC = "0001-01-01T00:00:00+14:00"
CHANGED_RUN = {
    "phase": "Measuring",
    "startedTime": "2026-01-01t00:00:00z",
    "plan": {
        "loads": 8,
        "promptTokens": 512,
        "outputTokens": 128,
        "pointSeconds": 60,
        "warmupSeconds": 5,
        "startupDeadlineSeconds": 900,
        "pendingDeadlineSeconds": 900,
        "budget": {},
        "target": "other",
        "containerName": "vllm",
        "gpuProduct": "A100",
        "fingerprint": "abc",
        "arms": [{"arm": "none", "method": "none", "k": 0, "speculativeConfig": "no JSON"}],
    },
}


def test_statuses_that_a_person_changed_stop_no_service(control_plane, tmp_path):
    """A condition of a year without UTC, and a run whose plan is none, beside a service that goes on."""
    policy = {"mode": "Disabled"}
    for name in ("hand", "other"):
        documents = (manifests.target(name), manifests.service(name, name, updatePolicy=policy))
        control_plane.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(documents))
    run = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"name": "changed", "namespace": "default"},
        "spec": {"serviceRef": {"name": "hand"}},
    }
    condition = {"type": "Late", "status": "True", "reason": "ByHand", "lastTransitionTime": NO_TIME_IN_UTC}
    changed = {"status": {"conditions": [{**condition, "message": "", "observedGeneration": 1}]}}
    control_plane.kubectl("apply", "--filename=-", stdin=yaml.safe_dump(run))
    for what, status in (("specsvc/hand", changed), ("calibrationrun/changed", {"status": CHANGED_RUN})):
        control_plane.kubectl(
            "patch", what, "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}"
        )
    with operator(control_plane, tmp_path / "operator.log") as child:
        seen(control_plane, "other", ".status.target.replicas", 1)
        seen(control_plane, "hand", ".status.target.replicas", 1)
        control_plane.kubectl(
            "wait", "calibrationrun/changed", "--for=jsonpath={.status.phase}=Failed", f"--timeout={SEEN_S}s"
        )
        control_plane.kubectl("scale", "deployment/other", "--replicas=2")
        seen(control_plane, "other", ".status.target.replicas", 2)
        assert child.poll() is None
    said = control_plane.kubectl("get", "calibrationrun/changed", "--output=jsonpath={.status.message}")
    assert "status.plan.arms[0].speculativeConfig: is no configuration" in str(said.stdout)
