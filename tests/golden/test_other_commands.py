"""The other commands from the outside: the JSON of each, and what wrong input gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from golden.documents import DATA, breakeven, refused, same_as_stored, unexplained

SWEEP = str(DATA.parents[2] / "examples" / "points.csv")
READY = str(DATA.parents[2] / "examples" / "vllm-a100.yaml")
ANSWERS = str(Path(__file__).parents[2] / "examples" / "answers.jsonl")
RATES = "window_start_s,rate_rps\n0,2\n3600,9\n7200,2\n"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("acceptance", ["acceptance", "--per-position", ".6731,.4395,.2811", "--method", "eagle3", "--for-k", "7"]),
        ("schedule", ["schedule", SWEEP, "--method", "eagle3", "--max-batch-size", "64", "--tpot-slo-s", "0.03"]),
        ("simulate", ["simulate", "--profile", "points.csv", "--trace", "{rates}", "--replicas", "2", "--e2e-slo-s", "2"]),
        ("compare", ["compare", "points.csv", SWEEP, "--rps", "1"]),
        ("rank", ["rank", ANSWERS, "--by", "task", "--profile", "points.csv", "--rps", "1"]),
        ("lint", ["lint", "plain.yaml"]),
        ("lint-ready", ["lint", READY]),
    ],
)  # fmt: skip
def test_the_json_is_the_golden_one(name: str, arguments: list[str], tmp_path: Path) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text(RATES)
    done = breakeven(*(word.format(rates=rates) for word in arguments), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    same_as_stored(name, json.loads(done.stdout))


def test_the_report_names_the_files_it_wrote(tmp_path: Path) -> None:
    page = tmp_path / "chat.html"
    done = breakeven("report", "points.csv", "-o", str(page), "--png", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    names = ["chat.html", *(f"chat-{picture}.png" for picture in ("speedup", "latency", "map", "fit"))]
    found = json.loads(done.stdout)
    assert found == {"written": [str(tmp_path / name) for name in names], "confidence": 0.9}
    assert unexplained("report", found) == set()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_lint_in_ci_fails_where_lines_are_missing() -> None:
    done = breakeven("lint", "--check", "plain.yaml")
    assert done.returncode == 1
    assert "not ready" in done.stderr
    assert breakeven("lint", "--check", READY).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["acceptance", "--per-position", ".5,.6"], 1, "position 2"),
        (["acceptance", "--rate", "1.2", "--k", "3"], 1, "between 0 and 1"),
        (["acceptance", "--accepted", "5", "--k", "3"], 2, "--drafts"),
        (["acceptance", "--accepted", "nan", "--drafts", "9", "--k", "3"], 2, "not a finite number"),
        (["schedule", "points.csv", "--method", "medusa", "--max-batch-size", "8"], 1, "measured methods: eagle3"),
        (["schedule", "plan.json", "--method", "eagle3", "--max-batch-size", "8"], 1, "breakeven fit"),
        (["schedule", "points.csv", "--method", "eagle3", "--max-batch-size", "0"], 2, "--max-batch-size"),
        (["simulate", "--profile", "points.csv", "--trace", "points.csv"], 1, "window_start_s,rate_rps"),
        (["simulate", "--profile", "points.csv", "--trace", "absent.csv"], 1, "absent.csv"),
        (["simulate", "--trace", "points.csv"], 2, "--profile or --costs"),
        (["report", "points.csv", "-o", "page.pdf"], 1, ".html or .png"),
        (["report", "points.csv", "-o", "nowhere/page.html"], 1, "nowhere"),
        (["report", "points.csv", "-o", "page.html", "--load-range", "5", "2"], 1, "lower load first"),
        (["report", "plan.json", "-o", "page.html"], 1, "breakeven fit"),
        (["report", "points.csv"], 2, "--output"),
        (["report", "guidellm_0.8.1_engine_sim.json", "-o", "page.html"], 1, "does not say which arm it measured"),
        (["lint", "points.csv"], 1, "expected a Kubernetes object"),
        (["lint", "two.yaml"], 1, "--container NAME"),
        (["lint", "absent.yaml"], 1, "absent.yaml: no such file"),
        (["calibrate", "--url", "http://127.0.0.1:9", "--method", "none", "-o", "fit.json"], 1, "points file's header"),
        (["calibrate", "--url", "http://127.0.0.1:9", "--method", "none", "-o", "new.csv"], 1, "expected an engine"),
        (["calibrate", "--url", "http://127.0.0.1:9", "--method", "none", "-o", "nowhere/new.csv"], 1, "nowhere: no such folder"),
        (["calibrate", "--url", "http://127.0.0.1:9", "--method", "eagle3", "--k", "3", "--min-p", "0.05", "-o", "new.csv"], 1, "an engine that speculates answers HTTP 400"),
        (["calibrate", "--url", "ftp://x", "--method", "none", "-o", "new.csv"], 2, "http://host:port"),
        (["engine-sim", "m", "--sim-costs", "{}"], 1, "step: is missing"),
        (["engine-sim", "m", "--max-num-seqs", "0"], 1, "whole number of at least 1"),
        (["engine-sim", "m", "--speculative-config", "text"], 2, "invalid JSON"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_refused_and_nothing_is_written(arguments: list[str], code: int, says: str) -> None:
    before = sorted(DATA.iterdir())
    refused(breakeven(*arguments), code, says)
    assert sorted(DATA.iterdir()) == before
