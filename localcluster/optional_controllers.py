"""Controllers of kinds that not every cluster has: their definitions, rights and webhooks, and how each is started.

The manifests are those of the controller's own module. A webhook's service becomes its address on loopback, and its
certificate is one of the cluster's authority.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from localcluster.catalog import manifests_of
from localcluster.failure import LocalClusterError
from localcluster.state import StateFolder

NAMES: Final = ("lws-controller", "rollouts-controller", "llmisvc-controller")
_KSERVE: Final = "kserve"
"""The namespace in which KServe looks for its configuration and its presets."""
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
    authority = (state.pki / "ca.crt").read_bytes()
    kinds = [one for one in documents if one["kind"] == "CustomResourceDefinition"]
    rights = [one for one in documents if one["kind"] == "ClusterRole"]
    webhooks = [one for one in documents if one["kind"].endswith("WebhookConfiguration")]
    before: list[dict[str, Any]] = []
    after = [_on_loopback(one, name, webhook_port, authority) for one in webhooks]
    environment: dict[str, str] = {}
    match name:
        case "lws-controller":
            command = _groups(name, program, state, webhook_port, health_port)
        case "rollouts-controller":
            command = _rollouts(name, program, state, webhook_port, health_port)
        case _:
            kinds = [_converted(one, webhook_port, authority) for one in kinds]
            command = _presets(name, program, state, webhook_port, health_port)
            # Its webhook looks for a certificate below the folder of temporary files, and it has no flag for another.
            environment = {"TMPDIR": str(_certificates(name, state)), "POD_NAMESPACE": _KSERVE}
            before = _configured(documents)
            after += [_placed(one) for one in documents if one["kind"] == "LLMInferenceServiceConfig"]
    return Starting(
        before=[*kinds, *(part for role in rights for part in _granted(role, name)), *before],
        kinds=[one["metadata"]["name"] for one in kinds],
        ready_path="/readyz" if webhooks else "/healthz",
        command=command,
        environment=environment,
        after=after,
    )


def _groups(name: str, program: Path, state: StateFolder, webhook_port: int, health_port: int) -> list[str]:
    folder = state.pki / f"{name}.webhook"
    _write_certificate(name, state, folder)
    configuration = folder / "configuration.yaml"
    configuration.write_text(yaml.safe_dump(_configuration(folder, webhook_port, health_port)))
    return [
        str(program),
        f"--kubeconfig={state.kubeconfig_of(name)}",
        f"--config={configuration}",
        "--metrics-bind-address=0",
    ]


def _presets(name: str, program: Path, state: StateFolder, webhook_port: int, health_port: int) -> list[str]:
    """The command; its webhook listens on every address of the machine, and it has no flag for another."""
    return [
        str(program),
        f"--kubeconfig={state.kubeconfig_of(name)}",
        "--metrics-addr=0",
        f"--webhook-port={webhook_port}",
        f"--health-probe-addr=127.0.0.1:{health_port}",
    ]


def _certificates(name: str, state: StateFolder) -> Path:
    """A folder of temporary files in which the webhook's certificate lies where controllers look for it."""
    folder = state.pki / f"{name}.webhook"
    _write_certificate(name, state, folder / "k8s-webhook-server" / "serving-certs")
    return folder


def _write_certificate(name: str, state: StateFolder, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("crt", "key"):
        (folder / f"tls.{suffix}").write_bytes((state.pki / f"{name}.{suffix}").read_bytes())


def _configured(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """KServe's namespace and its configuration, without TLS between the parts of a service and without a gateway."""
    (config,) = [one for one in documents if one["kind"] == "ConfigMap"]
    data = {key: value for key, value in config["data"].items() if not key.startswith("_")}
    ingress = {
        **json.loads(data["ingress"]),
        "enableLLMInferenceServiceTLS": False,
        "disableIngressCreation": True,
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _KSERVE}},
        _placed({**config, "data": {**data, "ingress": json.dumps(ingress)}}),
    ]


def _placed(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "metadata": {**document["metadata"], "namespace": _KSERVE}}


def _converted(definition: dict[str, Any], port: int, authority: bytes) -> dict[str, Any]:
    """A definition whose versions the controller converts into each other, as the patches of its kustomization have it."""
    if len(definition["spec"]["versions"]) == 1:
        return definition
    webhook = {
        "clientConfig": _client("/convert", port, authority),
        "conversionReviewVersions": ["v1", "v1beta1"],
    }
    conversion = {"strategy": "Webhook", "webhook": webhook}
    return {**definition, "spec": {**definition["spec"], "conversion": conversion}}


def _client(path: str, port: int, authority: bytes) -> dict[str, str]:
    """How the API server finds a webhook."""
    return {"url": f"https://127.0.0.1:{port}{path}", "caBundle": base64.b64encode(authority).decode()}


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
        client = _client(hook["clientConfig"]["service"]["path"], port, authority)
        about_pods = any("pods" in rule["resources"] for rule in hook["rules"])
        chosen = {"objectSelector": _ITS_PODS} if about_pods else {}
        hooks.append({**hook, "clientConfig": client, **chosen})
    own = {"name": f"localcluster-{name}-{configuration['metadata']['name']}"}
    return {**configuration, "metadata": own, "webhooks": hooks}
