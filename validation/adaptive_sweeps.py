"""The law of adaptive verification on the two public sweeps that have it: fitted from two loads of it, asked for the others.

The figures are cells of `published_cells.csv`: throughputs of no speculation, of fixed lengths and of adaptive verification, by
clients. No speculation and seven fixed drafts keep all of their loads. Of adaptive verification the second load and the last
but one are fitted; the others are kept apart. All other pairs of loads are judged beside it, and two loads of every arm.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.points.point import Origin, Point
from breakeven.points.row import point
from breakeven.profile import Profile
from validation.measured_ratios import CELLS_FILE, Cell, texts
from validation.outcomes import Goal, ValidationOutcome, error_outcome

FIXED, ADAPTIVE = Arm("dspark", 7), Arm("dspark", 7, scheduled=True, adaptive=True)
_COLUMNS = {NO_SPECULATION: ("none", "0"), FIXED: ("dspark", "7"), ADAPTIVE: ("dspark", "adaptive:7")}
_OUTPUT_TOKENS = 512.0
_ALIKE = 0.01
"""Throughputs that differ by less than this are as good as each other."""

SWEEP_HEADER = (
    "sweep",
    "clients",
    "fitted",
    "none",
    "k=7",
    "adaptive",
    "expected",
    "none %",
    "k=7 %",
    "adaptive %",
    "order",
)


class Sweep(NamedTuple):
    """Cells of each arm by clients."""

    gpu: str
    arms: Mapping[Arm, Mapping[float, Cell]]

    @property
    def clients(self) -> list[float]:
        """Loads of the sweep."""
        return sorted(self.arms[ADAPTIVE])

    @property
    def two(self) -> tuple[float, float]:
        """The loads of adaptive verification that are fitted."""
        return self.clients[1], self.clients[-2]

    def fitted(self, loads: Sequence[float], *, of_all: bool = False) -> Profile:
        """A profile of adaptive verification at these loads, beside the other arms at all of theirs, or at these too."""
        return fit_points(
            [
                _point(arm, cell, self.gpu)
                for arm, cells in self.arms.items()
                for clients, cell in cells.items()
                if clients in loads or (arm != ADAPTIVE and not of_all)
            ]
        )


def sweeps() -> list[Sweep]:
    """The public sweeps with adaptive verification at three loads or more."""
    found = []
    for text in texts(CELLS_FILE.read_text(encoding="utf-8")):
        arms = {arm: {one.load: one for one in text.arms.get(name, [])} for arm, name in _COLUMNS.items()}
        if len(arms[ADAPTIVE]) > 2:
            found.append(Sweep(text.facts["gpu"], arms))
    return found


def _point(arm: Arm, cell: Cell, source: str) -> Point:
    fields: dict[str, str | float] = {
        "method": arm.method,
        "k": float(arm.k),
        "concurrency": cell.load,
        "mean_latency_s": cell.load * _OUTPUT_TOKENS / cell.value,
        "output_tokens": _OUTPUT_TOKENS,
    }
    if arm.adaptive:
        fields["schedule"] = "adaptive"
    if cell.tokens_per_step is not None:
        fields["tokens_per_step"] = cell.tokens_per_step
    return point(fields, Origin(source, int(cell.load)))


def expected(profile: Profile, arm: Arm, clients: float) -> float:
    """Throughput (tok/s) that a profile expects of so many clients."""
    latency_s = profile.curve(arm).loop_latency_s(clients - 1.0, closed=True)
    return clients * _OUTPUT_TOKENS / latency_s


def order_kept(measured: Sequence[float], told: Sequence[float]) -> bool:
    """Whether no two arms change places; neither throughputs that are as good as each other nor such expectations do."""
    return not any(
        (measured[i] / measured[j] - 1.0) * (told[i] / told[j] - 1.0) < 0.0
        and min(abs(np.log(measured[i] / measured[j])), abs(np.log(told[i] / told[j]))) > _ALIKE
        for i, j in itertools.combinations(range(len(measured)), 2)
    )


class AtLoad(NamedTuple):
    """Throughputs (tok/s) at a number of clients, by arm."""

    clients: float
    measured: tuple[float, ...]
    told: tuple[float, ...]

    @property
    def errors(self) -> tuple[float, ...]:
        """Relative errors by arm."""
        return tuple(told / measured - 1.0 for told, measured in zip(self.told, self.measured, strict=True))


def judged(sweep: Sweep, loads: Sequence[float], *, of_all: bool = False) -> list[AtLoad]:
    """Every load of a sweep by a profile that was fitted from some."""
    profile = sweep.fitted(loads, of_all=of_all)
    return [
        AtLoad(
            clients,
            tuple(cells[clients].value for cells in sweep.arms.values()),
            tuple(expected(profile, arm, clients) for arm in sweep.arms),
        )
        for clients in sweep.clients
    ]


def adaptive_outcomes() -> Iterator[ValidationOutcome]:
    """Errors of adaptive verification at the loads that were kept apart, by sweep."""
    goals = {"worst": Goal(0.10, below=True)}
    for sweep in sweeps():
        low, high = sweep.two
        apart = [one.errors[-1] for one in judged(sweep, sweep.two) if one.clients not in sweep.two]
        split = f"adaptive at {low:g} and {high:g} clients, its others"
        yield error_outcome("adaptive verification", sweep.gpu, split, apart, goals)
        errors = [
            one.errors[-1]
            for pair in itertools.combinations(sweep.clients, 2)
            for one in judged(sweep, pair)
            if one.clients not in pair
        ]
        yield error_outcome(
            "adaptive verification", sweep.gpu, "every pair of its loads, its others", errors, {}
        )
        of_all = judged(sweep, sweep.two, of_all=True)
        errors = [one.errors[-1] for one in of_all if one.clients not in sweep.two]
        yield error_outcome(
            "adaptive verification", sweep.gpu, "two loads of every arm, its others", errors, {}
        )


def adaptive_rows() -> Iterator[tuple[str, ...]]:
    """A line for each load of each sweep; which loads were fitted, and whether the order of the arms was kept."""
    for sweep in sweeps():
        for one in judged(sweep, sweep.two):
            yield (
                sweep.gpu,
                f"{one.clients:g}",
                "yes" if one.clients in sweep.two else "",
                *(f"{value:.0f}" for value in one.measured),
                f"{one.told[-1]:.0f}",
                *(f"{100 * error:+.1f}" for error in one.errors),
                "kept" if order_kept(one.measured, one.told) else "CHANGED",
            )
