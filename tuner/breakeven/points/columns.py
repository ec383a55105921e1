"""The columns of a points file: what each means, in which unit, within which range.

One row of a points file is one measured operating point of one arm. Units are part of the names; a value outside its
range is nearly always a value in another unit, so the refusal says which unit was expected.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from breakeven.errors import InputError

MISSING = frozenset({"", "-", "na", "n/a", "nan", "null"})
"""Spellings of "not measured", in lower case: what spreadsheets and data frames write for an empty cell."""

_PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")


@dataclass(frozen=True, slots=True)
class Number:
    """A numeric column.

    Attributes:
        meaning: what is expected there, with its unit, as an error message says it.
        least: smallest allowed value.
        most: largest allowed value.
        above: whether `least` itself is excluded.
        whole: only whole numbers.
    """

    meaning: str
    least: float = 0.0
    most: float = math.inf
    above: bool = False
    whole: bool = False

    def read(self, value: str | float, where: str, *, decimal_comma: bool = False) -> float | None:
        """Return the value, None where it is missing.

        Raises:
            InputError: not a finite number, or outside the range.
        """
        if isinstance(value, str):
            text = value.strip()
            if text.lower() in MISSING:
                return None
            if decimal_comma:
                text = text.replace(",", ".")
            # float() also takes "1_000", "infinity" and other alphabets' digits; a points file does not.
            if not (text.isascii() and _PLAIN_NUMBER.fullmatch(text)):
                raise InputError(where, f"{_shown(value)} is not a number", self.meaning)
            number = float(text)
        else:
            number = float(value)
        if not math.isfinite(number):
            raise InputError(where, f"{_shown(value)} is not a finite number", self.meaning)
        low = number <= self.least if self.above else number < self.least
        if low or number > self.most or (self.whole and number != int(number)):
            raise InputError(where, f"{_shown(value)} is out of range", self.meaning)
        return number


def _shown(value: str | float) -> str:
    text = repr(value.strip()) if isinstance(value, str) else f"{value:g}"
    return text if len(text) <= 40 else f"{text[:37]}..."


# A day: longer requests do not exist, so more is a value in milliseconds.
_SECONDS = 86_400.0

# Nothing that crosses a network takes a nanosecond.
_INSTANT = 1e-9

_ORDINAL = {50: "median", 95: "95th percentile", 99: "99th percentile"}

NUMBERS: dict[str, Number] = {
    "k": Number(
        "a draft length: a whole number, 0 for method none, otherwise 1 to 1000", 0, 1000, whole=True
    ),
    "concurrency": Number("clients in the closed loop, at least 1", 1, 1e6),
    "request_rate_rps": Number("requests per second, above 0", 1e-9, 1e6),
    "mean_latency_s": Number("mean end-to-end latency in seconds, above 0", _INSTANT, _SECONDS),
    "mean_inflight": Number("mean number of requests in flight, above 0", 1e-9, 1e7),
    "achieved_rps": Number("answered requests per second, above 0", 1e-9, 1e6),
    "p50_latency_s": Number("median latency in seconds, above 0", _INSTANT, _SECONDS),
    "p95_latency_s": Number("95th percentile of latency in seconds, above 0", _INSTANT, _SECONDS),
    "p99_latency_s": Number("99th percentile of latency in seconds, above 0", _INSTANT, _SECONDS),
    "ttft_mean_s": Number("mean time to first token in seconds, above 0", _INSTANT, _SECONDS),
    "tpot_mean_s": Number(
        "mean time per output token after the first in seconds, above 0", 0, _SECONDS, above=True
    ),
    **{
        f"{figure}_p{percent}_s": Number(
            f"{_ORDINAL[percent]} of {meaning} over requests, in seconds, above 0", _INSTANT, _SECONDS
        )
        for figure, meaning in (
            ("ttft", "time to first token"),
            ("tpot", "time per output token after the first"),
        )
        for percent in _ORDINAL
    },
    "tokens_per_second": Number(
        "output tokens per second of all requests together, above 0", 0, 1e9, above=True
    ),
    "prompt_tokens": Number("mean prompt tokens per request, at least 0", 0, 1e8),
    "output_tokens": Number("mean output tokens per request, at least 1", 1, 1e8),
    "output_tokens_sq": Number("mean square of output tokens per request, at least 1", 1, 1e16),
    "tokens_per_step": Number("tokens per request-step, bonus token included: 1 to k + 1", 1, 1001),
    "drafted_per_step": Number("drafted tokens per request-step: 0 to k", 0, 1000),
    "drafts": Number("number of drafts, at least 0", 0, 1e15),
    "requests": Number("number of requests, at least 1", 1, 1e12),
    "preemptions": Number("number of preemptions, at least 0", 0, 1e12),
}
"""Every numeric column but accept_1 ... accept_k, in the order of the command line's documentation."""

SURVIVAL = Number(
    "the share of drafts whose first tokens up to this position were all accepted: 0 to 1", 0, 1
)

TEXTS = ("load_mode", "candidate", "replicate", "workload", "gpu", "model", "engine_version", "flag")
"""Optional columns of plain text; `flag` holds reason words of the load driver against the point."""

SETTING = ("workload", "gpu", "model")
"""Columns that must not vary within one fit: rows that differ here belong to different laws."""

ACCEPT = re.compile(r"accept_([1-9]\d{0,3})")
"""accept_1, accept_2, ...: unconditional survival per position."""
