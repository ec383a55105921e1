"""vLLM's words for ways of speculating, and which of them load a drafter: the one table of them.

Read in vLLM 0.33's `SpeculativeMethod`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any


class Drafter(Enum):
    """Whether a method loads a drafter's weights of its own."""

    REQUIRED = auto()
    NONE = auto()
    EITHER = auto()  # a head inside the checkpoint, or one that is named


METHODS = {
    "draft_model": Drafter.REQUIRED,
    "eagle": Drafter.REQUIRED,
    "eagle3": Drafter.REQUIRED,
    "dflash": Drafter.REQUIRED,
    "mtp": Drafter.EITHER,
    "dspark": Drafter.EITHER,
    "ngram": Drafter.NONE,
    "ngram_gpu": Drafter.NONE,
    "suffix": Drafter.NONE,
    "custom_class": Drafter.EITHER,
}
"""`custom_class` lets a user's own proposer draft."""

SCHEDULED_METHODS = ("draft_model", "eagle", "eagle3", "mtp", "dflash", "ngram")
"""Methods that vLLM drafts with a length per batch size (`num_speculative_tokens_per_batch_size`): of the others it refuses
the table, or warns once and drafts as long as ever."""

ADAPTIVE_KEY = "enable_adaptive_verification"
"""Key of `--speculative-config` with which vLLM drafts at full length and verifies as many drafts as pay (0.28 and newer)."""

PROFILED_CONTEXT, PROFILED_CONTEXT_TOKENS = "VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN", 8192
"""Variable and its default: tokens of context with which vLLM times its steps, once at its start, for adaptive verification."""

_SUFFIX_TREE_DEPTH = 24
_IN_MODEL_NAMES = ("eagle3", "eagle", "dflash", "dspark")

ADAPTIVE_METHODS = ("draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark", "suffix")
"""Methods whose acceptance model runner V2 estimates: of a drafter's model by its confidence, of suffixes by what was accepted before.

Suffixes only where they run on the GPU: in vLLM's main after 0.33 (docs/features/speculative_decoding/suffix.md). A row of
`engine_refusals.json` refuses them in versions before.
"""

MTP_ALIAS = "_mtp"
"""Words with this ending (`deepseek_mtp`, `qwen3_next_mtp`, ...) are spellings of `mtp`."""


def drafter_of(method: str) -> Drafter | None:
    """Whether a method loads a drafter; None for a word that no engine known here takes."""
    if method.endswith(MTP_ALIAS):
        return Drafter.EITHER
    return METHODS.get(method)


def takes_schedule(method: str) -> bool:
    """Whether vLLM drafts with a length per batch size for this method."""
    return method in SCHEDULED_METHODS or method.endswith(MTP_ALIAS)


def takes_adaptive(method: str) -> bool:
    """Whether some vLLM can choose in every step how many drafts of this method it verifies."""
    return method in ADAPTIVE_METHODS or method.endswith(MTP_ALIAS)


def methods_with(drafter: Drafter) -> tuple[str, ...]:
    """The words of all methods of one kind, in the table's order."""
    return tuple(word for word, kind in METHODS.items() if kind is drafter)


def method_of(config: Mapping[str, Any]) -> Any:
    """The method that a `--speculative-config` asks for: the one it names, else the one vLLM infers from the model.

    None with neither; spellings of `mtp` become `mtp`. A value that is no word of vLLM's comes back as it stands.
    """
    method, model = config.get("method"), config.get("model")
    if method is None and isinstance(model, str) and model:
        if model in LOOKUP_METHODS:
            return model
        return next((name for name in _IN_MODEL_NAMES if name in model.casefold()), "draft_model")
    return "mtp" if isinstance(method, str) and method.endswith(MTP_ALIAS) else method


def draft_length_of(config: Mapping[str, Any]) -> Any:
    """The draft length that a `--speculative-config` asks for, else the one vLLM fills in; not checked.

    None where vLLM takes it from the drafter's own configuration.
    """
    filled_in = {
        "suffix": config.get("suffix_decoding_max_tree_depth") or _SUFFIX_TREE_DEPTH,
        "mtp": 1,  # one multi-token-prediction layer, as most checkpoints have
    }
    given = config.get("num_speculative_tokens")
    return filled_in.get(method_of(config)) if given is None else given


LOOKUP_METHODS = frozenset(methods_with(Drafter.NONE))
"""Methods that copy text instead of running a drafter: their acceptance does not decay with depth."""
