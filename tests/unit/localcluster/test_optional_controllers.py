"""Controllers of kinds that not every cluster has: what is built beside them, and how their manifests become a start."""

import base64
import subprocess
import threading

import pytest
import yaml

from localcluster import binaries, building, optional_controllers
from localcluster.catalog import CONTROLLERS, EVERYDAY, PROGRAMS, SOURCES, manifests_of
from localcluster.failure import LocalClusterError
from localcluster.state import StateFolder
from localcluster.toolchain import Toolchain

NAME = "lws-controller"
ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "manager-role"},
    "rules": [],
}
KIND = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "groups.example.org"},
}


def webhook(resource):
    return {
        "name": f"m{resource}.kb.io",
        "clientConfig": {
            "service": {"name": "webhook-service", "namespace": "system", "path": f"/mutate-{resource}"}
        },
        "rules": [{"resources": [resource], "operations": ["CREATE"]}],
    }


@pytest.fixture
def started(tmp_path):
    program = tmp_path / "programs" / NAME
    manifests = manifests_of(program)
    manifests.mkdir(parents=True)
    hooks = {
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "mutating-webhook-configuration"},
        "webhooks": [webhook("pods"), webhook("groups")],
    }
    (manifests / "all.yaml").write_text(yaml.safe_dump_all([KIND, ROLE, hooks, {"kind": "Kustomization"}]))
    state = StateFolder.at(tmp_path / "state")
    state.create()
    for name in ("ca.crt", f"{NAME}.crt", f"{NAME}.key"):
        (state.pki / name).write_text(name)
    return optional_controllers.starting(NAME, program, state, 7001, 7002)


def test_its_kinds_come_first_and_its_rights_are_its_own(started):
    kind, role, binding = started.before
    assert (kind["kind"], started.kinds) == ("CustomResourceDefinition", ["groups.example.org"])
    assert role["rules"] == ROLE["rules"]
    assert binding["subjects"][0]["name"] == f"localcluster:{NAME}"
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_its_webhook_is_its_port_on_loopback_and_asked_about_pods_of_groups_alone(started):
    (configuration,) = started.after
    pods, groups = configuration["webhooks"]
    assert pods["clientConfig"]["url"] == "https://127.0.0.1:7001/mutate-pods"
    assert base64.b64decode(pods["clientConfig"]["caBundle"]) == b"ca.crt"
    assert "service" not in pods["clientConfig"]
    assert pods["objectSelector"]["matchExpressions"][0]["key"] == "leaderworkerset.sigs.k8s.io/name"
    assert "objectSelector" not in groups


def test_a_program_without_its_manifests_is_refused(tmp_path):
    with pytest.raises(LocalClusterError, match=r"lws-controller\.manifests is not there"):
        optional_controllers.starting(NAME, tmp_path / NAME, StateFolder.at(tmp_path), 1, 2)


def test_nobody_builds_them_unasked():
    assert not set(EVERYDAY) & {
        program.name for bundle in (*CONTROLLERS, *SOURCES) for program in bundle.programs
    }
    assert set(optional_controllers.NAMES) <= set(PROGRAMS)


def test_a_build_keeps_the_manifests_of_its_module(tmp_path, monkeypatch):
    """The module's folder is deleted with the workshop."""
    module = tmp_path / "module"
    (module / "config/crd/bases").mkdir(parents=True)
    (module / "config/rbac").mkdir()
    (module / "config/webhook").mkdir()
    for name in ("crd/bases/groups.yaml", "crd/bases/groups.txt", "rbac/role.yaml", "webhook/manifests.yaml"):
        (module / "config" / name).write_text(name)
    go = tmp_path / "go"
    go.write_text(
        f'#!/bin/sh\nfor last; do :; done\n[ "$1" = list ] && echo {module} || {{ shift; while [ "$1" != -o ]; do shift; done; echo > "$2"; }}\n'
    )
    go.chmod(0o755)
    bundle, program = PROGRAMS[NAME]
    target = tmp_path / "built" / NAME
    building.build(bundle, program, target, Toolchain(go, {}), lambda _line: None, "1/1", threading.Event())
    assert {file.name for file in manifests_of(target).iterdir()} == {
        "groups.yaml",
        "role.yaml",
        "manifests.yaml",
    }


def test_present_says_whether_a_build_is_needed(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    assert not binaries.present([NAME], environment)
    bundle, _ = PROGRAMS[NAME]
    path = tmp_path / "breakeven" / bundle.cache_name() / NAME
    path.parent.mkdir(parents=True)
    path.touch(0o755)
    assert binaries.present([NAME], environment)
    subprocess.run(["chmod", "-x", path], check=True)
    assert not binaries.present([NAME], environment)
