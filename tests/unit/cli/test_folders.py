"""A folder of somebody's results holds more than results: the rest is passed over by name, and no run counts twice."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from breakeven.cli import root
from breakeven.errors import InputError
from breakeven.fitting import fit_points
from breakeven.readers.reading import read_text
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
    "service.yaml": "# one workload, and one method to try\nkind: SpeculativeService\n",
    "summary.csv": "request_rate,mean_ttft_ms\n1,2\n",
    "times.json": json.dumps({"request_throughput": 1.0, "completed": 9, "request_rate": 1.0}),
}


@pytest.fixture
def fit(tmp_path):
    def run(files, *options, given=None):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        names = [str(tmp_path / name) for name in given or sorted(files)]
        out = str(tmp_path / "out" / "profile.json")
        (tmp_path / "out").mkdir()
        arm = [] if "--method" in options else ["--method", "none", "--k", "0"]
        return CliRunner().invoke(root, ["fit", *names, *arm, "-o", out, "--json", *options])

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


def test_a_run_without_an_answer_leaves_the_others_of_its_file(fit):
    """SGLang appends all runs of a sweep to one file, and writes NaN for every mean of nothing."""
    runs = [json.loads(text) for text in results(1, 4, 8).values()]
    means = {name: float("nan") for name in runs[0] if name.startswith(("mean_", "median_", "p99_"))}
    runs.insert(1, runs[0] | means | {"completed": 0, "request_throughput": 0.0})
    done = fit({"sweep.jsonl": "\n".join(map(json.dumps, runs))})
    (arm,) = json.loads(done.stdout)["arms"]
    assert arm["points"] == 3
    assert "line 2: a run in which no request was answered" in done.stderr


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


@pytest.mark.parametrize("form", ["{}", "{}/", "sweep/{}", "a/b/{}", "./{}"])
def test_a_folder_is_read_to_its_depth(fit, form):
    where = form.format("results").rstrip("/")
    runs = {
        f"{where}/run_{place}/deep/{name}": text
        for place, (name, text) in enumerate(results(1, 4, 8).items())
    }
    done = fit(
        runs | {f"{where}/.git/config": "x", f"{where}/plot.log": "INFO\n"}, given=[where.split("/")[0]]
    )
    assert done.exit_code == 0, done.exception
    (arm,) = json.loads(done.stdout)["arms"]
    assert arm["points"] == 3
    assert [line.split("/")[-1].partition(":")[0] for line in done.stderr.splitlines()] == ["plot.log"]


def test_two_folders_are_two_arms(fit):
    drafting = BENCH | {"completed": 500, "spec_decode_draft_tokens": 1866}
    runs = {f"none/{name}": text for name, text in results(1, 4, 8).items()}
    runs |= {
        f"eagle/{name}": json.dumps(
            json.loads(text) | {k: v for k, v in drafting.items() if k.startswith("spec_")}
        )
        for name, text in results(1, 4, 8).items()
    }
    words = ("--method", "none", "--method", "eagle3", "--k", "0", "--k", "3")
    done = fit(runs, *words, given=["none", "eagle"])
    assert done.exit_code == 0, done.exception
    assert [(arm["method"], arm["points"]) for arm in json.loads(done.stdout)["arms"]] == [
        ("none", 3),
        ("eagle3", 3),
    ]


@pytest.mark.parametrize(
    ("files", "refusal"), [({}, "a folder without a file"), ({"r/log.txt": "INFO\n"}, "no such column")]
)
def test_a_folder_without_a_result_is_refused(fit, tmp_path, files, refusal):
    (tmp_path / "r").mkdir()
    done = fit(files, given=["r"])
    assert isinstance(done.exception, InputError)
    assert refusal in str(done.exception)


def test_a_result_in_a_folder_is_not_written_over(fit, tmp_path):
    done = fit(
        {f"r/{name}": text for name, text in results(1, 4, 8).items()},
        "-o",
        str(tmp_path / "r" / "c4.json"),
        given=["r"],
    )
    assert "one of the points files" in str(done.exception)


WHOLE = results(1, 4, 8)["c4.json"]
CUT = {
    "cut.json": WHOLE[: len(WHOLE) // 2],
    "cut_at_once.json": WHOLE[:1],
    "empty.json": "",
    "cut.jsonl": "\n".join([*(json.dumps(json.loads(text) | {"mean_ttft_ms": 60.0}) for text in results(2, 6).values()), WHOLE[:40]]),
    "spoilt_in_the_middle.jsonl": "\n".join([json.dumps(json.loads(WHOLE) | {"mean_ttft_ms": 61.0}), '{"date": }', json.dumps(json.loads(WHOLE) | {"mean_ttft_ms": 62.0})]),
    "cut.yaml": "version: '0.2'\nscenario:\n  load: {standardized: {rate",
    "huge_number.json": '{"request_throughput": ' + "9" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CUT))
def test_a_file_that_was_cut_off_leaves_the_others(fit, name):
    done = fit(results(1, 4, 8) | {name: CUT[name]})
    assert done.exit_code == 0, done.exception
    (arm,) = json.loads(done.stdout)["arms"]
    assert arm["points"] == 3 + 2 * name.endswith(".jsonl")
    (line,) = done.stderr.splitlines()
    assert line.startswith("breakeven: passed over: ")
    assert name in line


def labelled(labels, columns=None):
    """Runs at 1, 4 and 8 clients of each label, whose engines differ."""
    files = {}
    for number, value in enumerate(labels):
        for count in (1, 4, 8):
            slower = (1.0 + 0.8 * number) * (0.8 + 0.05 * count)
            run = PLAIN | {
                "max_concurrency": count,
                "mean_e2el_ms": 1e3 * slower,
                "request_throughput": count / slower,
            }
            files[f"{number}-{count}.json"] = json.dumps(run | (columns or {}) | value)
    return files


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        (
            [{"framework": "vllm", "gpu_name": "H100"}, {"framework": "sgl", "gpu_name": "L4"}],
            ["framework (vllm, sgl)", "gpu_name (H100, L4)"],
        ),
        ([{"server": "a"}, {"server": "b"}], ["server (a, b)"]),
        ([{"accelerator": "A100"}, {"accelerator": "MI300X"}], ["accelerator (A100, MI300X)"]),
        ([{"tp": 1}, {"tp": 2}, {"tp": 4}], ["tp (1, 2, 4)"]),
        ([{"dtype": "bf16"}, {"dtype": "fp8"}], ["dtype (bf16, fp8)"]),
        ([{"branch": "main"}, {"branch": "tuned"}, {"branch": "main"}], ["branch (main, tuned)"]),
    ],
)
def test_labels_that_split_an_arm_are_named_with_what_to_do(fit, labels, named):
    done = fit(labelled(labels))
    (warning,) = [one for one in json.loads(done.stdout)["warnings"] if "rows differ in" in one]
    assert all(one in warning for one in named)
    column = named[0].partition(" ")[0]
    assert warning.endswith(f"--group-by {column}, or --where")


@pytest.mark.parametrize(
    "label",
    [
        {"note": "first"},
        {"framework": "vllm", "gpu_name": "H100"},
        {"repetition": 1},
    ],
)
def test_a_label_that_splits_nothing_is_not_named(fit, label):
    runs = {}
    for count in (1, 4, 8):
        for repeated in (1, 2):
            latency_s = (0.8 + 0.05 * count) * (1.0 + 0.01 * repeated)
            run = PLAIN | {
                "max_concurrency": count,
                "mean_e2el_ms": 1e3 * latency_s,
                "request_throughput": count / latency_s,
            }
            own = {"repetition": repeated} if "repetition" in label else label
            runs[f"{count}-{repeated}.json"] = json.dumps(run | own | {"load_name": f"{count} users"})
    assert "rows differ in" not in fit(runs).stdout


def test_a_row_far_off_the_law_is_said(fit):
    done = fit(labelled([{}, {}]))
    (arm,) = json.loads(done.stdout)["arms"]
    (warning,) = [one for one in json.loads(done.stdout)["warnings"] if "off the law" in one]
    assert f"none: a row lies {arm['max_relative_error']:.0%} off the law of all rows" in warning


RAMPED = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 8}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (RAMPED, "NotSteady"),
        ({"completed": 4, "total_input_tokens": 256, "total_output_tokens": 256}, "PointTooShort"),
        ({"mean_e2el_ms": 9e3}, "NotSteady"),
        ({"request_rate": 900.0, "max_concurrency": None}, "PointTooShort"),
        ({"burstiness": 0.2, "request_rate": 3.0, "max_concurrency": None}, "ArrivalsUnknown"),
    ],
)
def test_a_fit_without_a_usable_row_fails_and_writes_nothing(fit, tmp_path, change, reason):
    runs = {name: json.dumps(json.loads(text) | change) for name, text in results(1, 4, 8).items()}
    done = fit(runs)
    assert done.exit_code == 1
    refusal = str(done.exception)
    assert refusal.startswith("no row is usable, so that no profile is written (")
    assert reason in refusal
    assert all(name in refusal for name in runs)
    assert not list((tmp_path / "out").iterdir())


def test_a_group_without_a_usable_row_is_named(fit, tmp_path):
    runs = {name: json.dumps(json.loads(text) | {"cell": "long"}) for name, text in results(1, 4, 8).items()}
    ramped = json.dumps(PLAIN | RAMPED | {"cell": "ramped", "max_concurrency": 3})
    done = fit(runs | {"r.json": ramped}, "--group-by", "cell")
    assert str(done.exception) == (
        f"cell ramped: no row is usable, so that no profile is written (NotSteady: {tmp_path}/r.json)"
    )


def test_a_profile_without_a_usable_row_is_refused_by_its_name_and_reasons(fit, tmp_path):
    points = tmp_path / "points.csv"
    rows = "".join(f"none,0,1.{n},{n},3\n" for n in (1, 4, 8))
    points.write_text("method,k,mean_latency_s,concurrency,requests\n" + rows)
    left_out = "no row of it is usable (PointTooShort: 3 rows of "
    done = CliRunner().invoke(root, ["plan", str(points), "--rps", "1"])
    assert f"{points}: {left_out}{points})" in str(done.exception)
    # A profile that an older version wrote.
    old = tmp_path / "old.json"
    old.write_text(fit_points(read_text(points.read_text(), "points.csv")).to_json())
    done = CliRunner().invoke(root, ["plan", str(old), "--rps", "1"])
    assert f"{old}: {left_out}points.csv)" in str(done.exception)


def swept(**members):
    """Runs of no speculation, named by its members, and of an arm that these members name."""
    files = {}
    for name, slower, said in (("none", 1.0, {"method": "none", "k": "0"}), ("fast", 0.6, members)):
        for file, text in results(1, 4, 8).items():
            run = json.loads(text)
            run |= {"mean_e2el_ms": slower * run["mean_e2el_ms"]}
            run |= {"request_throughput": run["request_throughput"] / slower}
            files[f"{name}/{file}"] = json.dumps(run | said)
    return files


def fitted(tmp_path, place, *options):
    (tmp_path / "out").mkdir(exist_ok=True)
    return CliRunner().invoke(
        root, ["fit", str(tmp_path / place), "-o", str(tmp_path / "out/p.json"), "--json", *options]
    )


@pytest.mark.parametrize("place", ["", "*/c*.json", "**/*.json"])
@pytest.mark.parametrize(
    "members",
    [
        {"method": "eagle3", "k": "3"},
        {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3, "model": "org/head"}},
        {"speculative_config": '{"method": "eagle3", "num_speculative_tokens": 3}'},
        {"speculative_config.method": "eagle3", "speculative_config.num_speculative_tokens": 3},
    ],
)
def test_a_folder_and_a_pattern_give_their_arms_from_files_that_name_them(fit, tmp_path, members, place):
    for name, text in swept(**members).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = fitted(tmp_path, place)
    assert done.exit_code == 0, done.exception
    assert "without a known meaning" not in done.stderr
    arms = [(one["method"], one["k"], one["points"]) for one in json.loads(done.stdout)["arms"]]
    assert arms == [("none", 0, 3), ("eagle3", 3, 3)]


@pytest.mark.parametrize(
    ("members", "options", "said"),
    [
        ({}, (), "does not say which arm it measured; expected --method and --k, or members method and k"),
        ({"method": "POST"}, (), "does not say which arm"),
        ({"method": "eagle3", "k": "many"}, (), "method 'eagle3' with k 'many'; expected an arm"),
        (
            {
                "method": "eagle3",
                "k": 3,
                "speculative_config": {"method": "mtp", "num_speculative_tokens": 1},
            },
            (),
            "names eagle3/3 and mtp/1; expected one arm",
        ),
        (
            {"method": "eagle3", "k": 3},
            ("--method", "mtp", "--k", "1"),
            "expected that arm, not mtp/1, as --method and --k",
        ),
    ],
)
def test_a_file_that_names_no_arm_or_two_is_refused(tmp_path, members, options, said):
    (tmp_path / "run.json").write_text(json.dumps(json.loads(results(4)["c4.json"]) | members))
    assert said in str(fitted(tmp_path, "run.json", *options).exception)


def test_a_pattern_without_a_file_is_refused(tmp_path):
    assert "a pattern that no file matches" in str(fitted(tmp_path, "x*.json").exception)
