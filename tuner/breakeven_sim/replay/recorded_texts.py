"""Texts whose acceptance was recorded from a real drafter, replayed in place of drawn ones.

One JSON object per line: `acc_<method>` holds, per output index, the tokens that an unlimited step started there
yields. Requests take the recorded texts in turn; a request longer than its text goes through it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from breakeven.errors import InputError
from breakeven.intake import file_text, json_value, kind_of
from breakeven.methods import LOOKUP_METHODS
from breakeven_sim.engine.drafting import DraftedText

# Recorded under these names in the field; the same text serves a method's relatives.
_STANDS_FOR = {"eagle3": "eagle", "mtp": "eagle", "ngram_gpu": "ngram", "suffix": "ngram"}


class RecordedTexts:
    """Recorded texts of one method, drawn in turn.

    Args:
        texts: yields per output index, each >= 1.
        hard_match: probability that a step of a lookup method that accepts nothing had drafted at all; the record
            does not tell the two apart. 1 for drafters, which always draft.
        seed: of those draws.
    """

    def __init__(self, texts: Sequence[Sequence[int]], hard_match: float, seed: int) -> None:
        self._texts = texts
        self._hard_match = hard_match
        self._seed = seed

    def draw(self, number: int, total: int, prompt_tokens: int = 0) -> DraftedText:  # noqa: ARG002  # the protocol's
        """The text of request `number` with `total` output tokens, whatever its prompt: it was recorded with its own."""
        text = self._texts[number % len(self._texts)]
        yields = list(text) * -(-total // len(text))
        del yields[total:]
        if self._hard_match >= 1.0:
            return DraftedText(yields)
        drafted = np.random.default_rng((self._seed, number)).random(total) < self._hard_match
        return DraftedText(
            yields, [gained > 1 or lucky for gained, lucky in zip(yields, drafted.tolist(), strict=True)]
        )


def read_recorded(path: Path) -> dict[str, list[list[int]]]:
    """Recorded texts per method, as named in the file.

    Raises:
        InputError: not such a file; file and row are named.
    """
    found: dict[str, list[list[int]]] = {}
    for number, line in enumerate(file_text(path, "a JSON-lines file").splitlines(), start=1):
        if not line.strip():
            continue
        record = json_value(line, f"{path}: row {number}", "one JSON object per line")
        if not isinstance(record, dict):
            raise InputError(f"{path}: row {number}", kind_of(record), "one JSON object per line")
        for key, value in record.items():
            if key.startswith("acc_"):
                _check(value, f"{path}: row {number}, {key}")
                if value:
                    found.setdefault(key.removeprefix("acc_"), []).append(value)
    if not found:
        raise InputError(str(path), "no recorded text", "keys such as acc_eagle or acc_ngram")
    return found


def recorded_for(
    texts: Mapping[str, list[list[int]]], method: str, hard_match: float, seed: int
) -> RecordedTexts:
    """The recorded texts that stand for a method.

    Raises:
        InputError: nothing was recorded for it or a relative.
    """
    name = method if method in texts else _STANDS_FOR.get(method, method)
    if name not in texts:
        raise InputError(
            "recorded acceptance", f"nothing for method {method}", f"one of: {', '.join(sorted(texts))}"
        )
    return RecordedTexts(texts[name], hard_match if method in LOOKUP_METHODS else 1.0, seed)


def _check(value: Any, where: str) -> None:
    if not isinstance(value, list) or any(
        isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in value
    ):
        raise InputError(where, "not a list of whole numbers", "tokens per step, each at least 1")
