"""vLLM's draft length per batch size: its table in a configuration, and cases in which vLLM runs something else.

Read in vLLM 0.33's source. A table that vLLM refuses is refused here; settings that vLLM ignores become a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from breakeven.errors import InputError
from breakeven.methods import draft_length_of, method_of
from breakeven.serving.command_line import SPECULATIVE_CONFIG, flag_number
from breakeven.serving.vllm_versions import known, version_of
from breakeven.tiers import Schedule

KEY = "num_speculative_tokens_per_batch_size"
"""The key of `--speculative-config`: a list of [first batch size, last batch size, draft length]."""

_METHODS = frozenset({"ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash"})
"""Methods for which model runner V1 changes the draft length; V2, which most models do not run on yet, does for more."""


def schedule_in(config: Mapping[str, Any], where: str = SPECULATIVE_CONFIG) -> Schedule | None:
    """The draft lengths that vLLM makes of a configuration's table; None if there is no table.

    A draft length above num_speculative_tokens is cut to it, as in vLLM.

    Raises:
        InputError: a table that vLLM refuses.
    """
    given = config.get(KEY)
    if given is None:
        return None
    if method_of(config) == "suffix":
        raise InputError(where, f"{KEY} with method suffix", "a method with a settable draft length")
    if not isinstance(given, list) or not given:
        raise InputError(where, f"{KEY} is {given!r}", "a list of [first, last, k]")
    longest = draft_length_of(config)
    ranges = []
    for row in given:
        if (
            not isinstance(row, list)
            or len(row) != 3
            or any(isinstance(value, bool) or not isinstance(value, int) for value in row)
        ):
            raise InputError(where, f"{KEY} holds {row!r}", "[first, last, k], three integers")
        first, last, k = row
        ranges.append((first, last, min(k, longest) if isinstance(longest, int) else k))
    return Schedule.of_ranges(ranges, f"{where}: {KEY}")


def doubts(config: Mapping[str, Any], words: Sequence[str], image: str = "") -> Iterator[str]:
    """Reasons why an engine of this image would not start with a configuration's table, or would not run it."""
    try:
        table = schedule_in(config)
    except InputError as error:
        yield f"{error}: vLLM refuses to start"
        return
    if table is None:
        return
    longest = draft_length_of(config)
    asked = max(k for _, _, k in config[KEY])
    if isinstance(longest, int) and asked > longest:
        yield f"{KEY} asks for {asked} drafts, num_speculative_tokens reserves {longest}: vLLM drafts {longest} there"
    if (flag_number(words, "--data-parallel-size") or 1) > 1:
        yield (
            f"{KEY} with --data-parallel-size above 1: vLLM drafts num_speculative_tokens at every batch size, and only its "
            "log says so"
        )
    method = method_of(config)
    if method is not None and method not in _METHODS:
        yield (
            f"{KEY} with method {method}: vLLM's model runner V1 leaves the table aside with a warning "
            f"(it knows {', '.join(sorted(_METHODS))})"
        )
    version, first = version_of(image), known().keys[KEY].first
    if version is not None and first is not None and version < first:
        yield f"{KEY} with image {image}: vLLM knows it from {first} on, {version} refuses to start"
