"""From the target's pod template to a calibration pod: the same engine, without the target's traffic and place.

The copy runs the target's image with the target's arguments, all speculation replaced by the arm, on the same GPU
class. It loses three kinds of fields. Labels that anything selects on would bring users' requests to it. Anti-affinity
to serving pods would keep it from being scheduled. The rest would give it rights and ranks of a serving pod.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.serving.command_line import with_speculation, without_speculation
from breakeven.serving.opt_in import VARIABLE, with_argument
from breakeven.serving.rolling import unshareable
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import SERVICE_LABEL, matches
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.served_engine import ServedEngine
from breakeven_operator.workloads.workload import Workload

ENGINE = "engine"
DEFAULT_PORT = 8000
MAX_CLIENTS = 64
# Domains of keys that scrape, inject or choose the arm; domains below them count too.
_DOMAINS_LEFT_OUT = re.compile(
    r"(^|\.)(prometheus\.io|istio\.io|linkerd\.io|kuma\.io|consul\.hashicorp\.com|dapr\.io"
    r"|opentelemetry\.io|jaegertracing\.io|openservicemesh\.io|appmesh\.k8s\.aws|nsm\.nginx\.com|datadoghq\.com"
    r"|newrelic\.com|dynatrace\.com|breakeven\.dev|kubectl\.kubernetes\.io)/"
)
# Other injectors of containers have no list: their keys say what they do.
_INJECTS = re.compile("inject|sidecar", re.IGNORECASE)
_VAULT = "vault.hashicorp.com/"
_LABELS_OF_CONTROLLERS = frozenset(
    {
        "pod-template-hash",
        "controller-revision-hash",
        "kueue.x-k8s.io/queue-name",
        "kueue.x-k8s.io/priority-class",
    }
)
# A mesh's proxy would stand between driver and engine, and keep the Job from ever completing. Namespaces may ask for one too;
# of Istio and Kuma the label wins over the annotation.
_NO_MESH_LABELS = {"sidecar.istio.io/inject": "false", "kuma.io/sidecar-injection": "disabled"}
_NO_MESH = {
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
    "consul.hashicorp.com/connect-inject": "false",
    "sidecar.opentelemetry.io/inject": "false",
    "appmesh.k8s.aws/sidecarInjectorWebhook": "disabled",
}
_POD_FIELDS = (
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "hostAliases",
    "imagePullSecrets",
    "os",
    "overhead",
    "resourceClaims",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
    "tolerations",
    "volumes",
)
_LOGS_OF_REQUESTS = ("--enable-log-requests", "--enable-log-outputs")
_ENGINE_FIELDS = (
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "resources",
    "securityContext",
    "volumeDevices",
    "volumeMounts",
    "workingDir",
)


class NotCopyableError(Exception):
    """The target cannot be copied; says why as a reason word and a sentence."""

    def __init__(self, reason: ClusterReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """How the driver reaches the engine in its own pod.

    The key variable is an entry of the environment, copied by reference; None if the engine asks for no key. The certificate is
    a path in the engine's container, only with https.
    """

    scheme: str
    port: int
    key_variable: Mapping[str, Any] | None
    certificate: str | None


def check_alone(workload: Workload) -> None:
    """Refuse a replica of several pods: a copy of one of them would wait for the others.

    Raises:
        NotCopyableError: its replicas are groups.
    """
    number = workload.workers.number
    if number:
        raise NotCopyableError(
            ClusterReason.POD_NOT_COPIED,
            f"each replica of {workload.title} is a group of {number + 1} pods, and a calibration copies one: measure the arms on a"
            " group of your own, and give the results to a CalibrationRun by importFrom",
        )


def engine_of(engine: ServedEngine | None) -> ServedEngine:
    """The engine of a target, if a pod for another arm can be made of it.

    Raises:
        NotCopyableError: the target has not exactly one container that starts vLLM, or the text of its shell does not show
            the command line.
    """
    if engine is None:
        raise NotCopyableError(
            ClusterReason.ENGINE_UNCLEAR, "the target has not exactly one container that starts vLLM"
        )
    if engine.start.shell and (not engine.start.certain or with_argument(engine.container, "") is None):
        raise NotCopyableError(
            ClusterReason.ENGINE_UNCLEAR,
            "the target starts vLLM through a shell, and an arm's pod needs another command line: "
            + next(iter(engine.start.problems), "its text does not show where that line ends"),
        )
    return engine


def engine_address(engine: ServedEngine) -> EngineAddress:
    """Read port, TLS and API key from the engine's command line and environment.

    Raises:
        NotCopyableError: the API key stands in the arguments themselves; it could only be copied as plain text.
    """
    ports = [
        port["containerPort"]
        for port in engine.container.get("ports") or []
        if port.get("protocol", "TCP") == "TCP"
    ]
    certificate = engine.flag("--ssl-certfile")
    return EngineAddress(
        scheme="https" if certificate else "http",
        port=engine.number("--port") or (ports[0] if ports else DEFAULT_PORT),
        key_variable=_key_variable(engine.container, engine.flag("--api-key")),
        certificate=certificate,
    )


def max_concurrency(engine: ServedEngine) -> int:
    """Clients of the ceiling point: as many as the engine runs at once (`--max-num-seqs`), at most 64.

    More clients than the engine runs would measure its queue. More than 64 would take longer, and the slope would not become
    more precise.
    """
    given = engine.number("--max-num-seqs")
    return MAX_CLIENTS if given is None else min(MAX_CLIENTS, max(2, given))


def _key_variable(container: Manifest, argument: str | None) -> Mapping[str, Any] | None:
    name = "VLLM_API_KEY"
    if argument is not None:
        if not (argument.startswith("$(") and argument.endswith(")")):
            raise NotCopyableError(
                ClusterReason.POD_NOT_COPIED,
                "the API key stands in the target's arguments: put it into a Secret and the environment variable"
                " VLLM_API_KEY, from where the load driver can read it by reference",
            )
        name = argument[2:-1]
    return next((entry for entry in container.get("env") or [] if entry.get("name") == name), None)


def check_copyable(spec: Manifest, claims: Iterable[Manifest]) -> None:
    """Refuse volumes and claims that only one pod can have, and rights that a calibration pod may not have.

    Raises:
        NotCopyableError: a named ResourceClaim, a volume that may be mounted by one node or pod only, the node's IPC, or a
            token or certificate of the target's account.
    """
    if spec.get("hostIPC"):
        raise NotCopyableError(
            ClusterReason.POD_NOT_COPIED,
            "the target shares its node's IPC (hostIPC), which a calibration pod may not: give it shared memory by an"
            " emptyDir of medium Memory at /dev/shm",
        )
    for volume in spec.get("volumes") or []:
        sources = (volume.get("projected") or {}).get("sources") or []
        if any({"serviceAccountToken", "podCertificate"} & source.keys() for source in sources):
            raise NotCopyableError(
                ClusterReason.POD_NOT_COPIED,
                f"volume {volume['name']} of the target holds a token or certificate of its ServiceAccount: a calibration pod"
                " runs under another account, and its engine gets no credential of that one",
            )
    problem = unshareable(spec, claims)
    if problem is not None:
        raise NotCopyableError(ClusterReason.VOLUME_NOT_SHAREABLE, problem)


def pod_labels(
    template: Manifest, target_selector: Manifest, selectors: Sequence[Manifest], own: Mapping[str, str]
) -> dict[str, str]:
    """Labels of the copy: the template's without those that anything selects on, and our own.

    The target's own selector counts among them: its autoscaler would average our pods into its metrics. A selector
    without any requirement selects every pod of the namespace and cannot be escaped.

    Raises:
        NotCopyableError: a selector picks pods by the absence of a label.
    """
    wanted = [target_selector, *selectors]
    selected = {key for selector in wanted for key in _keys(selector)}
    template_labels = (template.get("metadata") or {}).get("labels") or {}
    kept = {
        key: value
        for key, value in template_labels.items()
        if key not in selected and key not in _LABELS_OF_CONTROLLERS and not _left_out(key)
    }
    labels = {**kept, **_NO_MESH_LABELS, **own}
    for selector in wanted:
        if _keys(selector) and matches(selector, labels):
            raise NotCopyableError(
                ClusterReason.POD_NOT_COPIED,
                f"a selector on {', '.join(sorted(_keys(selector)))} in this namespace picks calibration pods too:"
                " make it require a label that only serving pods have",
            )
    return labels


def _left_out(key: str) -> bool:
    """Whether a label or an annotation scrapes, injects containers or chooses the arm."""
    return _DOMAINS_LEFT_OUT.search(key) is not None or _INJECTS.search(key) is not None


def _keys(selector: Manifest) -> set[str]:
    required = set(selector.get("matchLabels") or {})
    return required | {expression["key"] for expression in selector.get("matchExpressions") or []}


def check_isolation(template: Manifest, labels: Mapping[str, str], policies: Iterable[Manifest]) -> None:
    """Refuse a copy with more network access than its target.

    A copy cannot keep the labels by which its target is served and scaled, and NetworkPolicies often select by these. Any
    policy that isolates the copy in the same direction is enough: its owner chooses what it allows.

    Raises:
        NotCopyableError: traffic into or out of the target is restricted, and traffic of the copy would not be.
    """
    own = (template.get("metadata") or {}).get("labels") or {}
    left: dict[str, list[str]] = {}
    covered: set[str] = set()
    for policy in policies:
        selector, directions = (policy.get("spec") or {}).get("podSelector") or {}, _directions(policy)
        if matches(selector, labels):
            covered |= directions
        elif matches(selector, own):
            for direction in directions:
                left.setdefault(direction, []).append(policy["metadata"]["name"])
    open_ways = sorted(left.keys() - covered)
    if open_ways:
        names = sorted({name for direction in open_ways for name in left[direction]})
        raise NotCopyableError(
            ClusterReason.POD_NOT_COPIED,
            f"NetworkPolicy {', '.join(names)} restricts the target's {' and '.join(open_ways).lower()} by labels that a"
            " calibration pod cannot keep: add one for the same direction that selects"
            f" {SERVICE_LABEL}={labels.get(SERVICE_LABEL, '')}",
        )


def _directions(policy: Manifest) -> set[str]:
    spec = policy.get("spec") or {}
    return set(spec.get("policyTypes") or ("Ingress", *(("Egress",) if "egress" in spec else ())))


def pod_annotations(template: Manifest) -> dict[str, str]:
    """Annotations of the copy: none that scrape, inject a container that never ends or choose the arm.

    Vault's agent stays if it only runs before the engine, which may need its secrets.
    """
    given = (template.get("metadata") or {}).get("annotations") or {}
    ends = str(given.get(f"{_VAULT}agent-pre-populate-only")).lower() == "true"
    kept = {
        key: value for key, value in given.items() if not _left_out(key) or (ends and key.startswith(_VAULT))
    }
    return {**kept, **_NO_MESH}


def pod_spec(engine: ServedEngine, gpu_label: str, gpu_product: str) -> dict[str, Any]:
    """The copy's pod spec without containers: where and how it runs, on the same GPU class.

    Node affinity stays (it may name a zone with the model's volume); what relates pods to pods goes. Init containers
    that run to their end stay (they may fetch the drafter); other sidecars go.
    """
    spec = engine.pod_spec
    copy = {name: spec[name] for name in _POD_FIELDS if name in spec}
    copy["nodeSelector"] = {**(spec.get("nodeSelector") or {}), gpu_label: gpu_product}
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity")
    if node_affinity:
        copy["affinity"] = {"nodeAffinity": node_affinity}
    copy["initContainers"] = [
        container
        for container in spec.get("initContainers") or []
        if container.get("restartPolicy") != "Always" and container["name"] != engine.name
    ]
    return copy


def engine_sidecar(
    engine: ServedEngine,
    speculative_config: Mapping[str, Any] | None,
    startup_s: int,
    *,
    discreet: bool = False,
) -> dict[str, Any]:
    """The engine as a native sidecar that counts as started when it answers.

    Liveness goes (a busy engine must not be restarted in mid-measurement), readiness and preStop go (nobody follows
    the pod). Its last log lines become its termination message, which explains a failure without reading logs. A discreet one
    must not log its requests, because they are a user's own.
    """
    container = engine.container
    sidecar = {name: container[name] for name in _ENGINE_FIELDS if name in container}
    # The last of two contradicting flags wins. Engines that do not know the flag are not given it.
    logs = [name for name in _LOGS_OF_REQUESTS if discreet and engine.flag(name) is not None]
    # Kubernetes would expand `$(...)` inside the arm's JSON.
    *_, arm = with_speculation((), speculative_config)
    added = [*(f"--no-{name.removeprefix('--')}" for name in logs), arm.replace("$(", "$$(")]
    sidecar |= _command_line(engine, added)
    if "env" in sidecar:
        sidecar["env"] = [entry for entry in sidecar["env"] if entry.get("name") != VARIABLE]
    address = engine_address(engine)
    probe = dict(container.get("startupProbe") or container.get("readinessProbe") or {})
    handler = {name: probe[name] for name in ("httpGet", "exec", "tcpSocket", "grpc") if name in probe}
    if not handler:
        probe = {}
        handler["httpGet"] = {"path": "/health", "port": address.port, "scheme": address.scheme.upper()}
    period_s = 2
    return {
        "name": ENGINE,
        **sidecar,
        "ports": [
            {name: value for name, value in port.items() if name not in {"hostPort", "hostIP"}}
            for port in container.get("ports") or []
        ],
        "restartPolicy": "Always",
        "startupProbe": {
            **handler,
            "periodSeconds": period_s,
            "timeoutSeconds": max(2, int(probe.get("timeoutSeconds", 2))),
            "failureThreshold": max(1, -(-startup_s // period_s)),
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _command_line(engine: ServedEngine, added: Sequence[str]) -> dict[str, Any]:
    """Command and arguments without speculation, and with others added; a shell reads the added ones in quotes."""
    container = engine.container
    if engine.start.shell:
        changed = with_argument(container, shlex.join(added)) or container
        # KServe's preset takes arguments from a variable.
        return {part: list(changed[part]) for part in ("command", "args", "env") if part in changed}
    parts = {
        part: without_speculation([str(item) for item in container.get(part) or []])
        for part in ("command", "args")
    }
    command = {"command": parts["command"]} if "command" in container else {}
    return {**command, "args": [*parts["args"], *added]}


def content_hash(target: ServedEngine | None) -> str:
    """12 hexadecimal digits over everything of a template that moves the copy's latency or could.

    Two arms whose pods were copied from templates with different hashes must not stand in one profile. Speculation,
    probes, shutdown, labels and annotations are not in it: the copy replaces or drops them.

    Raises:
        NotCopyableError: the engine's container cannot be found any more.
    """
    engine = engine_of(target)
    sidecar = engine_sidecar(engine, None, startup_s=0)
    content = {
        "engine": {name: sidecar[name] for name in (*_ENGINE_FIELDS, "args") if name in sidecar},
        "pod": pod_spec(engine, gpu_label="", gpu_product=""),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
