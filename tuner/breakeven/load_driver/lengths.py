"""Lengths of prompts and answers: fixed, lognormal, or observed pairs; drawn by number, so that all arms get the same.

Lengths are drawn by an additive recurrence (the R2 sequence), not by chance. Every stretch of requests then has nearly
the distribution's mean. If the lengths' standard deviation equals their mean, a hundred random draws would miss the mean
by a tenth, and the point's latency with it.
"""

from __future__ import annotations

import csv
import hashlib
import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import NormalDist
from typing import Literal, NamedTuple, TypeAlias

from breakeven.errors import InputError
from breakeven.intake import file_text

MOST_TOKENS = 1_048_576
"""Longest prompt or answer that is accepted as a length."""

# Roberts' R2 sequence: powers of the reciprocal of the plastic number, the real root of x^3 = x + 1.
_STEPS = (0.7548776662466927, 0.5698402909980532)
# Beyond these quantiles one request in a thousand would be an outlier that the rest of a point cannot outweigh.
_CUT = 0.001
_GRID = 64
_MOST_PAIRS = 1_000_000
_COLUMNS = ("prompt_tokens", "output_tokens")


class LengthPair(NamedTuple):
    """Tokens of one request: its prompt, and its answer."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """Prompts and answers independent of each other, each lognormal with a mean and a standard deviation (tokens).

    Cut at the quantiles 0.1 % and 99.9 %. A standard deviation of 0 gives a fixed length.
    """

    prompt_tokens: int
    output_tokens: int
    prompt_tokens_stdev: float = 0.0
    output_tokens_stdev: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt_tokens_stdev", "output_tokens_stdev"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= MOST_TOKENS):
                raise InputError(
                    name.replace("_", " "), f"{value:g}", f"a number of tokens from 0 to {MOST_TOKENS}"
                )

    @property
    def mean_prompt_tokens(self) -> float:
        """The mean that was asked for."""
        return float(self.prompt_tokens)

    def pair(self, index: int) -> LengthPair:
        """Both quantiles of the recurrence's term number `index`, as lengths."""
        first, second = uniform(self.seed, index)
        return LengthPair(
            _lognormal(self.prompt_tokens, self.prompt_tokens_stdev, first),
            _lognormal(self.output_tokens, self.output_tokens_stdev, second),
        )

    def outputs(self) -> Sequence[int]:
        """Evenly spaced quantiles."""
        quantiles = ((number + 0.5) / _GRID for number in range(_GRID))
        return tuple(_lognormal(self.output_tokens, self.output_tokens_stdev, q) for q in quantiles)


@dataclass(frozen=True)
class EmpiricalLengths:
    """Pairs that were seen together, drawn by their weights: long prompts keep their short answers.

    Pairs are kept in the order of their output lengths, so that a stretch of draws covers all of them. Weights are above 0.
    """

    pairs: Sequence[LengthPair]
    weights: Sequence[float] = ()
    seed: int = 0
    _ends: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.pairs:
            raise InputError("lengths", "no pair", "at least one pair of prompt and output tokens")
        weights = self.weights or (1.0,) * len(self.pairs)
        ordered = sorted(zip(self.pairs, weights, strict=True), key=lambda one: (one[0][1], one[0][0]))
        object.__setattr__(self, "pairs", tuple(LengthPair(*pair) for pair, _ in ordered))
        object.__setattr__(self, "weights", tuple(float(weight) for _, weight in ordered))
        object.__setattr__(self, "_ends", tuple(accumulate(self.weights)))

    @cached_property
    def mean_prompt_tokens(self) -> float:
        """Weighted mean of the prompts' lengths."""
        return self._mean(0)

    @cached_property
    def mean_output_tokens(self) -> float:
        """Weighted mean of the output lengths."""
        return self._mean(1)

    def _mean(self, which: Literal[0, 1]) -> float:
        total = sum(pair[which] * weight for pair, weight in zip(self.pairs, self.weights, strict=True))
        return total / self._ends[-1]

    def pair(self, index: int) -> LengthPair:
        """The pair at the recurrence's quantile number `index`."""
        return self._at(uniform(self.seed, index)[0])

    def outputs(self) -> Sequence[int]:
        """Evenly spaced quantiles of the output lengths."""
        return tuple(self._at((number + 0.5) / _GRID).output_tokens for number in range(_GRID))

    def _at(self, quantile: float) -> LengthPair:
        return self.pairs[min(bisect_right(self._ends, quantile * self._ends[-1]), len(self.pairs) - 1)]


LengthDistribution: TypeAlias = LogNormalLengths | EmpiricalLengths
"""A joint distribution of prompt and output lengths; the same index always gives the same pair."""


def read_lengths(path: Path, seed: int) -> EmpiricalLengths:
    """Pairs of a CSV file with the columns prompt_tokens and output_tokens, and weight where rows count unequally.

    A request trace (`timestamp_s,prompt_tokens,output_tokens`) is such a file. Further columns are not looked at.

    Raises:
        InputError: naming file, line and column of the first value that is no number of tokens.
    """
    rows = csv.DictReader(
        file_text(path, "CSV with the columns prompt_tokens and output_tokens").splitlines()
    )
    missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise InputError(
            f"{path}: header", f"no column {missing[0]}", f"the columns {' and '.join(_COLUMNS)}"
        )
    pairs, weights = [], []
    try:
        for row in rows:
            where = f"{path}: line {rows.line_num}"
            pairs.append(LengthPair(*(_tokens(row[name], f"{where}, column {name}") for name in _COLUMNS)))
            weights.append(_weight(row["weight"], f"{where}, column weight") if "weight" in row else 1.0)
            if len(pairs) > _MOST_PAIRS:
                raise InputError(where, "too many rows", f"at most {_MOST_PAIRS} pairs")
    except csv.Error:
        raise InputError(f"{path}: line {rows.line_num}", "not CSV", "CSV with one pair per line") from None
    if not pairs:
        raise InputError(str(path), "no row", "at least one pair of prompt and output tokens")
    return EmpiricalLengths(pairs, weights, seed)


def digest(*parts: object) -> str:
    """Eight hexadecimal digits that differ where anything of the parts does."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


def uniform(seed: int, index: int) -> tuple[float, float]:
    """Term number `index` of the R2 sequence, shifted by the seed: two numbers from 0 to below 1, each spread evenly over every stretch."""
    start = random.Random(f"{seed}/lengths")  # noqa: S311  # load, not secrets
    first, second = (math.fmod(start.random() + (index + 1) * step, 1.0) for step in _STEPS)
    return first, second


def _tokens(text: str | None, where: str) -> int:
    given = (text or "").strip()
    if not (given.isascii() and given.isdecimal() and len(given) <= 7 and 1 <= int(given) <= MOST_TOKENS):
        raise InputError(where, repr(given[:20]), f"a whole number of tokens from 1 to {MOST_TOKENS}")
    return int(given)


def _weight(text: str | None, where: str) -> float:
    try:
        weight = float(text or "")
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and 0 < weight <= 1e12):
        raise InputError(where, repr((text or "")[:20]), "a number above 0")
    return weight


def _lognormal(mean: float, stdev: float, quantile: float) -> int:
    if stdev == 0:
        return round(mean)
    variance = math.log1p((stdev / mean) ** 2)
    place = NormalDist().inv_cdf(min(max(quantile, _CUT), 1 - _CUT))
    return min(max(1, round(mean * math.exp(math.sqrt(variance) * place - variance / 2))), MOST_TOKENS)
