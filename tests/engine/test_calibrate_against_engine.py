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

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli.calibrate import PointsFile
from breakeven.fitting import fit_points
from breakeven.load_driver.client import Endpoint, EngineClient
from breakeven.load_driver.course import Sweep
from breakeven.load_driver.design import SweepSettings, line_through
from breakeven.load_driver.sent_workload import SentWorkload
from breakeven.load_driver.sweep import run_sweep
from breakeven.points.point import Point
from breakeven.readers.reading import read_file
from fakes.simulated_engine import simulated
from fakes.virtual_time import in_virtual_time

pytestmark = pytest.mark.engine

BASE_S, TOKEN_S, DRAFT_S = 0.010, 0.0008, 0.003
PROMPT, OUTPUT = 32, 32
# The step that prefills a request decodes none of its tokens: it is one of the others in flight for the rest.
C1_S, C2_S = OUTPUT * BASE_S + (OUTPUT - 1) * TOKEN_S, (OUTPUT - 1) * TOKEN_S
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


def calibrate(*arguments: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
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


async def sweep(url: str, arm: Arm) -> list[Point]:
    """An arm's points, measured as the command measures them."""
    found: list[Point] = []

    async def keep(point: Point) -> None:
        found.append(point)

    settings = SweepSettings(loads=5, point_seconds=6.0, warmup_seconds=0.5, max_concurrency=24)
    async with EngineClient(Endpoint(url)) as client:
        await run_sweep(
            {arm: client}, Sweep((arm,), SentWorkload(PROMPT, OUTPUT), settings), [], on_point=keep
        )
    return found


@in_virtual_time
async def test_a_sweep_finds_the_engines_own_law(costs):
    async with simulated(costs) as url:
        points = await sweep(url, NO_SPECULATION)
    # Five loads, and the first of them once more at the end.
    assert [point.usable for point in points] == [True] * 6
    lone = points[0]
    assert lone.mean_latency_s == pytest.approx(C1_S, rel=1e-4)
    assert lone.tokens_per_step == 1.0
    assert lone.prompt_tokens == pytest.approx(PROMPT, rel=0.1)
    assert {point.output_tokens for point in points} == {OUTPUT}
    assert line_through(points).c2_s == pytest.approx(C2_S, rel=0.01)


@in_virtual_time
async def test_acceptance_is_what_the_engine_counted_and_both_arms_fit(costs, tmp_path):
    file = PointsFile(tmp_path / "points.csv")
    for arm, config in ((NO_SPECULATION, None), (Arm("eagle3", 3), EAGLE)):
        async with simulated(costs, config) as url:
            for point in await sweep(url, arm):
                file.append(point)
    for row in file.rows():
        if row["method"] != "eagle3":
            assert row["accept_1"] == ""
            continue
        survival = [float(row[f"accept_{position}"]) for position in (1, 2, 3)]
        assert survival == sorted(survival, reverse=True)
        # Every step drafts, so E is 1 + accepted per draft.
        assert float(row["tokens_per_step"]) == pytest.approx(1 + sum(survival), rel=0.08)
        assert float(row["drafted_per_step"]) == pytest.approx(3, rel=0.1)
    none, eagle = fit_points(read_file(file.path)).arms
    assert (none.arm.name, eagle.arm.name) == ("none", "eagle3/3")
    # Read off the law of steps, which is no line: within 4 % of what the engine was given.
    assert none.c1_s == pytest.approx(C1_S, rel=0.04)
    assert none.c2_s == pytest.approx(C2_S, rel=0.04)
    assert eagle.c1_s < none.c1_s


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
        _, said = process.communicate(timeout=120)
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
        refused = calibrate(
            "--url",
            url,
            "--method",
            "none",
            "-o",
            str(file),
        )
    assert refused.returncode == 1
    assert refused.stderr.strip().startswith("breakeven: the engine speculates")
    assert len(refused.stderr.strip().splitlines()) == 1
    assert not file.exists()
