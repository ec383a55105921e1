"""Scatter of measurements: it widens every bound."""

from __future__ import annotations

import math

import pytest

from breakeven.arm import Arm
from breakeven.fitting import fit_points
from breakeven.profile.comparisons import PaysWhere
from draws import seeds_of_law
from sweeps import closed


@pytest.mark.parametrize("noise", [0.02, 0.08, 0.15, 0.25])
def test_scatter_widens_the_bounds(noise) -> None:
    laws = {("none", 0): (1.2, 0.07), ("eagle3", 3): (0.4, 0.05)}
    held, verdicts = [], []
    for seed in seeds_of_law(60):
        rows = [
            row
            for (method, k), law in laws.items()
            for row in closed(method, k, *law, noise=noise, seed=seed)
        ]
        profile = fit_points(rows, confidence=0.9)
        speedup = profile.compare(Arm("eagle3", 3), rps=6.0)
        truth = (1.2 / (1 - 6 * 0.07)) / (0.4 / (1 - 6 * 0.05))
        low, high = speedup.speedup_ci or (None, None)
        held.append((low or 0.0) <= truth <= (high or math.inf))
        verdicts.append(speedup.verdict)
    # The arm is faster at every load: that it never pays, or pays above a load only, would be wrong.
    wrong = {PaysWhere.NEVER, PaysWhere.ABOVE}
    assert sum(held) >= 0.8 * len(held) - 1
    assert sum(one in wrong for one in verdicts) <= 1
