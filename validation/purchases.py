"""Worth of the points that calibration buys, on engines that the choice was not made on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bench.bench_design import GRID_S, JUDGING, LARGEST_REGRET, LEAST_HELD, Result, coverage, results_of
from bench.design_engines import Kind
from validation.outcomes import Goal, ValidationOutcome


def bought_points() -> Iterator[ValidationOutcome]:
    """Regret and held break-evens of calibrations at a tenth of the full grid's price, per kind of engine and over all."""
    results = results_of(JUDGING, 1)
    for name, group in [
        *((str(kind), [one for one in results if one.kind is kind]) for kind in Kind),
        ("all", list(results)),
    ]:
        price = float(np.mean([one.gpu_s for one in group])) / GRID_S
        figures = {
            "worst": max(one.regret for one in group),
            "regret": float(np.mean([one.regret for one in group])),
        }
        goals = {"regret": Goal(LARGEST_REGRET, below=True)}
        if any(one.crossings for one in group):
            figures["coverage"] = coverage(group)
            goals["coverage"] = Goal(LEAST_HELD, below=False)
        yield ValidationOutcome(
            "points that are bought",
            f"event clock, {name}",
            f"{price:.1%} of the full grid's GPU time",
            figures,
            goals,
            len(group),
            _bought(group),
        )


def _bought(group: Sequence[Result]) -> str:
    """Points and engines that were bought, as measured; the cause of a missed goal is not known."""
    starts = float(np.mean([one.starts for one in group]))
    points = float(np.mean([one.points for one in group]))
    return f"a calibration bought {points:.0f} points on {starts:.1f} engines of 11"
