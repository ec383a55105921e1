"""`breakeven calibrate` against the simulated vLLM, whose latency law has a closed form."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from breakeven.calibrate.design import line_through
from breakeven.calibrate.points import Measured

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

BASE_S, TOKEN_S, DRAFT_S = 0.010, 0.0008, 0.003
PROMPT, OUTPUT = 32, 32
SWEEP = [
    *("--prompt-tokens", str(PROMPT), "--output-tokens", str(OUTPUT)),
    *("--loads", "4", "--point-seconds", "3", "--warmup-seconds", "0.5", "--max-concurrency", "24"),
]
EAGLE = {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 3}
CLI = [sys.executable, "-m", "breakeven.cli"]


@pytest.fixture
def costs(document):
    return document(
        step={"base_s": BASE_S, "per_token_s": TOKEN_S},
        methods__eagle3__draft={"flat_s": DRAFT_S},
    )


@contextmanager
def serving(costs: dict, *flags: str) -> Iterator[str]:
    process = subprocess.Popen(
        [
            *CLI,
            "engine-sim",
            "tiny",
            "--host",
            "127.0.0.10",
            "--port",
            "0",
            "--sim-costs",
            json.dumps(costs),
            *flags,
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "Started server on " in line:
                yield line.partition("Started server on ")[2].strip()
                return
        raise AssertionError("the engine ended before it served")
    finally:
        process.kill()
        process.communicate()


def calibrate(*arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, "calibrate", *arguments, *SWEEP],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def rows_of(file) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_sweep_finds_the_engines_own_law(costs, tmp_path):
    file = tmp_path / "points.csv"
    with serving(costs) as url:
        done = calibrate("--url", url, "--method", "none", "-o", str(file))
    assert done.returncode == 0, done.stderr
    rows = rows_of(file)
    measured = [Measured.of_row(row) for row in rows]
    assert len(measured) >= 4
    # A token costs base + in flight * per token; prefill is free with these costs.
    lone = rows[0]
    assert float(lone["mean_latency_s"]) == pytest.approx(OUTPUT * (BASE_S + TOKEN_S), rel=0.05)
    assert float(lone["tokens_per_step"]) == 1.0
    assert float(lone["prompt_tokens"]) == pytest.approx(PROMPT, rel=0.1)
    assert {row["output_tokens"] for row in rows} == {str(OUTPUT)}
    line = line_through(measured)
    assert line.c2_s == pytest.approx(OUTPUT * TOKEN_S, rel=0.12)


def test_acceptance_is_what_the_engine_counted_and_both_arms_fit(costs, tmp_path):
    file, profile = tmp_path / "points.csv", tmp_path / "profile.json"
    with serving(costs) as url:
        assert calibrate("--url", url, "--method", "none", "-o", str(file)).returncode == 0
    with serving(costs, "--speculative-config", json.dumps(EAGLE)) as url:
        done = calibrate("--url", url, "--method", "eagle3", "--k", "3", "-o", str(file))
        assert done.returncode == 0, done.stderr
    for row in rows_of(file):
        if row["method"] != "eagle3":
            assert row["accept_1"] == ""
            continue
        survival = [float(row[f"accept_{position}"]) for position in (1, 2, 3)]
        assert survival == sorted(survival, reverse=True)
        # Every step drafts, so E is 1 + accepted per draft.
        assert float(row["tokens_per_step"]) == pytest.approx(1 + sum(survival), rel=0.08)
        assert float(row["drafted_per_step"]) == pytest.approx(3, rel=0.1)
    fit = subprocess.run(
        [*CLI, "fit", str(file), "-o", str(profile), "--json"], capture_output=True, text=True, check=False
    )
    assert fit.returncode == 0, fit.stderr
    arms = {(arm["method"], arm["k"]): arm for arm in json.loads(fit.stdout)["arms"]}
    assert set(arms) == {("none", 0), ("eagle3", 3)}
    assert arms["eagle3", 3]["c1_s"] < arms["none", 0]["c1_s"]


def test_an_interrupted_sweep_goes_on_where_it_was(costs, tmp_path):
    file = tmp_path / "points.csv"
    with serving(costs) as url:
        process = subprocess.Popen(
            [*CLI, "calibrate", "--url", url, "--method", "none", "-o", str(file), *SWEEP],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        process.stdout.readline()  # the header comes with the first point
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in said
        kept = rows_of(file)
        assert [row["concurrency"] for row in kept] == ["1"]
        done = calibrate("--url", url, "--method", "none", "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert "going on after 1 points" in done.stderr
    assert rows_of(file)[0] == kept[0]
    assert len(rows_of(file)) >= 4


def test_the_wrong_arm_is_refused_before_a_minute_is_spent(costs, tmp_path):
    file = tmp_path / "points.csv"
    with serving(costs, "--speculative-config", json.dumps(EAGLE)) as url:
        refused = calibrate("--url", url, "--method", "none", "-o", str(file), timeout_s=30)
    assert refused.returncode == 1
    assert refused.stderr.strip().startswith("breakeven: the engine speculates")
    assert len(refused.stderr.strip().splitlines()) == 1
    assert not file.exists()
