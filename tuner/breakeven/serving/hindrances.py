"""Settings of an engine with which nothing can be measured, or with which it does not start once it speculates.

What each version refuses was read in vLLM's packages, 0.18 to 0.33; `LIMITS` names the file and the words there, which
`tests/realvllm/limits.py` looks up where a vLLM is installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.methods import (
    ADAPTIVE_KEY,
    ADAPTIVE_METHODS,
    LOOKUP_METHODS,
    Drafter,
    drafter_of,
    method_of,
    takes_adaptive,
)
from breakeven.serving.command_line import SPECULATIVE_CONFIG, GivenFlag, cut, flag_number
from breakeven.serving.dynamic_speculation import KEY as SCHEDULE_KEY
from breakeven.serving.vllm_versions import Known, Span, VllmVersion, known

_HIDDEN_STATES = ("eagle3", "dflash", "dspark")
_UNLESS = ", unless the model hands its hidden states from stage to stage (some do since 0.30)"
_HEADLESS = "--headless"
# A first rank without the flag above means the hybrid balancer.
_OWN_SERVER = {
    "--data-parallel-hybrid-lb",
    "--data-parallel-external-lb",
    "--data-parallel-multi-port-external-lb",
    "--data-parallel-rank",
    "--data-parallel-start-rank",
}
TRANSFER_FLAG = "--kv-transfer-config"
# Connectors that move an engine's own caches to memory or disk.
_OFFLOADING = ("LMCacheConnectorV1", "LMCacheMPConnector", "OffloadingConnector")


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that vLLM refuses together with speculation.

    Attributes:
        what: the two things, in words.
        versions: that have it, among those that were read.
        file: of vLLM's package.
        words: in it; versions put it differently.
    """

    what: str
    versions: Span
    file: str
    words: tuple[str, ...]


def _span(first: str | None, last: str | None) -> Span:
    return Span(VllmVersion.of(first) if first else None, VllmVersion.of(last) if last else None)


_STAGES = "pipeline parallelism with eagle3, dflash and dspark"
_TRANSFER = "prefill and decode that speculate with different drafters"
_CONFIG = "vllm/config/vllm.py"
_LONGEST_NUMBER = 12
_DRAFTER_CONTEXT = "max_model_len"
_ADAPTIVELY = "Adaptive verification is not currently compatible"
LIMITS = {
    limit.what: limit
    for limit in (
        Limit(
            _STAGES, _span(None, "0.29"), "vllm/v1/worker/gpu/model_runner.py", ("with pipeline parallel",)
        ),
        Limit(
            "pipeline parallelism with eagle3, dflash and dspark unless the model hands hidden states on",
            _span("0.30", None),
            "vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py",
            ("supports_aux_hidden_states_over_pp",),
        ),
        Limit(
            "custom logits processors",
            _span(None, None),
            "vllm/v1/sample/logits_processor/__init__.py",
            ("Custom logits processors are not supported when",),
        ),
        Limit(
            "structured outputs by lm-format-enforcer",
            _span(None, None),
            "vllm/v1/structured_output/backend_lm_format_enforcer.py",
            ("LM Format Enforcer backend does not support speculative",),
        ),
        Limit(
            _TRANSFER,
            _span("0.28", None),
            "vllm/distributed/kv_transfer/kv_connector/v1/nixl/metadata.py",
            ("_get_speculative_compatibility_factors",),
        ),
        Limit(
            "adaptive verification and LoRA",
            _span("0.28", None),
            _CONFIG,
            ("adaptive verification with LoRA", f"{_ADAPTIVELY} with LoRA"),
        ),
        Limit(
            "adaptive verification without full CUDA graphs",
            _span("0.28", None),
            _CONFIG,
            ("adaptive verification with enforce_eager", _ADAPTIVELY, "Adaptive verification requires full"),
        ),
        Limit(
            "adaptive verification and pipeline parallelism",
            _span("0.28", None),
            _CONFIG,
            ("adaptive verification with pipeline parallelism", _ADAPTIVELY),
        ),
        Limit(
            "adaptive verification and use_local_argmax_reduction",
            _span("0.32", None),
            "vllm/config/speculative.py",
            ("use_local_argmax_reduction never",),
        ),
        Limit(
            "draft_model, eagle, eagle3 and dflash without a model",
            _span(None, None),
            "vllm/config/speculative.py",
            ("without speculative model",),
        ),
        Limit(
            "a drafter's max_model_len above the target's",
            _span(None, None),
            "vllm/config/speculative.py",
            ("larger than target_max_model_len=",),
        ),
        Limit(
            "drafts for a batch in which one request is longer than the drafter's context, by model runner V1",
            _span(None, None),
            "vllm/v1/worker/gpu_model_runner.py",
            ("effective_drafter_max_model_len",),
        ),
    )
}
"""The combinations that vLLM refuses, by name."""


def hindrances(
    words: Sequence[str], config: Mapping[str, Any] | None = None, version: VllmVersion | None = None
) -> list[str]:
    """A line for each, with what to change.

    Args:
        words: command and arguments of the container.
        config: the speculative configuration, if one is known.
        version: of vLLM, if it is known.
    """
    given = {flag.name: flag for flag in cut(words)}
    found = []
    if flag := given.get("--disable-log-stats"):
        found.append(
            f"{flag.items[0]}: vLLM then counts nothing, and its metrics page has no vllm:* series, so that nothing can be "
            "measured or decided; remove it"
        )
    if "vllm.entrypoints.api_server" in words:
        found.append(
            "vllm.entrypoints.api_server: vLLM's server for demonstrations has no metrics page, so that nothing can be "
            "measured or decided; use vllm serve, or vllm.entrypoints.openai.api_server"
        )
    found += _stages(given, words, config, version)
    if flag := given.get("--logits-processors"):
        found.append(
            f"{flag.items[0].partition('=')[0]}: vLLM refuses custom logits processors together with speculation; "
            "remove them, or leave speculation out"
        )
    found += _transfer(given, config, version)
    if enforcer := _format_enforcer(words):
        found.append(
            f"{enforcer}: this backend of structured outputs does not take speculative tokens, and requests with a schema "
            "fail; use xgrammar or guidance"
        )
    if config is not None:
        found += adaptive_hindrances(words, config)
        found += _incomplete(config)
        found += _drafter_context(words, config)
    return found


def unknown_words(
    words: Sequence[str], config: Mapping[str, Any] | None, version: VllmVersion | None
) -> list[str]:
    """Words about speculation that the image's version does not know, each as a line with the versions that do.

    Args:
        words: command and arguments of the container.
        config: the speculative configuration, if one is known.
        version: of vLLM; None if it is not known. Of a version that was not read nothing is said.
    """
    table = known()
    found: list[str] = []
    if version is not None and not table.oldest <= version <= table.newest:
        return found
    if version is not None:
        found += [
            f"{flag.items[0].partition('=')[0]}: {_since(table.flags[flag.head], version)}"
            for flag in cut(words)
            if flag.head in table.flags and not table.flags[flag.head].holds(version)
        ]
    if config is None:
        return found
    for key, spans in (("method", table.methods), ("rejection_sample_method", table.verification)):
        word = config.get(key)
        if isinstance(word, str) and word not in spans and key == "method":
            found.append(f"{key} {word}: {_never(table)}")
        elif (
            version is not None and isinstance(word, str) and word in spans and not spans[word].holds(version)
        ):
            found.append(f"{key} {word}: {_since(spans[word], version)}")
    for key in config:
        if key not in table.keys:
            found.append(f"{key} of {SPECULATIVE_CONFIG}: {_never(table)}")
        elif version is not None and key != SCHEDULE_KEY and not table.keys[key].holds(version):
            found.append(f"{key} of {SPECULATIVE_CONFIG}: {_since(table.keys[key], version)}")
    return found


def _never(table: Known) -> str:
    return f"no vLLM from {table.oldest} to {table.newest} knows it, and none of them starts"


def _since(span: Span, version: VllmVersion) -> str:
    if span.first is not None and version < span.first:
        return f"vLLM {version} does not know it ({span.first} and newer does), and does not start"
    return f"vLLM {version} does not know it any more ({span.last} was the last), and does not start"


def _stages(
    given: Mapping[str, GivenFlag],
    words: Sequence[str],
    config: Mapping[str, Any] | None,
    version: VllmVersion | None,
) -> Iterator[str]:
    stages = flag_number(words, "--pipeline-parallel-size") or 1
    if stages <= 1 or (version is not None and version < known().oldest):
        return
    name = f"{given['--pipeline-parallel-size'].items[0].partition('=')[0]} {stages}"
    method = method_of(config) if config is not None else None
    if method is not None and method not in _HIDDEN_STATES:
        return
    # From 0.30 on a model may hand the states on that its drafter reads.
    unless = "" if version is not None and LIMITS[_STAGES].versions.holds(version) else _UNLESS
    yield (
        f"{name}: vLLM does not start with pipeline parallelism and {method or 'eagle3, dflash or dspark'} together{unless}; "
        "use tensor parallelism alone, or another method"
    )


def _transfer(
    given: Mapping[str, GivenFlag], config: Mapping[str, Any] | None, version: VllmVersion | None
) -> Iterator[str]:
    flag = given.get(TRANSFER_FLAG)
    if flag is None or _keeps_its_caches(flag):
        return
    name, limit = flag.items[0].partition("=")[0], LIMITS[_TRANSFER]
    refused = (
        f"{name}: the operator decides about no engine that hands KV caches on or takes them (KvTransferPair)"
    )
    drafts = config is None or method_of(config) not in LOOKUP_METHODS
    if drafts and (version is None or limit.versions.holds(version)):
        refused += f"; since {limit.versions.first} prefill and decode must speculate with the same drafter, or NIXL refuses their handshake"
    yield refused


def hands_caches_on(words: Sequence[str]) -> bool:
    """Whether an engine hands KV caches to others or takes theirs: prefill or decode, not an offload of its own."""
    flags = [flag for flag in cut(words) if flag.name == TRANSFER_FLAG]
    return any(not _keeps_its_caches(flag) for flag in flags)


def serves_for_itself(words: Sequence[str]) -> str | None:
    """The flag by which a pod of a data-parallel group has an API server of its own; None if it has none, or shares one."""
    names = [flag.name for flag in cut(words)]
    return None if _HEADLESS in names else next((name for name in names if name in _OWN_SERVER), None)


def _keeps_its_caches(flag: GivenFlag) -> bool:
    try:
        said = json.loads(flag.values[0]) if flag.values and not flag.path else None
    except ValueError:
        return False
    if not isinstance(said, dict):
        return False
    several: list[object] = [said]
    if said.get("kv_connector") == "MultiConnector" and said.get("kv_role") == "kv_both":
        extra = said.get("kv_connector_extra_config")
        found = extra.get("connectors") if isinstance(extra, dict) else None
        several = found if isinstance(found, list) and found else several
    return all(isinstance(one, dict) and _offloads(one) for one in several)


def _offloads(said: Mapping[str, Any]) -> bool:
    return said.get("kv_connector") in _OFFLOADING and said.get("kv_role", "kv_both") == "kv_both"


def _format_enforcer(words: Sequence[str]) -> str:
    for flag in cut(words):
        if "lm-format-enforcer" in " ".join(flag.items) and flag.name:
            return " ".join(flag.items)
    return ""


def adaptive_hindrances(words: Sequence[str], config: Mapping[str, Any]) -> Iterator[str]:
    """Lines about settings that vLLM refuses beside adaptive verification; none without it.

    Args:
        words: command and arguments of the container.
        config: the speculative configuration.
    """
    if config.get(ADAPTIVE_KEY) is not True:
        return
    given, method = {flag.name: flag for flag in cut(words)}, method_of(config)
    if isinstance(method, str) and (drafter_of(method) is not None and not takes_adaptive(method)):
        yield (
            f"{ADAPTIVE_KEY} with method {method}: vLLM's model runner V2 drafts for it with no model whose confidence it could "
            f"read; use {', '.join(ADAPTIVE_METHODS)}, or leave the key out"
        )
    if method != "dspark" and config.get("use_local_argmax_reduction") is True:
        yield f"{ADAPTIVE_KEY} with use_local_argmax_reduction: vLLM does not start with both; leave one of the two out"
    staged = (flag_number(words, "--pipeline-parallel-size") or 1) > 1
    refused = [name for name in ("--enable-lora", "--enforce-eager") if name in given]
    for name in (*refused, *(("--pipeline-parallel-size",) if staged else ())):
        yield f"{given[name].items[0].partition('=')[0]}: vLLM does not start with it and {ADAPTIVE_KEY}; leave one of the two out"


def _incomplete(config: Mapping[str, Any]) -> Iterator[str]:
    method, length = method_of(config), config.get("num_speculative_tokens")
    if isinstance(length, bool) or not isinstance(length, int):
        return
    if length <= 0:
        yield (
            f"num_speculative_tokens {length} of {SPECULATIVE_CONFIG}: vLLM does not start, because it must be above 0; for no "
            "speculation leave the whole configuration out"
        )
    if isinstance(method, str) and drafter_of(method) is Drafter.REQUIRED and not config.get("model"):
        yield f"method {method} of {SPECULATIVE_CONFIG} without a model: vLLM does not start; name the drafter"


def _drafter_context(words: Sequence[str], config: Mapping[str, Any]) -> Iterator[str]:
    drafter, target = _contexts(words, config)
    if drafter is None or target is None or drafter == target:
        return
    said = _said_context(drafter)
    if drafter > target:
        yield f"{said}: vLLM does not start, because that is above the target's {target}; leave it out"
    else:
        yield (
            f"{said}, shorter than the target's {target}: while one request of a batch is longer, vLLM's model runner V1 drafts "
            "for none of them, and V2 does not look at it; leave it out, or keep requests below it"
        )


def unknown_context(words: Sequence[str], config: Mapping[str, Any] | None) -> str | None:
    """A line about a drafter's context that cannot be compared; None if there is nothing to compare, or both are known."""
    drafter, target = _contexts(words, config or {})
    if drafter is None or target is not None:
        return None
    return (
        f"{_said_context(drafter)}: no --max-model-len is given here, so the target's context is that of its model, which "
        "lint does not see; if that is longer, see to it that requests stay below"
    )


def _contexts(words: Sequence[str], config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The contexts that are said of drafter and target, in tokens; None if none is said, or the engine chooses it."""
    drafter = config.get(_DRAFTER_CONTEXT)
    if isinstance(drafter, str) and drafter.isdecimal() and len(drafter) < _LONGEST_NUMBER:
        drafter = int(drafter)
    named = isinstance(drafter, int) and not isinstance(drafter, bool) and drafter > 0
    # A method without a drafter looks its drafts up, however long the request is.
    if not named or method_of(config) in LOOKUP_METHODS:
        return None, None
    return drafter, flag_number(words, "--max-model-len") or None


def _said_context(drafter: int) -> str:
    return f"{_DRAFTER_CONTEXT} {drafter} of {SPECULATIVE_CONFIG}"
