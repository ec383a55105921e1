"""Traces of load: requests with their lengths, or rates per window; readers for the formats in circulation.

Requests: `timestamp_s,prompt_tokens,output_tokens` (ours), `TIMESTAMP,ContextTokens,GeneratedTokens` (Azure 2023),
`timestamp_ms,input_length,output_length` (Mooncake), `Timestamp` alone (arrivals without lengths).
Rates: `window_start_s,rate_rps` (ours), `window_start_s,total_rate_rps` (ServeGen, where a rate of 0 is missing data).
Further columns are ignored; times count from the first row.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from breakeven.errors import InputError

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Requests in order of arrival.

    Attributes:
        arrival_s: seconds after the first one, shape (n,), ascending.
        prompt_tokens: shape (n,), >= 1.
        output_tokens: shape (n,), >= 1.
        notes: what the reader left out or filled in.
    """

    arrival_s: _Floats
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrival_s[-1])

    def faster(self, factor: float) -> RequestTrace:
        """The same requests at `factor` times the rate."""
        return RequestTrace(self.arrival_s / factor, self.prompt_tokens, self.output_tokens, self.notes)

    def only(self, kept: NDArray[np.bool_]) -> RequestTrace:
        """The requests where `kept` is true."""
        return RequestTrace(
            self.arrival_s[kept], self.prompt_tokens[kept], self.output_tokens[kept], self.notes
        )

    def rates(self, window_s: float) -> RateTrace:
        """Its rate per window; the last window, cut short by the trace's end, counts with its own length."""
        edges = np.arange(0.0, self.duration_s, window_s)
        ends = np.append(edges[1:], max(self.duration_s, edges[-1] + 1e-9))
        counts = np.diff(np.searchsorted(self.arrival_s, np.append(edges, np.inf)))
        return RateTrace(edges, ends - edges, counts / (ends - edges), ())


@dataclass(frozen=True, slots=True)
class RateTrace:
    """Rates of the whole fleet per window.

    Attributes:
        start_s: seconds after the first window's start, shape (n,), ascending.
        length_s: of each window, shape (n,).
        rate_rps: requests per second, shape (n,), >= 0.
        notes: what the reader left out or filled in.
    """

    start_s: _Floats
    length_s: _Floats
    rate_rps: _Floats
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def requests(self) -> float:
        """Expected number of requests."""
        return float(self.rate_rps @ self.length_s)

    def faster(self, factor: float) -> RateTrace:
        """The same windows at `factor` times the rate."""
        return RateTrace(self.start_s, self.length_s, self.rate_rps * factor, self.notes)

    def finer(self, longest_s: float) -> RateTrace:
        """The same rates in windows of at most `longest_s`."""
        parts = np.maximum(1, np.ceil(self.length_s / longest_s - 1e-9)).astype(np.int64)
        lengths = np.repeat(self.length_s / parts, parts)
        place = np.arange(len(lengths)) - np.repeat(np.cumsum(parts) - parts, parts)
        return RateTrace(
            np.repeat(self.start_s, parts) + place * lengths,
            lengths,
            np.repeat(self.rate_rps, parts),
            self.notes,
        )


Trace = RequestTrace | RateTrace


def read_trace(path: Path, prompt_tokens: int | None = None, output_tokens: int | None = None) -> Trace:
    """Read a trace of requests or of rates; its header says which.

    Args:
        path: CSV with header.
        prompt_tokens: length for traces that carry none; a trace's own lengths win.
        output_tokens: likewise.

    Raises:
        InputError: not a file of these formats, or a wrong value (file, row and column are named).
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = csv.reader(stream)
            header = [name.strip() for name in next(rows, [])]
            columns = _columns(header, path)
            if columns.rate is not None:
                return _rate_trace(rows, columns, path)
            return _request_trace(rows, columns, path, prompt_tokens, output_tokens)
    except OSError as problem:
        raise InputError(str(path), str(problem.strerror), "a readable CSV file") from None
    except (UnicodeDecodeError, csv.Error) as problem:
        raise InputError(str(path), str(problem), "a CSV file in UTF-8") from None


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where a format keeps what; `time` reads a time stamp as seconds."""

    time_name: str
    time: int
    seconds: Callable[[str], float]
    prompt: int | None
    output: int | None
    rate: int | None
    zero_is_missing: bool
    header: Sequence[str]


def _columns(header: Sequence[str], path: Path) -> _Columns:
    times: dict[str, Callable[[str], float]] = {
        "timestamp_s": float,
        "window_start_s": float,
        "timestamp_ms": lambda text: float(text) / 1e3,
        "TIMESTAMP": _clock_time,
        "Timestamp": _number_or_clock_time,
    }
    name = next((known for known in times if known in header), None)
    rate = next((known for known in ("rate_rps", "total_rate_rps") if known in header), None)
    if name is None or (name == "window_start_s") != (rate is not None):
        raise InputError(
            f"{path}: row 1",
            f"columns {', '.join(header) or 'none'}",
            "timestamp_s,prompt_tokens,output_tokens or window_start_s,rate_rps",
        )

    def place(*names: str) -> int | None:
        return next((header.index(known) for known in names if known in header), None)

    return _Columns(
        name,
        header.index(name),
        times[name],
        place("prompt_tokens", "ContextTokens", "input_length"),
        place("output_tokens", "GeneratedTokens", "output_length"),
        None if rate is None else header.index(rate),
        rate == "total_rate_rps",
        header,
    )


def _clock_time(text: str) -> float:
    """Seconds of a date and time; fractions beyond microseconds are dropped, as Azure writes seven digits."""
    whole, _, fraction = text.strip().partition(".")
    return datetime.fromisoformat(whole).timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


def _number_or_clock_time(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return _clock_time(text)


def _cells(
    rows: Iterator[list[str]], wanted: Sequence[tuple[int, str, Callable[[str], float]]], path: Path
) -> Iterator[tuple[int, list[float]]]:
    """Row number and values of the wanted columns, checked to be finite and not negative."""
    for number, row in enumerate(rows, start=2):
        if not row or not any(row):
            continue
        values = []
        for place, name, read in wanted:
            where = f"{path}: row {number}, column {name}"
            if place >= len(row):
                raise InputError(where, "nothing there", "a number")
            try:
                value = read(row[place])
            except (ValueError, OverflowError):
                raise InputError(where, repr(row[place]), "a number or a time") from None
            if not math.isfinite(value) or value < 0:
                raise InputError(where, repr(row[place]), "a finite value of at least 0")
            values.append(value)
        yield number, values


def _request_trace(
    rows: Iterator[list[str]],
    columns: _Columns,
    path: Path,
    prompt_tokens: int | None,
    output_tokens: int | None,
) -> RequestTrace:
    wanted = [(columns.time, columns.time_name, columns.seconds)]
    given: dict[str, int] = {}
    for name, place, length in (
        ("prompt_tokens", columns.prompt, prompt_tokens),
        ("output_tokens", columns.output, output_tokens),
    ):
        if place is not None:
            wanted.append((place, columns.header[place], float))
        elif length is None:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{path}: row 1", f"no column of {name}", f"one, or {option}")
        else:
            given[name] = length
    table = [values for _, values in _cells(rows, wanted, path)]
    if not table:
        raise InputError(str(path), "no rows", "at least one request")
    data = np.array(table, np.float64)
    lengths = list(data[:, 1:].T)
    prompts = np.full(len(data), given["prompt_tokens"]) if "prompt_tokens" in given else lengths.pop(0)
    outputs = np.full(len(data), given["output_tokens"]) if "output_tokens" in given else lengths.pop(0)
    order = np.argsort(data[:, 0], kind="stable")
    arrivals = data[order, 0] - data[order[0], 0]
    notes = tuple(f"{name} {length}: the trace has none" for name, length in given.items())
    empty = int(((prompts < 1) | (outputs < 1)).sum())
    if empty:
        notes += (f"{empty} requests without prompt or output count one token",)
    counts = [np.maximum(values[order], 1).astype(np.int64) for values in (prompts, outputs)]
    return RequestTrace(arrivals, counts[0], counts[1], notes)


def _rate_trace(rows: Iterator[list[str]], columns: _Columns, path: Path) -> RateTrace:
    rate = columns.rate if columns.rate is not None else 0
    wanted = [(columns.time, columns.time_name, columns.seconds), (rate, columns.header[rate], float)]
    numbered = list(_cells(rows, wanted, path))
    starts, rates = np.array([values for _, values in numbered], np.float64).reshape(-1, 2).T
    if len(starts) < 2:
        raise InputError(str(path), f"{len(starts)} windows", "at least two, so that their length is known")
    for (number, _), step in zip(numbered[1:], np.diff(starts), strict=True):
        if step <= 0:
            raise InputError(
                f"{path}: row {number}, column {columns.time_name}",
                "not after the row before",
                "rising times",
            )
    lengths = np.diff(starts, append=2 * starts[-1] - starts[-2])
    starts = starts - starts[0]
    if columns.zero_is_missing and (rates == 0).any():
        kept = rates > 0
        missing = int((~kept).sum())
        note = f"{missing} of {len(rates)} windows with rate 0 are missing data and left out"
        if not kept.any():
            raise InputError(str(path), "every rate is 0", "a rate above 0")
        return RateTrace(starts[kept], lengths[kept], rates[kept], (note,))
    return RateTrace(starts, lengths, rates)
