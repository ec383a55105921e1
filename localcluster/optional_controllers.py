"""Controllers of kinds that not every cluster has: their definitions, rights and webhooks, and how each is started.

The manifests are those of the controller's own module. A webhook's service becomes its address on loopback, and its
certificate is one of the cluster's authority.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from localcluster.catalog import manifests_of
from localcluster.failure import LocalClusterError
from localcluster.state import StateFolder

NAMES: Final = ("lws-controller", "rollouts-controller")
# The patch of its own kustomization: without it, pods of others would wait for this webhook too.
_ITS_PODS: Final = {"matchExpressions": [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]}


class Starting(NamedTuple):
    """The parts of a controller's start.

    Attributes:
        before, after: objects that are applied before it runs, and once its webhook answers.
        kinds: names of the definitions that must be established before it runs.
        command, environment: of its process.
        ready_path: where it says that it is ready.
    """

    before: list[dict[str, Any]]
    kinds: list[str]
    ready_path: str
    command: list[str]
    environment: Mapping[str, str]
    after: list[dict[str, Any]]


def starting(name: str, program: Path, state: StateFolder, webhook_port: int, health_port: int) -> Starting:
    """The start of a controller; writes its configuration and its certificate into the state folder.

    Args:
        name: one of `NAMES`.
        program: its path, beside which its manifests lie.
        state: of the cluster.
        webhook_port: where the API server asks it, or where its metrics are if it has no webhook.
        health_port: where it says that it is ready.

    Raises:
        LocalClusterError: the program came without its manifests.
    """
    documents = list(_manifests(program))
    kinds = [one for one in documents if one["kind"] == "CustomResourceDefinition"]
    rights = [one for one in documents if one["kind"] == "ClusterRole"]
    webhooks = [one for one in documents if one["kind"].endswith("WebhookConfiguration")]
    if name == "lws-controller":
        command = _groups(name, program, state, webhook_port, health_port)
    else:
        command = _rollouts(name, program, state, webhook_port, health_port)
    return Starting(
        before=[*kinds, *(part for role in rights for part in _granted(role, name))],
        kinds=[one["metadata"]["name"] for one in kinds],
        ready_path="/readyz" if webhooks else "/healthz",
        command=command,
        environment={},
        after=[
            _on_loopback(one, name, webhook_port, (state.pki / "ca.crt").read_bytes()) for one in webhooks
        ],
    )


def _groups(name: str, program: Path, state: StateFolder, webhook_port: int, health_port: int) -> list[str]:
    folder = state.pki / f"{name}.webhook"
    folder.mkdir(exist_ok=True)
    for suffix in ("crt", "key"):
        (folder / f"tls.{suffix}").write_bytes((state.pki / f"{name}.{suffix}").read_bytes())
    configuration = folder / "configuration.yaml"
    configuration.write_text(yaml.safe_dump(_configuration(folder, webhook_port, health_port)))
    return [
        str(program),
        f"--kubeconfig={state.kubeconfig_of(name)}",
        f"--config={configuration}",
        "--metrics-bind-address=0",
    ]


def _rollouts(name: str, program: Path, state: StateFolder, metrics_port: int, health_port: int) -> list[str]:
    """The command; this controller listens on every address of the machine, and has no flag for another."""
    return [
        str(program),
        f"--kubeconfig={state.kubeconfig_of(name)}",
        "--leader-elect=false",
        f"--metricsPort={metrics_port}",
        f"--healthzPort={health_port}",
    ]


def _manifests(program: Path) -> Iterator[dict[str, Any]]:
    folder = manifests_of(program)
    if not folder.is_dir():
        raise LocalClusterError(
            f"{folder} is not there; expected the manifests of {program.name} beside it, as a build leaves them"
        )
    for file in sorted(folder.glob("*.yaml")):
        yield from filter(None, yaml.load_all(file.read_text(), Loader=_LOADER))


# A definition has a megabyte.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _granted(role: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The controller's own role, and its binding to the user whose kubeconfig it has."""
    meta = {"name": f"localcluster-{name}"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **meta}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"localcluster:{name}"}
    binding = {
        "apiVersion": role["apiVersion"],
        "kind": "ClusterRoleBinding",
        "metadata": meta,
        "roleRef": reference,
        "subjects": [subject],
    }
    return {**role, "metadata": meta}, binding


def _configuration(folder: Path, webhook_port: int, health_port: int) -> dict[str, Any]:
    return {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "webhook": {"host": "127.0.0.1", "port": webhook_port, "certDir": str(folder)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health_port}"},
        "metrics": {"bindAddress": "0"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }


def _on_loopback(configuration: dict[str, Any], name: str, port: int, authority: bytes) -> dict[str, Any]:
    """A webhook configuration whose service is the controller's own port."""
    hooks = []
    for hook in configuration["webhooks"]:
        path = hook["clientConfig"]["service"]["path"]
        client = {
            "url": f"https://127.0.0.1:{port}{path}",
            "caBundle": base64.b64encode(authority).decode(),
        }
        about_pods = any("pods" in rule["resources"] for rule in hook["rules"])
        chosen = {"objectSelector": _ITS_PODS} if about_pods else {}
        hooks.append({**hook, "clientConfig": client, **chosen})
    return {**configuration, "metadata": {"name": f"localcluster-{name}"}, "webhooks": hooks}
