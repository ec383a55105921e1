"""A folder of somebody's results holds more than results: the rest is passed over by name, and no run counts twice."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from breakeven.cli import root
from breakeven.errors import InputError
from fuzzing import BENCH, GUIDELLM

PLAIN = {name: value for name, value in BENCH.items() if not name.startswith("spec_decode")} | {
    "completed": 500
}
SHORT = [("s2.json", 2), ("s6.json", 6)]
OTHERS = {
    "config.json": '{"model": "m"}',
    "config.yaml": "model: m\nport: 8000\n",
    "engine.log": "INFO 12:00 serving, at port 8000\n",
    "latency.json": '{"avg_latency": 1.0, "latencies": [], "percentiles": {}}',
    "nobody.json": json.dumps(PLAIN | {"completed": 0, "request_throughput": 0.0}),
    "summary.csv": "request_rate,mean_ttft_ms\n1,2\n",
    "times.json": json.dumps({"request_throughput": 1.0, "completed": 9, "request_rate": 1.0}),
}


@pytest.fixture
def fit(tmp_path):
    def run(files, *options):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        names = [str(tmp_path / name) for name in sorted(files)]
        out = str(tmp_path / "out" / "profile.json")
        (tmp_path / "out").mkdir()
        words = ["fit", *names, "--method", "none", "--k", "0", "-o", out, "--json", *options]
        return CliRunner().invoke(root, words)

    return run


def results(*clients):
    return {
        f"c{count}.json": json.dumps(
            PLAIN
            | {
                "max_concurrency": count,
                "mean_e2el_ms": 800.0 + 50 * count,
                "request_throughput": count / (0.8 + 0.05 * count),
            }
        )
        for count in clients
    }


def test_what_is_no_result_is_passed_over_by_name(fit):
    done = fit(results(1, 4, 8) | OTHERS)
    assert done.exit_code == 0
    (arm,) = json.loads(done.stdout)["arms"]
    assert arm["points"] == 3
    lines = done.stderr.splitlines()
    assert [line.split("/")[-1].partition(":")[0] for line in lines] == sorted(OTHERS)
    assert all(line.startswith("breakeven: passed over: ") for line in lines)
    assert "vllm bench latency, which is not read" in done.stderr


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_alone_it_is_refused(fit, name):
    done = fit({name: OTHERS[name]})
    assert isinstance(done.exception, InputError)
    assert name in str(done.exception)
    assert done.stderr == ""


def test_a_wrong_value_in_a_result_is_refused_beside_good_ones(fit):
    done = fit(results(1, 4, 8) | {"wrong.json": json.dumps(PLAIN | {"mean_ttft_ms": "soon"})})
    assert isinstance(done.exception, InputError)
    assert "wrong.json: mean_ttft_ms" in str(done.exception)


RECORD = {"metadata": {"session_num": 1}, "metrics": {}, "error": None}
MANY = {
    "records.jsonl": "\n".join([json.dumps(RECORD)] * 30),
    "records_of_a_day.jsonl": "\n".join([json.dumps(RECORD)] * 11_000),
    "prompts.json": json.dumps([{"id": "a", "conversations": []}] * 11_000),
}


def test_records_prompts_and_pictures_beside_results_are_one_line_each(fit, tmp_path):
    (tmp_path / "plot.png").write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    done = fit(results(1, 4, 8) | MANY, str(tmp_path / "plot.png"))
    assert done.exit_code == 0
    lines = done.stderr.splitlines()
    assert sorted(line.split("/")[-1].partition(":")[0] for line in lines) == sorted([*MANY, "plot.png"])
    assert (
        "records.jsonl: line 1: a result of AIPerf's records, which is not read (and 29 more)" in done.stderr
    )


def test_more_results_than_are_read_are_refused(fit):
    done = fit({"many.jsonl": "\n".join([json.dumps(PLAIN)] * 10_001)})
    assert "10001 results; expected at most 10000" in str(done.exception)


def test_the_same_run_counts_once(fit):
    runs = results(1, 4, 8)
    done = fit(runs | {"copy.json": runs["c4.json"]})
    (arm,) = json.loads(done.stdout)["arms"]
    assert arm["points"] == 3
    assert "copy.json: row 1: the same run was given before" in done.stderr


def test_rows_of_a_points_file_are_somebodys_own_and_stay(fit):
    rows = "none,0,1.2,1\nnone,0,1.4,4\nnone,0,1.4,4\nnone,0,1.8,8\n"
    done = fit({"points.csv": "method,k,mean_latency_s,concurrency\n" + rows})
    (arm,) = json.loads(done.stdout)["arms"]
    assert arm["points"] == 4


def test_a_benchmark_without_an_answer_leaves_the_report_s_others(fit):
    report = json.loads(json.dumps(GUIDELLM))
    report["benchmarks"] = report["benchmarks"][:2]
    report["benchmarks"][1]["run_stats"]["requests_made"]["successful"] = 0
    done = fit(results(1, 4, 8) | {"report.json": json.dumps(report)})
    assert "benchmarks[1]: a benchmark in which no request was answered" in done.stderr
    (arm,) = json.loads(done.stdout)["arms"]
    assert arm["points"] + len(arm["excluded"]) == 3 + 1


def test_rows_that_are_left_out_are_named_by_their_files(fit):
    few = {"completed": 2, "total_input_tokens": 128, "total_output_tokens": 128}
    short = {name: json.dumps(PLAIN | few | {"max_concurrency": count}) for name, count in SHORT}
    done = fit(results(1, 4, 8) | short)
    (warning,) = [line for line in json.loads(done.stdout)["warnings"] if "PointTooShort" in line]
    assert [part.split("/")[-1] for part in warning.partition(" left out")[0].split(", ")] == [
        name for name, _ in SHORT
    ]


def test_reports_of_two_models_are_refused(fit):
    def report(model):
        benchmark = json.loads(json.dumps(GUIDELLM["benchmarks"][0]))
        benchmark["config"]["backend"] = {"model": model}
        return json.dumps({"benchmarks": [benchmark]})

    done = fit({"a.json": report("org/model-8b"), "b.json": report("org/model-14b")})
    assert "column model: 2 values (org/model-8b, org/model-14b)" in str(done.exception)


def test_what_metadata_added_selects_rows(fit):
    runs = {
        f"{cache}{name}": text.replace("{", f'{{"cache": "{cache}", ', 1)
        for cache in ("cold", "warm")
        for name, text in results(1, 4, 8).items()
    }
    warmer = {name: text.replace('"mean_e2el_ms": ', '"mean_e2el_ms": 1') for name, text in runs.items()}
    done = fit(
        {**runs, **{name: warmer[name] for name in runs if name.startswith("warm")}}, "--where", "cache=cold"
    )
    (arm,) = json.loads(done.stdout)["arms"]
    assert arm["points"] == 3
    assert "keys without a known meaning, not used: cache" in done.stderr
