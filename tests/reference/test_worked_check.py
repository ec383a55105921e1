"""The worked check of the envelope: A and B cross at 6.35 rps, B and D at 12.73, A and D at 8.86.

Exact values: crossings of C1/(1 - r*C2) in rationals, r = (C1a - C1b)/(C1a*C2b - C1b*C2a).
"""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

from sweeps import closed, csv_of

LAWS = {"none": ("1.20", "0.070"), "drafter_a": ("0.78", "0.085"), "drafter_b": ("0.92", "0.072")}


def crossing(first: str, second: str) -> float:
    (a1, a2), (b1, b2) = ([Fraction(x) for x in LAWS[name]] for name in (first, second))
    return float((a1 - b1) / (a1 * b2 - b1 * a2))


@pytest.mark.parametrize("clients", [(1, 2, 4, 8, 16, 32, 64, 128), (1, 4, 8, 16, 32)])
def test_plan_on_a_points_file_gives_a_below_b_between_and_d_above(
    tmp_path: Path, clients: tuple[int, ...]
) -> None:
    rows = [
        row
        for method, (c1, c2) in LAWS.items()
        for row in closed(method, 0 if method == "none" else 3, float(c1), float(c2), clients=clients)
    ]
    points = tmp_path / "points.csv"
    points.write_text(csv_of(rows))
    program = [
        sys.executable,
        "-m",
        "breakeven.cli",
        "plan",
        str(points),
        "--rps-range",
        "1",
        "14",
        "--json",
        "--rps",
    ]
    bests = {}
    for rps in ("3", "8", "13"):
        document = json.loads(subprocess.run([*program, rps], check=True, capture_output=True).stdout)
        bests[rps] = document["best"]["method"]
        stretches = document["envelope"]
        assert [one["method"] for one in stretches] == ["drafter_a", "drafter_b", "none"]
        ends = [stretches[0]["from_rps"], *(one["to_rps"] for one in stretches)]
        exact = [1, crossing("drafter_a", "drafter_b"), crossing("drafter_b", "none"), 14]
        assert exact == pytest.approx([1, 6.35, 12.73, 14], abs=0.005)
        # The law of steps is no hyperbola; 32 clients carry a quarter less than the last crossing.
        assert ends == pytest.approx(exact, rel=0.02 if max(clients) == 128 else 0.1)
        assert all(one["to_rps"] == other["from_rps"] for one, other in pairwise(stretches))
    assert bests == {"3": "drafter_a", "8": "drafter_b", "13": "none"}
    by_method = {one["method"]: one for one in document["arms"]}
    if max(clients) == 128:
        # A and D cross at 8.86, which is not where A stops being best.
        assert by_method["drafter_a"]["break_even_rps"] == pytest.approx(8.86, rel=0.005)
        assert by_method["drafter_b"]["break_even_rps"] == pytest.approx(12.73, rel=0.005)
