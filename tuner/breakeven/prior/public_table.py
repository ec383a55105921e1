"""Measured ratios of speculative arms over no speculation: the table that ships with the library, and the same rows from users.

A row holds no figure of a service but ratios: `breakeven share` writes one, and whoever gets it learns nothing about loads.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from breakeven.errors import InputError
from breakeven.points.table import decimal

TABLE_FILE = Path(__file__).with_name("public_ratios.csv")
COLUMNS = (
    "stack", "model", "parameters_b", "experts", "gpu", "quantisation", "workload",
    "method", "k", "lone_ratio", "slope_ratio", "tokens_per_step", "source",
)  # fmt: skip
"""Columns of a row, the same in the library's table and in what users send."""

MOST_PARAMETERS_B = 1e5
LONGEST_DRAFT = 1000
_MOST_ROWS = 10_000
_MOST_RATIO = 100.0
_EXPERTS = {"": None, "yes": True, "no": False}
_SIZE_IN_NAME = re.compile(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d{1,2})?)b(?![a-z0-9])", re.IGNORECASE)
_ACTIVE_IN_NAME = re.compile(r"(?<![a-z0-9])a\d{1,3}(?:\.\d)?b(?![a-z0-9])", re.IGNORECASE)
_QUANTISATION_IN_NAME = re.compile(r"nvfp4|mxfp4|fp8|awq|gptq|int4|int8", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """Facts of a served model that its ratios depend on; None: not known.

    Attributes:
        parameters_b: parameters, in thousands of millions.
        experts: whether the model is a mixture of experts.
        gpu: product, such as H100.
        quantisation: of the weights, such as bf16, fp8 or awq.
    """

    parameters_b: float | None = None
    experts: bool | None = None
    gpu: str | None = None
    quantisation: str | None = None

    @classmethod
    def of_name(cls, model: str, gpu: str | None = None) -> ServiceFacts:
        """Facts that a model's name says: `Qwen3-30B-A3B-FP8` has 30, experts and fp8. A name without a word for it says nothing."""
        size, quantisation = _SIZE_IN_NAME.search(model), _QUANTISATION_IN_NAME.search(model)
        return cls(
            parameters_b=float(size[1]) if size and float(size[1]) > 0.0 else None,
            experts=True if _ACTIVE_IN_NAME.search(model) else None,
            gpu=gpu,
            quantisation=quantisation[0].lower() if quantisation else None,
        )


@dataclass(frozen=True, slots=True)
class RatioRow:
    """An arm's ratios as somebody measured them; None: not measured.

    Attributes:
        facts: of the served model.
        method: vLLM's word.
        k: draft length.
        lone_ratio: latency of a lone request over that without speculation, C1 over C1.
        slope_ratio: slope of latency against requests in flight over that without speculation, C2 over C2.
        tokens_per_step: E, bonus token included.
        stack, model, workload: engine with version, model and text, as the source names them; empty: not said.
        source: address of the measurement, or a name of who measured; rows of one source share an error.
    """

    facts: ServiceFacts
    method: str
    k: int
    lone_ratio: float | None = None
    slope_ratio: float | None = None
    tokens_per_step: float | None = None
    stack: str = ""
    model: str = ""
    workload: str = ""
    source: str = ""


@cache
def public_ratios() -> tuple[RatioRow, ...]:
    """The table that ships with the library."""
    return read_ratios(TABLE_FILE.read_text(encoding="utf-8"), TABLE_FILE.name)


def read_ratios(text: str, where: str) -> tuple[RatioRow, ...]:
    """Read rows; an empty field is a figure that was not measured.

    Args:
        text: CSV with a header of `COLUMNS`; other columns are ignored.
        where: the file's name, for messages.

    Raises:
        InputError: a column that is missing, or a field that says something it may not; names line and column.
    """
    if text.count("\n") > _MOST_ROWS:
        raise InputError(where, f"{text.count(chr(10))} lines", f"at most {_MOST_ROWS}")
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    try:
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(where, f"no column {missing[0]}", f"a header with {', '.join(COLUMNS)}")
        found = []
        for row in reader:
            place = f"{where}: line {reader.line_num}"
            if None in row or None in row.values():
                raise InputError(place, "not as many fields as the header", "one per column")
            found.append(_row({name: row[name].strip() for name in COLUMNS}, place))
    except csv.Error as error:
        raise InputError(
            f"{where}: line {reader.line_num}", f"not CSV ({error})", "CSV with a header"
        ) from None
    return tuple(found)


def _row(fields: dict[str, str], place: str) -> RatioRow:
    if fields["experts"] not in _EXPERTS:
        raise InputError(f"{place}, column experts", repr(fields["experts"][:24]), "yes, no or nothing")
    if not fields["method"] or fields["method"] == "none":
        raise InputError(
            f"{place}, column method", repr(fields["method"]), "vLLM's word for a way to speculate"
        )
    k = _number(fields, "k", place, 1.0, LONGEST_DRAFT)
    if k is None or k != int(k):
        raise InputError(f"{place}, column k", repr(fields["k"]), f"a whole number from 1 to {LONGEST_DRAFT}")
    if not fields["source"]:
        raise InputError(f"{place}, column source", "nothing", "an address, or a name of who measured")
    return RatioRow(
        ServiceFacts(
            _number(fields, "parameters_b", place, 1e-3, MOST_PARAMETERS_B),
            _EXPERTS[fields["experts"]],
            fields["gpu"] or None,
            fields["quantisation"] or None,
        ),
        fields["method"],
        int(k),
        _number(fields, "lone_ratio", place, 1.0 / _MOST_RATIO, _MOST_RATIO),
        _number(fields, "slope_ratio", place, 1.0 / _MOST_RATIO, _MOST_RATIO),
        _number(fields, "tokens_per_step", place, 1.0, k + 1.0),
        **{name: fields[name] for name in ("stack", "model", "workload", "source")},
    )


def _number(fields: dict[str, str], name: str, place: str, least: float, most: float) -> float | None:
    """A number of a row; None if the field is empty.

    Raises:
        InputError: the field is no number (NaN is none) or outside the limits.
    """
    text = fields[name]
    if not text:
        return None
    expected = f"a number from {least:g} to {most:g}, or nothing"
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{place}, column {name}", repr(text[:24]), expected) from None
    # Every comparison with NaN is false.
    if not least <= value <= most:
        raise InputError(f"{place}, column {name}", repr(text[:24]), expected)
    return value


def written_ratios(rows: Sequence[RatioRow]) -> str:
    """Rows as text, with their header; an empty field is not known. `read_ratios` reads it."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_cells(row) for row in rows)
    return stream.getvalue()


def _cells(row: RatioRow) -> dict[str, str]:
    names = {word: text for text, word in _EXPERTS.items()}
    figures = ("lone_ratio", "slope_ratio", "tokens_per_step")
    return {
        **{name: getattr(row, name) for name in ("stack", "model", "workload", "method", "source")},
        "parameters_b": decimal(row.facts.parameters_b),
        "experts": names[row.facts.experts],
        "gpu": row.facts.gpu or "",
        "quantisation": row.facts.quantisation or "",
        "k": str(row.k),
        **{name: decimal(getattr(row, name)) for name in figures},
    }
