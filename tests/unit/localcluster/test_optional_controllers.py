"""Controllers of kinds that not every cluster has: what is built beside them, and how their manifests become a start."""

import base64
import json
import subprocess
import threading
from pathlib import Path

import pytest
import yaml

from localcluster import binaries, building, optional_controllers
from localcluster.catalog import CLIENTS, CONTROLLERS, EVERYDAY, PROGRAMS, PUBLISHING, SOURCES, manifests_of
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


def start_of(tmp_path, name, *documents):
    program = tmp_path / "programs" / name
    manifests = manifests_of(program)
    manifests.mkdir(parents=True)
    (manifests / "all.yaml").write_text(yaml.safe_dump_all([ROLE, {"kind": "Kustomization"}, *documents]))
    state = StateFolder.at(tmp_path / "state")
    state.create()
    for file in ("ca.crt", f"{name}.crt", f"{name}.key"):
        (state.pki / file).write_text(file)
    return optional_controllers.starting(name, program, state, 7001, 7002)


@pytest.fixture
def started(tmp_path):
    hooks = {
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "mutating-webhook-configuration"},
        "webhooks": [webhook("pods"), webhook("groups")],
    }
    return start_of(tmp_path, NAME, KIND, hooks)


@pytest.fixture
def of_presets(tmp_path):
    """The start of KServe's controller."""
    two = {**KIND, "spec": {"versions": [{"name": "v1alpha1"}, {"name": "v1alpha2"}]}}
    one = {**KIND, "metadata": {"name": "others.example.org"}, "spec": {"versions": [{"name": "v1"}]}}
    hooks = [
        {"kind": "ValidatingWebhookConfiguration", "metadata": {"name": name}, "webhooks": [webhook(name)]}
        for name in ("a", "b")
    ]
    config = {
        "kind": "ConfigMap",
        "metadata": {"name": "config"},
        "data": {"_example": "long", "ingress": '{"urlScheme": "http"}'},
    }
    preset = {"kind": "LLMInferenceServiceConfig", "metadata": {"name": "preset"}}
    return start_of(tmp_path, "llmisvc-controller", two, one, *hooks, config, preset)


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


def test_the_versions_of_kserves_kinds_are_converted_by_its_controller(of_presets):
    two, one = (part for part in of_presets.before if part["kind"] == "CustomResourceDefinition")
    client = two["spec"]["conversion"]["webhook"]["clientConfig"]
    assert client["url"] == "https://127.0.0.1:7001/convert"
    assert base64.b64decode(client["caBundle"]) == b"ca.crt"
    assert "conversion" not in one["spec"]


def test_kserves_configuration_is_there_before_it_runs_and_its_presets_after(of_presets):
    namespace, config = of_presets.before[-2:]
    assert namespace["metadata"]["name"] == config["metadata"]["namespace"] == "kserve"
    assert config["data"].keys() == {"ingress"}
    assert json.loads(config["data"]["ingress"]) == {
        "urlScheme": "http",
        "enableLLMInferenceServiceTLS": False,
        "disableIngressCreation": True,
    }
    *hooks, preset = of_presets.after
    assert len({hook["metadata"]["name"] for hook in hooks}) == 2
    assert preset["metadata"] == {"name": "preset", "namespace": "kserve"}


def test_kserves_webhook_finds_its_certificate_in_its_own_folder_of_temporary_files(of_presets):
    folder = Path(of_presets.environment["TMPDIR"]) / "k8s-webhook-server" / "serving-certs"
    assert (folder / "tls.crt").read_text() == "llmisvc-controller.crt"
    assert (folder / "tls.key").read_text() == "llmisvc-controller.key"
    assert of_presets.environment["POD_NAMESPACE"] == "kserve"


def test_a_program_without_its_manifests_is_refused(tmp_path):
    with pytest.raises(LocalClusterError, match=r"lws-controller\.manifests is not there"):
        optional_controllers.starting(NAME, tmp_path / NAME, StateFolder.at(tmp_path), 1, 2)


def test_nobody_builds_them_unasked():
    assert not set(EVERYDAY) & {
        program.name
        for bundle in (*CONTROLLERS, *SOURCES, *CLIENTS, *PUBLISHING)
        for program in bundle.programs
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
