"""The validity of a profile: everything of the target that moves a step of its engine and is not the arm.

In it: the engine's image, the model, the engine's arguments without speculative ones and without flags of the API server, the
engine's environment, the GPU product, and the devices that a pod asks for. Not in it: our annotation, restartedAt, replicas,
resources of sidecars; otherwise every roll would recalibrate.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.errors import InputError
from breakeven.serving.command_line import GivenFlag, command_line, cut, read
from breakeven.serving.opt_in import VARIABLE
from breakeven_operator.workloads.served_engine import ServedEngine, devices_of_pod
from breakeven_operator.workloads.workload_kind import ALONE, Workers

_FETCHES = "storage-initializer"
# An unknown flag or variable counts: a calibration too many costs GPU time, a profile of another engine costs users.
# Flags of the API server (vLLM's group FrontendArgs), of logs and metrics, and of where files come from move no step. Of the
# group, --lora-modules and --enable-flash-late-interaction compute on the GPU, and count.
_NAMES = """
host port uds root-path api-key middleware shutdown-timeout served-model-name
ssl-keyfile ssl-certfile ssl-ca-certs ssl-cert-reqs ssl-ciphers enable-ssl-refresh
allow-credentials allowed-origins allowed-methods allowed-headers h11-max-header-count h11-max-incomplete-event-size
allowed-local-media-path allowed-media-domains trust-request-chat-template trust-request-mm-kwargs
chat-template chat-template-content-format default-chat-template-kwargs response-role return-tokens-as-token-ids
enable-auto-tool-choice exclude-tools-when-tool-choice-none tool-call-parser tool-parser-plugin tool-server tool-strict-level
reasoning-parser reasoning-parser-plugin reasoning-effort-map anthropic-disabled-thinking-effort cohere-format
cohere-is-reasoning-model enable-prompt-tokens-details enable-force-include-usage enable-per-request-metrics
enable-request-id-headers enable-server-load-tracking enable-tokenizer-info-endpoint tokens-only sse-keep-alive-interval
disable-fastapi-docs enable-offline-docs fingerprint-mode fingerprint-value
data-parallel-supervisor-port dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
uvicorn-log-level disable-uvicorn-access-log disable-access-log-for-endpoints log-config-file log-error-stack log-level
logging-config aggregate-engine-logging max-log-len enable-log-requests enable-log-outputs
enable-log-deltas disable-log-stats use-tqdm-on-load fail-on-environ-validation otlp-traces-endpoint
show-hidden-metrics-for-version custom-histogram-buckets kv-cache-metrics kv-cache-metrics-sample cudagraph-metrics
per-request-spec-decode-metrics hf-token download-dir
"""
HARMLESS_FLAGS = tuple(f"--{name}" for name in _NAMES.split())
_SWITCH = re.compile(r"--(no-)?((en|dis)able-)?")
# `--no-x` and `--disable-x` switch the same thing off.
_HARMLESS = frozenset(_SWITCH.sub("", name, count=1) for name in HARMLESS_FLAGS)
# Log lines, usage statistics, keys, addresses, caches of files and deadlines. vLLM leaves most of them out of the key of its compile
# cache too. VLLM_LOG_BATCHSIZE_INTERVAL and VLLM_TRACE_FUNCTION slow steps down, and count.
_HARMLESS_VARIABLES = re.compile(
    r"VLLM_(LOGGING_\w+|CONFIGURE_LOGGING|LOG_STATS_INTERVAL|LOG_MODEL_INSPECTION|DEBUG_LOG_\w+|DEBUG_DUMP_PATH|SERVER_DEV_MODE"
    r"|NO_USAGE_STATS|DO_NOT_TRACK|USAGE_\w+|NO_DEPRECATION_WARNING|RINGBUFFER_WARNING_INTERVAL|API_KEY|HOST_IP|LOOPBACK_IP|PORT"
    r"|RPC_BASE_PATH|DP_MASTER_(IP|PORT)|NIXL_SIDE_CHANNEL_(HOST|PORT)|(CACHE|CONFIG)_ROOT|ASSETS_CACHE\w*|XLA_CACHE_PATH"
    r"|LORA_RESOLVER_CACHE_DIR|MEDIA_URL_ALLOW_REDIRECTS|KEEP_ALIVE_ON_ENGINE_DEATH|ALLOW_LONG_MAX_MODEL_LEN"
    r"|ALLOW_RUNTIME_LORA_UPDATING|ALLOW_INSECURE_SERIALIZATION|WORKER_MULTIPROC_METHOD)"
    r"|NCCL_DEBUG\w*|CUDA_(CACHE_\w+|COREDUMP_\w+|ENABLE_\w*COREDUMP\w*)|(VLLM|NCCL)_(\w+_)?TIMEOUT(_\w+)?"
)
# A tag with a version or a commit names one engine, whichever digest a node resolved it to: rebuilds, mirrors and platforms have
# digests of their own. Any other tag (latest, nightly) moves, and only the digest says to what.
_VERSION = re.compile(r"\d+\.\d+|[0-9a-f]{7,}")
_MOVING = frozenset({"latest", "nightly", "main", "master", "dev", "edge", "stable", "rolling"})


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a target that a measurement belongs to.

    Attributes:
        fingerprint: f and 11 hexadecimal digits over all of it.
        fingerprints: of every image that its pods run under one moving tag, that one among them: a profile of any counts.
        model: as the command line names it. served_model: vLLM's `model_name` label.
        image: that its fingerprint holds: a version, a digest, or the tag of the manifest.
        gpus: devices per replica, slices and claims among them.
        registry_digest: the image's digest in its registry; None of a version, and while no pod tells one.
    """

    fingerprint: str
    model: str | None
    served_model: str | None
    image: str
    gpu_product: str | None
    gpus: int
    registry_digest: str | None = None
    fingerprints: frozenset[str] = frozenset()

    def has(self, fingerprint: str) -> bool:
        """Whether a measurement with this fingerprint is one of the target."""
        return fingerprint == self.fingerprint or fingerprint in self.fingerprints


def identify(
    engine: ServedEngine, image_ids: Iterable[str], gpu_product: str | None, workers: Workers = ALONE
) -> Identity:
    """The identity of an engine.

    Nodes of Ready pods resolved its image to `image_ids`. Without any the manifest's image stands in, and the fingerprint of a
    moving tag changes once when the digest becomes known.
    """
    known = list(image_ids)
    images = _images(str(engine.container.get("image", "")), known)
    facts = {
        "arguments": _arguments(engine.flags),
        "environment": _environment(
            [
                *(engine.container.get("env") or []),
                *({"name": name, "value": value} for name, value in engine.start.exports.items()),
            ]
        ),
        "gpu": gpu_product,
        "gpus": engine.devices.whole,
        **engine.devices.identity,
        **({"beside": engine.start.beside} if engine.start.beside else {}),
        **({"workers": _workers(workers)} if workers.number else {}),
        **({"fetched": fetched} if (fetched := _fetched(engine.pod_spec)) else {}),
    }
    marks = {image: _hashed({"image": image, **facts}) for image in images}
    image = max(images)
    return Identity(
        fingerprint=marks[image],
        model=engine.model,
        served_model=engine.flag("--served-model-name") or engine.model,
        image=image,
        gpu_product=gpu_product,
        gpus=engine.devices.count + workers.number * devices_of_pod(workers.pod_spec),
        # Of a version no digest is asked for: a calibration on a node with another one measures the same engine.
        registry_digest=max(filter(None, map(registry_digest, known)), default=None)
        if image in map(digest, known)
        else None,
        fingerprints=frozenset(marks.values()),
    )


def _images(named: str, resolved: Sequence[str]) -> list[str]:
    """Names that tell the engine's image from others: digest or version that the manifest names, else digests that nodes resolved."""
    reference, _, pinned = named.partition("@")
    if pinned:
        return [pinned]
    repository, _, tag = reference.rpartition(":")
    if _VERSION.search(tag) and not _MOVING & set(re.split(r"[-_.]", tag)):
        # A mirror of a registry serves the same image under the same path.
        host, slash, path = repository.partition("/")
        return [f"{path if slash and ('.' in host or ':' in host) else repository}:{tag}"]
    return sorted({digest(one) for one in resolved}) or [named]


def _hashed(facts: Mapping[str, object]) -> str:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    # A letter before it: kubectl reads an unquoted 8296062857e8 as a number.
    return f"f{hashlib.sha256(text.encode()).hexdigest()[:11]}"


def digest(image_id: str) -> str:
    """`sha256:...` of an imageID such as `docker.io/vllm/vllm-openai@sha256:...`; the whole text without one."""
    return image_id.rpartition("@")[2]


def registry_digest(image_id: str) -> str | None:
    """The digest under which a registry knows the image; None if the node tells only an identity of its own.

    Only these can be compared between nodes: an image that was loaded by hand has another name on each runtime.
    """
    return digest(image_id) if "@" in image_id else None


def _workers(workers: Workers) -> list[Any]:
    containers = workers.pod_spec.get("containers") or []
    return [
        workers.number,
        [[one.get("image"), _arguments(cut(command_line(one))), one.get("resources")] for one in containers],
    ]


def _fetched(pod_spec: Mapping[str, Any]) -> list[Any]:
    """Arguments of KServe's init container: vLLM is given a folder, and these name the model that comes into it."""
    inits = pod_spec.get("initContainers") or []
    return [one.get("args") for one in inits if one.get("name") == _FETCHES]


def _arguments(flags: Iterable[GivenFlag]) -> list[Any]:
    """Words that are no flags in their order, then the flags that matter by name: neither order nor spelling moves a step.

    vLLM takes the last of two equal flags.
    """
    words: list[str] = []
    values: dict[str, list[Any]] = {}
    for flag in flags:
        if not flag.name:
            words += flag.items
        elif not flag.speculative and _SWITCH.sub("", flag.name, count=1) not in _HARMLESS:
            name = ".".join((flag.name, *flag.path))
            values[name] = [_value(flag, text) for text in flag.values]
    return [*words, *([name, *values[name]] for name in sorted(values))]


def _value(flag: GivenFlag, text: str) -> Any:
    """A value as vLLM reads it: 8k is 8000, and blanks in JSON are nothing."""
    try:
        return text if flag.path else read(flag.name, text)
    except InputError:
        return text


def _environment(entries: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The engine's own environment by name; values of Secrets and ConfigMaps by reference, never by content."""
    engine = [
        entry
        for entry in entries
        if entry.get("name") != VARIABLE
        and str(entry.get("name", "")).startswith(("VLLM_", "CUDA_", "NCCL_"))
        and not _HARMLESS_VARIABLES.fullmatch(str(entry["name"]))
    ]
    return sorted(
        ([entry.get("name"), entry.get("value"), entry.get("valueFrom")] for entry in engine),
        key=lambda item: str(item[0]),
    )
