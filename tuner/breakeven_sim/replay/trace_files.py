"""Files of traces, as their authors publish them: a table with a header, or one JSON object per line.

A column is known by its meaning, whatever its case and separators: `timestamp_s` (ours), `TIMESTAMP` (Azure), `Timestamp`
(BurstGPT), `timestamp` (Mooncake, WildChat); `ContextTokens`, `Request tokens`, `input_length`; and so on. A window has a
start and a rate: `window_start_s,rate_rps` (ours), `window_start_s,total_rate_rps` (ServeGen, where a rate of 0 is missing
data), `Time,requests/s` (Grafana). Other columns are ignored, but for numbers beside a time alone, which may be the load.
Times count from the first request.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from breakeven.errors import InputError
from breakeven.phrases import counted
from breakeven.points.row import MISSING
from breakeven_sim.replay.traces import RateTrace, RequestTrace, Trace

_UNITS: Final = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_CLOCKS: Final = (
    "timestamp", "arrivaltimestamp", "arrivaltime", "arrivedat", "createdat", "created", "starttime", "requesttime", "time",
    "datetime", "tstamp",
)  # fmt: skip
"""Columns of dates, or of numbers in a unit that has to be found."""
_TIMES: Final = {f"{clock}{unit}": scale for clock in _CLOCKS for unit, scale in _UNITS.items()} | {
    "windowstarts": 1.0
}
"""Columns of numbers whose names say the unit."""
_PROMPTS: Final = (
    "prompttokens", "contexttokens", "inputlength", "inputtokens", "requesttokens", "numprefilltokens", "promptlength",
    "inputlen", "promptlen", "promptsize", "numprompttokens", "isl",
)  # fmt: skip
_OUTPUTS: Final = (
    "outputtokens", "generatedtokens", "outputlength", "responsetokens", "numdecodetokens", "completiontokens", "outputlen",
    "tokensize", "generationtokens", "numoutputtokens", "osl",
)  # fmt: skip
_RATES: Final = ("raterps", "totalraterps")
_RATE: Final = re.compile(
    r"(?:total)?raterps|rate|rps|qps|value|(?:request|arrival)s?rate(?:rps)?"
    r"|(?:req|request|quer(?:y|ie)|arrival|call)s?p(?:er)?(?P<unit>s|sec|second|m|min|minute|h|hour)|rp(?P<other>m)"
)
"""Names of rates, with the unit of time; a slash reads as per."""
_LIKE_LOAD: Final = re.compile(
    r"rate|rps|qps|req|load|count|throughput|traffic|arrivals|calls|hits|concurren|usage|users"
)
_PER_S: Final = {"m": 1.0 / 60.0, "h": 1.0 / 3600.0}
_OF_RATE: Final = re.compile(r"\s*(?:req(?:uest)?s?|ops|[cr])?(?:/|p)s\s*", re.IGNORECASE)
"""The unit behind a rate, as Grafana writes it into the cells: 3.5 req/s."""
_TICKS: Final = 0.7
"""Share of like steps from which times are a clock's ticks: of random arrivals 7 % are like their median."""
_LOOKED_AT: Final = 200
"""Rows that are enough to see whether times are ticks of a clock."""
_EPOCHS: Final = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Numbers above the first are times since 1970 in the unit of the second: in seconds they would lie beyond the year 5000."""
_MOST: Final = {"s": 1e12, "tokens": 1e9, "rps": 1e9}
"""Larger values are no times, lengths or rates of anything, and do not fit the integers that hold them."""
_ONE_RATE: Final = "window_start_s,rate_rps for the rate of the whole fleet per window; prompt_tokens and output_tokens for requests"
_KNOWN: Final = (
    "a time and lengths (timestamp_s,prompt_tokens,output_tokens) or windows (window_start_s,rate_rps)"
)


def read_trace(path: Path, prompt_tokens: int | None = None, output_tokens: int | None = None) -> Trace:
    """Read a trace of requests or of rates; its names say which.

    Args:
        path: CSV with header, or JSON lines.
        prompt_tokens: length for traces that carry none; a trace's own lengths win.
        output_tokens: likewise.

    Raises:
        InputError: no file of these formats, or a wrong value (file, row and column are named).
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            names, rows = _json_lines(stream, path) if _holds_json(stream, path) else _table(stream)
            columns = _columns(names, path)
            if columns.rate is not None:
                return _rate_trace(rows, columns, path)
            return _request_trace(_no_rates(rows, columns, path), columns, path, prompt_tokens, output_tokens)
    except OSError as problem:
        raise InputError(str(path), str(problem.strerror), "a readable file") from None
    except (UnicodeDecodeError, csv.Error) as problem:
        raise InputError(str(path), str(problem), "a table or JSON lines in UTF-8, not compressed") from None


_Rows = Iterator[tuple[int, Sequence[Any]]]
_Floats = np.ndarray[Any, np.dtype[np.float64]]


def _holds_json(stream: TextIO, path: Path) -> bool:
    start = stream.readline(1000).lstrip()
    stream.seek(0)
    if start.startswith("["):
        raise InputError(
            f"{path}: row 1", "a JSON list", "one object per line (`jq -c '.[]'` makes them of a list)"
        )
    return start.startswith("{")


def _table(stream: TextIO) -> tuple[list[str], _Rows]:
    header = stream.readline()
    stream.seek(0)
    delimiter = next((sign for sign in ",;\t" if sign in header), ",")
    rows = csv.reader(stream, delimiter=delimiter)
    names = [name.strip() for name in next(rows, [])]
    return names, ((number, row) for number, row in enumerate(rows, start=2) if any(row))


def _json_lines(stream: TextIO, path: Path) -> tuple[list[str], _Rows]:
    """The members of the first object, and of each object their values in that order."""

    def objects() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                raise InputError(f"{path}: row {number}", "no JSON object", "one object per line")
            yield number, value

    found = objects()
    number, first = next(found)
    names = list(first)

    def rows() -> _Rows:
        yield number, list(first.values())
        for place, value in found:
            yield place, [value.get(name) for name in names]

    return names, rows()


@dataclass(frozen=True, slots=True)
class _Columns:
    """The places of a file's columns; `seconds` reads one time, whose unit may be another where `doubted`."""

    names: Sequence[str]
    time: int
    seconds: Callable[[Any], float]
    prompt: int | None
    output: int | None
    rate: int | None
    doubted: bool


def _columns(names: Sequence[str], path: Path) -> _Columns:
    meanings = list(map(_meaning, names))

    def place(known: Sequence[str]) -> int | None:
        return next((meanings.index(word) for word in known if word in meanings), None)

    time, rate, prompt, output = place((*_TIMES, *_CLOCKS)), place(_RATES), place(_PROMPTS), place(_OUTPUTS)
    requests = prompt is not None or output is not None
    if rate is None and not requests:
        rates = [at for at, meaning in enumerate(meanings) if _RATE.fullmatch(meaning)]
        if len(rates) > 1:
            shown = ", ".join(names[at] for at in rates)[:200]
            raise InputError(f"{path}: row 1", f"{len(rates)} columns of rates ({shown})", _ONE_RATE)
        rate = rates[0] if rates else None
    windows = time is not None and meanings[time] == "windowstarts"
    if time is None or (windows and rate is None) or (requests and rate is not None and not windows):
        raise InputError(f"{path}: row 1", f"columns {', '.join(names)[:200] or 'none'}", _KNOWN)
    scale = _TIMES.get(meanings[time])
    # Mooncake and those who follow it have times in ms under this name; Bailian's traces, which have chats, in s.
    follows = meanings[time] == "timestamp" and "inputlength" in meanings and "chatid" not in meanings
    if follows and "hashids" in meanings:
        scale = 1e-3
    doubted = follows and scale is None
    return _Columns(names, time, _clock(scale), prompt, output, rate, doubted)


def _meaning(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower().replace("/", "per")))


def _no_rates(rows: _Rows, columns: _Columns, path: Path) -> _Rows:
    """The rows of a trace of requests.

    Raises:
        InputError: numbers stand beside the times, and they look like a load: by their name, or because the times are clock ticks.
            Beside lengths they have to look so by both.
    """
    lengths = columns.prompt is not None or columns.output is not None
    first = list(itertools.islice(rows, _LOOKED_AT))
    _, data = _values(iter(first), [(columns.time, columns.seconds, "s")], columns, path)
    steps = np.abs(np.diff(data[~np.isnan(data[:, 0]), 0]))
    # Gaps of arrivals differ; scrapes come late by a little, and some are missing.
    even = np.abs(steps - np.median(steps)) <= 0.1 * np.median(steps) if len(steps) > 1 else steps > np.inf
    ticks = bool(even.size and even.mean() > _TICKS and steps[even].min() > 0)
    for at, name in enumerate(columns.names):
        cells = [row[at] for _, row in first if at < len(row) and not _missing(row[at])]
        if at == columns.time or not name or name.lower().endswith("id") or not cells:
            continue
        if not all(map(_is_number, cells)):
            continue
        if (
            (ticks and _RATE.fullmatch(_meaning(name)))
            if lengths
            else (ticks or _LIKE_LOAD.search(name.lower()))
        ):
            beside = "at even times" if lengths else "beside a time, and no lengths"
            problem = f"numbers {beside}: a column of rates?"
            raise InputError(f"{path}: row 1, column {name[:80]}", problem, _ONE_RATE)
    return itertools.chain(first, rows)


def _is_number(cell: Any) -> bool:
    try:
        return not isinstance(cell, bool) and math.isfinite(_rate(cell))
    except (ValueError, TypeError, OverflowError):
        return False


def _missing(cell: Any) -> bool:
    """Whether a cell is empty, in any spelling of it."""
    return cell is None or str(cell).strip().lower() in MISSING


def _rate(cell: Any) -> float:
    return float(_OF_RATE.sub("", cell) if isinstance(cell, str) else cell)


def _clock(scale: float | None) -> Callable[[Any], float]:
    """Reader of a time in seconds.

    Args:
        scale: seconds of one unit; None for dates, or numbers whose size says their unit.
    """

    def seconds(value: Any) -> float:
        try:
            number = float(value)
        except ValueError:
            date = datetime.fromisoformat(value.strip())
            # Without a zone it is taken for UTC: local times would leap twice a year.
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        if scale is not None:
            return number * scale
        return number * next((unit for least, unit in _EPOCHS if number > least), 1.0)

    return seconds


def _values(
    rows: _Rows, wanted: Sequence[tuple[int, Callable[[Any], float], str]], columns: _Columns, path: Path
) -> tuple[list[int], _Floats]:
    """Numbers of the rows, and the values of the wanted columns, shape (rows, columns), none of them negative or beyond `_MOST`.

    An empty cell is NaN.
    Held as plain numbers while they are read: a million rows take 32 MB.
    """
    numbers, values = array("q"), array("d")
    for number, row in rows:
        numbers.append(number)
        for place, read, unit in wanted:
            where = f"{path}: row {number}, column {columns.names[place]}"
            if place >= len(row) or _missing(row[place]):
                values.append(math.nan)
                continue
            try:
                value = read(row[place])
            except (ValueError, OverflowError, TypeError, AttributeError):
                raise InputError(where, repr(row[place])[:80], "a number or a time") from None
            if not 0 <= value <= _MOST[unit]:
                raise InputError(where, repr(row[place])[:80], f"a value from 0 to {_MOST[unit]:.0e} {unit}")
            values.append(value)
    return list(numbers), np.frombuffer(values, np.float64).reshape(-1, len(wanted))


def _request_trace(
    rows: _Rows, columns: _Columns, path: Path, prompt_tokens: int | None, output_tokens: int | None
) -> RequestTrace:
    wanted = [(columns.time, columns.seconds, "s")]
    given: dict[str, int] = {}
    for name, place, length in (
        ("prompt_tokens", columns.prompt, prompt_tokens),
        ("output_tokens", columns.output, output_tokens),
    ):
        if place is not None:
            wanted.append((place, float, "tokens"))
        elif length is None:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{path}: row 1", f"no column of {name}", f"one, or {option}")
        else:
            given[name] = length
    _, data = _values(rows, wanted, columns, path)
    if not len(data):
        raise InputError(str(path), "no rows", "at least one request")
    notes = [f"{name} {length}: the trace has none" for name, length in given.items()]
    data = _answered(data, columns, path, notes)
    if columns.doubted and (data[:, 0] % 1 == 0).all():
        notes.append(
            "timestamp is read in seconds; if it is in ms, as Mooncake's is, call the column timestamp_ms"
        )
    data = data[np.argsort(data[:, 0], kind="stable")]
    lengths = list(data[:, 1:].T)
    prompts = np.full(len(data), given["prompt_tokens"]) if "prompt_tokens" in given else lengths.pop(0)
    outputs = np.full(len(data), given["output_tokens"]) if "output_tokens" in given else lengths.pop(0)
    if empty := int((prompts < 1).sum()):
        notes.append(
            f"{counted(empty, 'request')} without a prompt {'counts' if empty == 1 else 'count'} one token"
        )
    return RequestTrace(
        data[:, 0] - data[0, 0],
        np.maximum(prompts, 1).astype(np.int64),
        outputs.astype(np.int64),
        tuple(notes),
    )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _answered(data: _Floats, columns: _Columns, path: Path, notes: list[str]) -> _Floats:
    """The rows of requests that were a load; notes on the others are added."""
    # Gateways count no tokens of a request that they refuse.
    whole = ~np.isnan(data).any(axis=1)
    if not whole.all():
        unknown = int((~whole).sum())
        notes.append(f"{counted(unknown, 'request')} without a time or a length {_are(unknown)} left out")
    data = data[whole]
    if not len(data):
        raise InputError(str(path), "no request has a time and its lengths", "at least one")
    if columns.output is None:
        return data
    answered = data[:, -1] >= 1
    if failed := int((~answered).sum()):
        notes.append(f"{counted(failed, 'request')} without an answer {_are(failed)} left out")
    if failed == len(data):
        raise InputError(str(path), "no request has an answer", "at least one of a token or more")
    return data[answered]


def _rate_trace(rows: _Rows, columns: _Columns, path: Path) -> RateTrace:
    rate = columns.rate if columns.rate is not None else 0
    meaning = _meaning(columns.names[rate])
    named = _RATE.fullmatch(meaning)
    unit = (named["unit"] or named["other"] if named else None) or "s"
    scale = _PER_S.get(unit[0], 1.0)
    wanted = [(columns.time, columns.seconds, "s"), (rate, lambda cell: _rate(cell) * scale, "rps")]
    numbers, data = _values(rows, wanted, columns, path)
    starts, rates = data.T
    if len(starts) < 2:
        raise InputError(str(path), f"{len(starts)} windows", "at least two, so that their length is known")
    for number, start, step in zip(numbers, starts, np.diff(starts, prepend=-np.inf), strict=True):
        if not step > 0:
            where = f"{path}: row {number}, column {columns.names[columns.time]}"
            problem = "nothing there" if np.isnan(start) else "not after the row before"
            raise InputError(where, problem, "rising times")
    lengths = np.diff(starts, append=2 * starts[-1] - starts[-2])
    starts = starts - starts[0]
    empty, kept = np.isnan(rates), ~np.isnan(rates)
    notes = [f"{empty.sum()} of {len(rates)} windows without a rate are left out"] if empty.any() else []
    if meaning == "totalraterps" and (rates == 0).any():
        kept &= rates > 0
        missing = int((rates == 0).sum())
        notes.append(f"{missing} of {len(rates)} windows with rate 0 are missing data and left out")
    if not kept.any():
        raise InputError(
            str(path), "no window has a rate" if empty.all() else "every rate is 0", "a rate above 0"
        )
    return RateTrace(starts[kept], lengths[kept], rates[kept], tuple(notes))
