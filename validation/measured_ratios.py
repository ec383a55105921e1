"""The table of public measurements that ships with the library, derived from published cells: `python -m validation.measured_ratios --write|--check`.

`published_cells.csv` holds figures as they were published, each with its address. A ratio is an arm's figure over that of no
speculation on the same text, of the same source. A lone request's ratio is one of throughputs at concurrency 1 where these were
published. The slope's ratio comes from lines C1 + n*C2 with relative residuals, n being concurrency less 1, or rate times latency.
Where a text has ratios of throughput alone, its arms share one C2/C1 of no speculation: fitted with them if six loads or more were
published, else that of the same source's other text. A slope is left out if the highest load adds less than a quarter to the
latency of no speculation, because noise of one percent would then move it by four or more.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from scipy.optimize import minimize_scalar

from breakeven.prior.public_table import TABLE_FILE
from breakeven.tiers import ADAPTIVE_FORM

COLUMNS = (
    "stack", "model", "parameters_b", "experts", "gpu", "quantisation", "workload",
    "method", "k", "lone_ratio", "slope_ratio", "tokens_per_step", "source",
)  # fmt: skip

CELLS_FILE = Path(__file__).with_name("published_cells.csv")
_FACTS = ("source", "stack", "model", "parameters_b", "experts", "gpu", "quantisation", "workload")
_LONE_BELOW = 4.0
"""Lowest concurrency of a source from which its line is still drawn back to a lone request."""
_BENDS = (-4.0, 0.5)
"""Decades between which C2/C1 of no speculation is looked for where only ratios were published."""
_LOADS_FOR_A_BEND = 6
_LEAST_ADDED = 0.25
"""Share of C1 that the highest load adds to the latency of no speculation, below which a slope is not determined."""


class Cell(NamedTuple):
    """One published figure of an arm.

    Attributes:
        load: concurrency, or rate (1/s) of a latency; NaN of an acceptance.
        kind: `tok_s` (output tokens per second of all requests), `ratio` (that over no speculation's), `latency_s` (of a
            request, in an open loop) or `steps` (acceptance alone).
        value: of that kind.
        tokens_per_step: None if not published.
    """

    load: float
    kind: str
    value: float
    tokens_per_step: float | None


@dataclass(frozen=True, slots=True)
class PublishedText:
    """Cells of one source on one text.

    Attributes:
        facts: by column.
        arms: cells by (method, draft length), as they were written: adaptive:7 with adaptive verification of 7 drafts.
    """

    facts: dict[str, str]
    arms: dict[tuple[str, str], list[Cell]]


class RatioPair(NamedTuple):
    """An arm's C1 and C2 over those of no speculation; None if the cells do not say."""

    lone: float | None
    slope: float | None


def texts(content: str) -> list[PublishedText]:
    """Cells grouped by source and text, in the file's order."""
    found: dict[tuple[str, ...], PublishedText] = {}
    for row in csv.DictReader(io.StringIO(content)):
        key = tuple(row[name] for name in _FACTS)
        text = found.setdefault(key, PublishedText(dict(zip(_FACTS, key, strict=True)), defaultdict(list)))
        number = {name: float(row[name] or "nan") for name in ("load", "value", "tokens_per_step")}
        steps = number["tokens_per_step"]
        text.arms[row["method"], row["k"]].append(
            Cell(number["load"], row["kind"], number["value"], None if math.isnan(steps) else steps)
        )
    return list(found.values())


def rows(text: PublishedText, same_source: Sequence[PublishedText]) -> Iterator[dict[str, str]]:
    """A row of the table for each arm of a text."""
    ratios = _ratios(text, same_source)
    for (method, k), cells in text.arms.items():
        if k == "0":
            continue
        # With adaptive verification E is another one at every load, and no figure of the arm.
        fixed = ADAPTIVE_FORM.fullmatch(k) is None
        steps = [cell.tokens_per_step for cell in cells if fixed and cell.tokens_per_step is not None]
        pair = ratios.get((method, k), RatioPair(None, None))
        yield {
            **text.facts,
            "method": method,
            "k": k,
            "lone_ratio": _cell(pair.lone),
            "slope_ratio": _cell(pair.slope),
            "tokens_per_step": _cell(math.exp(np.mean(np.log(steps))) if steps else None),
        }


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _ratios(text: PublishedText, same_source: Sequence[PublishedText]) -> dict[tuple[str, str], RatioPair]:
    plain = text.arms.get(("none", "0"), [])
    arms = {arm: cells for arm, cells in text.arms.items() if arm[1] != "0" and cells[0].kind != "steps"}
    if plain and all(cell.kind != "ratio" for cells in arms.values() for cell in cells):
        own = _line(plain)
        return {arm: _over(_line(cells), own) for arm, cells in arms.items()}
    others = {arm: np.array([cell.load - 1.0 for cell in cells]) for arm, cells in arms.items()}
    slowness = {arm: np.array([1.0 / cell.value for cell in cells]) for arm, cells in arms.items()}
    if not arms:
        return {}
    if not plain and np.unique(np.concatenate(list(others.values()))).size >= _LOADS_FOR_A_BEND:
        bend = _shared_bend(others, slowness)
    else:
        bend = next(found for one in (text, *same_source) if (found := _own_bend(one)) is not None)
    return {arm: _pair(others[arm], slowness[arm], bend) for arm in arms}


def _own_bend(text: PublishedText) -> float | None:
    """C2/C1 of no speculation on a text; None if its throughputs at two loads were not published."""
    plain = text.arms.get(("none", "0"), [])
    if len({cell.load for cell in plain}) < 2:
        return None
    load, value = (np.array([getattr(cell, name) for cell in plain]) for name in ("load", "value"))
    design = np.stack([value / load, value * (load - 1.0) / load], axis=1)
    c1, c2 = np.linalg.lstsq(design, np.ones(len(plain)), rcond=None)[0]
    return float(c2 / c1)


class _Line(NamedTuple):
    """C1 and C2, in any unit of time; None if the loads do not say."""

    lone: float | None
    slope: float | None


def _line(cells: Sequence[Cell]) -> _Line:
    """The line through an arm's cells: through the lone request where that was measured."""
    load, value = (np.array([getattr(cell, name) for cell in cells]) for name in ("load", "value"))
    open_loop = cells[0].kind == "latency_s"
    latency = value if open_loop else load / value
    others = load * value if open_loop else load - 1.0
    lone = float(latency[others == 0.0].mean()) if np.any(others == 0.0) else None
    if np.unique(others).size < 2:
        return _Line(lone, None)
    if lone is not None:
        slope = _through(lone, others, latency)
        return _Line(lone, slope if slope * others.max() >= _LEAST_ADDED * lone else None)
    design = np.stack([1.0 / latency, others / latency], axis=1)
    c1, c2 = np.linalg.lstsq(design, np.ones(len(cells)), rcond=None)[0]
    near = open_loop or load.min() <= _LONE_BELOW
    steep = c2 * others.max() >= _LEAST_ADDED * c1
    return _Line(float(c1) if near else None, float(c2) if steep else None)


def _through(lone: float, others: np.ndarray, latency: np.ndarray) -> float:
    """The slope of a line from the lone request, by relative residuals."""
    weight = others / latency
    return float(weight @ (1.0 - lone / latency) / (weight @ weight))


def _over(arm: _Line, own: _Line) -> RatioPair:
    lone = arm.lone / own.lone if arm.lone and own.lone else None
    return RatioPair(lone, arm.slope / own.slope if arm.slope and own.slope else None)


def _pair(others: np.ndarray, slowness: np.ndarray, bend: float) -> RatioPair:
    """An arm's ratios from its latencies over those of no speculation, which are 1 + n*bend."""
    latency = slowness * (1.0 + bend * others)
    if not np.any(others == 0.0):
        return RatioPair(None, None)
    lone = float(latency[others == 0.0].mean())
    if bend * others.max() < _LEAST_ADDED:
        return RatioPair(lone, None)
    return RatioPair(lone, _through(lone, others, latency) / bend)


def _shared_bend(
    others: dict[tuple[str, str], np.ndarray], slowness: dict[tuple[str, str], np.ndarray]
) -> float:
    """C2/C1 of no speculation under which all arms lie on lines best."""

    def misfit(decade: float) -> float:
        bend = 10.0**decade
        total = 0.0
        for arm, n in others.items():
            pair = _pair(n, slowness[arm], bend)
            line = (pair.lone or 0.0) + n * (pair.slope or 0.0) * bend
            total += float(np.sum((line / (slowness[arm] * (1.0 + bend * n)) - 1.0) ** 2))
        return total

    return float(10.0 ** minimize_scalar(misfit, bounds=_BENDS, method="bounded").x)


def table() -> str:
    """The whole table as text."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    every = texts(CELLS_FILE.read_text(encoding="utf-8"))
    for text in every:
        writer.writerows(rows(text, [one for one in every if one.facts["source"] == text.facts["source"]]))
    return stream.getvalue()


@click.command()
@click.option("--write", is_flag=True, help="Write the library's table; else say whether it is up to date.")
def main(*, write: bool) -> None:
    """Derive the table of public measurements."""
    if write:
        TABLE_FILE.write_text(table(), encoding="utf-8")
    click.echo(
        "written" if write else "up to date" if table() == TABLE_FILE.read_text("utf-8") else "differs"
    )


if __name__ == "__main__":
    main()
