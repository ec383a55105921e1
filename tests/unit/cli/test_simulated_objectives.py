"""`simulate` has its decisions keep objectives as the operator does: at the 95th percentile, saying where only means are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from breakeven.cli.simulate import command
from sweeps import CLIENTS, closed, csv_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = []
    for c in CLIENTS:
        rows += closed(
            "none", 0, 1.2, 0.07, clients=[c], first_row=c, p95_latency_s=1.3 * (1.2 + 0.07 * (c - 1))
        )
        rows += closed(
            "eagle3", 3, 0.7, 0.08, clients=[c], first_row=99 + c, p95_latency_s=3 * (0.7 + 0.08 * (c - 1))
        )
    (tmp_path / "p95.csv").write_text(csv_of(rows))
    (tmp_path / "means.csv").write_text(csv_of(rows).replace("p95_latency_s", "unknown"))
    (tmp_path / "rates.csv").write_text(
        "window_start_s,rate_rps\n" + "".join(f"{600 * i},3\n" for i in range(24))
    )
    return tmp_path


def decided(folder: Path, points: str, *objectives: str) -> tuple[int, list[str]]:
    arguments = [
        "--profile",
        str(folder / points),
        "--trace",
        str(folder / "rates.csv"),
        "--policy",
        "breakeven",
        "--day-risk-percent",
        "100",
    ]
    result = CliRunner().invoke(command, [*arguments, *objectives, "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    return document["policies"][0]["switches"], document["warnings"]


def test_decisions_keep_p95_and_the_mean_only_where_that_is_asked_for_or_all_that_is_known(
    folder: Path,
) -> None:
    # At 3 rps eagle3/3 takes 0.92 s on average and 2.8 s at p95, no speculation 1.5 s and 2.0 s.
    assert decided(folder, "p95.csv") == (1, [])
    assert decided(folder, "p95.csv", "--e2e-slo-s", "2.2") == (0, [])
    assert decided(folder, "p95.csv", "--e2e-slo-s", "2.2", "--quantile", "0.5")[0] == 1
    switches, warnings = decided(folder, "means.csv", "--e2e-slo-s", "2.2")
    assert (switches, warnings) == (
        1,
        ["no speculation, eagle3/3: p95 of E2E was not measured: its mean is held against the objective"],
    )
