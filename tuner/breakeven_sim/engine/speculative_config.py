"""vLLM's `--speculative-config`: its keys, its defaults and its refusals.

Follows vLLM 0.32: the rules were tried with its own parser or read in its source. A refusal is one line
of the same substance as in vLLM, in other words.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from breakeven.errors import InputError
from breakeven.methods import ADAPTIVE_KEY, METHODS, Drafter, draft_length_of, method_of, takes_adaptive
from breakeven.serving.command_line import SPECULATIVE_CONFIG as WHERE
from breakeven.serving.vllm_versions import schedule_in
from breakeven_sim.engine.configuration import DraftLengths

# Drafts of a user's own class cannot be simulated.
_SIMULATED = METHODS.keys() - {"custom_class"}
_WHOLE = TypeAdapter(int)
_PROMPT_LOOKUP_DEFAULT = 5
KEYS = frozenset(
    {
        "method", "model", "num_speculative_tokens", "num_speculative_tokens_per_batch_size", "parallel_drafting",
        "draft_tensor_parallel_size", "quantization", "moe_backend", "attention_backend", "kv_cache_dtype",
        "max_model_len", "revision", "code_revision", "draft_sample_method", "enforce_eager", "draft_load_config",
        "prompt_lookup_min", "prompt_lookup_max", "suffix_decoding_max_tree_depth",
        "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob",
        "disable_padded_drafter_batch", "use_local_argmax_reduction", "draft_lm_head_quantization",
        "disable_eagle_block_drop", "disable_lookahead_block_hashes", "index_share_for_mtp_iteration",
        "use_heterogeneous_vocab", "xpress_topc", "dspark_draft_topk", "enable_adaptive_verification",
        "rejection_sample_method", "synthetic_acceptance_rates", "synthetic_acceptance_length", "tensor_parallel_size",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """A speculative configuration that vLLM would accept.

    Attributes:
        method: vLLM's method name.
        drafts: draft length by batch size.
        drafter: the drafter model, if the method has one of its own.
        imposed_survival: unconditional acceptance per position, if the engine imposes it.
        given: the configuration with vLLM's defaults filled in, as the log shows it.
    """

    method: str
    drafts: DraftLengths
    drafter: str | None = None
    imposed_survival: tuple[float, ...] | None = None
    given: Mapping[str, Any] = field(default_factory=dict)


def speculation(config: Mapping[str, Any] | None) -> SpeculativeConfig | None:
    """Check a configuration and fill in what vLLM fills in.

    Args:
        config: the JSON object, or `None` for no speculation.

    Raises:
        InputError: vLLM would refuse it.
    """
    if config is None:
        return None
    unknown = sorted(set(config) - KEYS)
    if unknown:
        raise InputError(WHERE, f"unknown key {unknown[0]}", "a key of vLLM's SpeculativeConfig")
    full = dict(config)
    method = _method(full)
    full["method"] = method
    if METHODS[method] is Drafter.REQUIRED and not full.get("model"):
        raise InputError(WHERE, f"method {method} without a model", "model: the drafter")
    if method in {"ngram", "ngram_gpu"}:
        _prompt_lookup(full)
    k = _longest(full)
    table = schedule_in(full)
    drafter = full.get("model") if METHODS[method] is not Drafter.NONE else None
    adaptive = _adaptive(full, method)
    drafts = DraftLengths(k, table.tiers if table and not adaptive else (), adaptive=adaptive)
    return SpeculativeConfig(method, drafts, drafter, _imposed(full, k), full)


def _method(config: Mapping[str, Any]) -> str:
    method = method_of(config)
    if method is None:
        raise InputError(WHERE, "neither method nor model", "at least one of them")
    if method not in _SIMULATED:
        raise InputError(WHERE, f"method {method!r}", f"one of {', '.join(sorted(_SIMULATED))}")
    return str(method)


def _adaptive(config: Mapping[str, Any], method: str) -> bool:
    """Whether the engine verifies as many drafts as pay."""
    if config.get(ADAPTIVE_KEY) is not True:
        return False
    if not takes_adaptive(method):
        raise InputError(
            WHERE,
            f"{ADAPTIVE_KEY} with method {method}",
            "a method that runs a drafter by model runner V2",
        )
    if method != "dspark" and config.get("use_local_argmax_reduction") is True:
        raise InputError(WHERE, f"{ADAPTIVE_KEY} with use_local_argmax_reduction", "one of the two")
    return True


def _count(key: str, value: Any, at_least: int = 1) -> int | None:
    """A count, from anything that pydantic takes for one in vLLM: 3, "3", 3.0 and even true."""
    if value is None:
        return None
    try:
        count = _WHOLE.validate_python(value)
    except ValidationError:
        count = at_least - 1
    if count < at_least:
        raise InputError(WHERE, f"{key} is {value!r}", f"an integer of at least {at_least}")
    return count


def _prompt_lookup(config: dict[str, Any]) -> None:
    """Both ends of the n-gram range: 5 and 5 if neither is given, the other one if one is."""
    low, high = (_count(key, config.get(key)) for key in ("prompt_lookup_min", "prompt_lookup_max"))
    low_full = low or high or _PROMPT_LOOKUP_DEFAULT
    high_full = high or low or _PROMPT_LOOKUP_DEFAULT
    if low_full > high_full:
        raise InputError(
            WHERE, f"prompt_lookup_min {low_full} above prompt_lookup_max {high_full}", "min <= max"
        )
    config["prompt_lookup_min"], config["prompt_lookup_max"] = low_full, high_full


def _longest(config: dict[str, Any]) -> int:
    key = "num_speculative_tokens"
    k = _count(key, draft_length_of(config))
    if k is None:
        raise InputError(WHERE, f"{key} is missing", "an integer of at least 1")
    config[key] = k
    return k


def _imposed(config: Mapping[str, Any], k: int) -> tuple[float, ...] | None:
    """Unconditional acceptance per position under `rejection_sample_method: synthetic`."""
    sampler = config.get("rejection_sample_method", "standard")
    rates, length = config.get("synthetic_acceptance_rates"), config.get("synthetic_acceptance_length")
    if sampler not in {"standard", "synthetic", "block"}:
        raise InputError(WHERE, f"rejection_sample_method {sampler!r}", "standard, synthetic or block")
    if sampler != "synthetic":
        if rates is not None or length is not None:
            raise InputError(
                WHERE, f"synthetic acceptance with method {sampler}", "rejection_sample_method synthetic"
            )
        return None
    if (rates is None) == (length is None):
        raise InputError(
            WHERE,
            "rejection_sample_method synthetic",
            "exactly one of synthetic_acceptance_rates and _length",
        )
    if length is not None:
        if not isinstance(length, int | float) or not 1 <= length <= k + 1:
            raise InputError(WHERE, f"synthetic_acceptance_length {length!r}", f"a number from 1 to {k + 1}")
        whole, rest = divmod(float(length) - 1.0, 1.0)
        return tuple(1.0 if i < whole else rest if i == whole else 0.0 for i in range(k))
    if not isinstance(rates, list) or len(rates) != k:
        raise InputError(WHERE, f"synthetic_acceptance_rates {rates!r}", f"a list of {k} numbers")
    if any(isinstance(r, bool) or not isinstance(r, int | float) or not 0 <= r <= 1 for r in rates):
        raise InputError(WHERE, f"synthetic_acceptance_rates {rates!r}", "numbers from 0 to 1")
    if any(later > earlier for earlier, later in itertools.pairwise(rates)):
        raise InputError(WHERE, f"synthetic_acceptance_rates {rates!r}", "non-increasing numbers")
    return tuple(float(r) for r in rates)
