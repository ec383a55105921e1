"""`fit`, `predict` and `plan` from the outside: their JSON, their files, and what wrong input gets.

The documents under data/ were written by the commands themselves and read by a person; figures are compared to one
part in a million, keys exactly.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from golden.documents import DATA, breakeven, same

PLAN = [
    "plan",
    "points.csv",
    "--rps",
    "6",
    "--rps-range",
    "0.5",
    "13",
    "--tpot-slo-s",
    "0.0075",
    "--draft-lengths",
    "2",
]
PREDICT = ["predict", "points.csv", "--method", "eagle3", "--k", "3", "--rps", "4", "--tokens-per-step", "2"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("fit", ["fit", "points.csv", "-o", "{out}"]), ("predict", PREDICT), ("plan", PLAN)],
)
def test_the_json_is_the_golden_one(name: str, arguments: list[str], tmp_path: Path) -> None:
    done = breakeven(*(part.format(out=tmp_path / "p.json") for part in arguments), "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    same(json.loads(done.stdout), json.loads((DATA / f"{name}.json").read_text()))


def test_a_profile_gives_what_its_points_give(tmp_path: Path) -> None:
    assert breakeven("fit", "points.csv", "-o", str(tmp_path / "p.json")).returncode == 0
    for arguments, name in ((PREDICT, "predict"), (PLAN, "plan")):
        again = [str(tmp_path / "p.json") if part == "points.csv" else part for part in arguments]
        same(json.loads(breakeven(*again, "--json").stdout), json.loads((DATA / f"{name}.json").read_text()))


def test_tables_say_it_for_people_with_units_bounds_and_warnings_last() -> None:
    lines = breakeven(*PLAN).stdout.splitlines()
    assert lines[0].startswith("at 6 rps per replica (Poisson arrivals): eagle3/2 is best, 1.")
    header = next(line for line in lines if line.startswith("arm"))
    assert header.split()[:3] == ["arm", "latency", "s"]
    marked = [number for number, line in enumerate(lines) if line.startswith("!")]
    assert all(line.startswith(("!", "  ")) for line in lines[marked[0] :])
    assert "* derived from the method's other draft lengths, not measured" in lines
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if line != line.rstrip()] == []


def test_plan_says_for_which_arrivals_it_speaks_and_bursts_widen_what_it_says(tmp_path: Path) -> None:
    # Gamma gaps of cv 4 at 6 rps: a shape of 1/16, some thousand spans of a lone request; the seed was taken as it came.
    gaps = np.random.default_rng(1).gamma(1.0 / 16.0, 16.0 / 6.0, 20_000)
    (tmp_path / "requests.csv").write_text("timestamp_s\n" + "\n".join(f"{at:.6f}" for at in gaps.cumsum()))
    at_six = ["plan", "points.csv", "--rps", "6", "--json"]
    poisson, bursty, measured = (
        json.loads(breakeven(*at_six, *more).stdout)
        for more in ((), ("--dispersion", "12"), ("--arrivals", str(tmp_path / "requests.csv")))
    )
    assert (poisson["dispersion"], bursty["dispersion"]) == (1.0, 12.0)
    assert 8.0 < measured["dispersion"] < 16.0
    for document in (bursty, measured):
        speedups = [next(arm for arm in one["arms"] if arm["k"] == 3) for one in (poisson, document)]
        (before, after), (tight, wide) = (
            [one["speedup"] for one in speedups],
            [one["speedup_ci"][1] - one["speedup_ci"][0] for one in speedups],
        )
        assert after < before
        assert wide > 1.5 * tight
    words = breakeven(*at_six[:-1], "--dispersion", "12").stdout
    assert words.startswith("at 6 rps per replica (arrivals of dispersion 12.0): ")


def test_request_times_that_are_too_few_or_rates_tell_no_dispersion(tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text("timestamp_s\n0\n1\n2\n")
    done = breakeven("plan", "points.csv", "--rps", "1", "--arrivals", str(tmp_path / "few.csv"))
    assert done.returncode == 1
    assert "few.csv: 3 requests in 2 s; expected more than 20 times" in done.stderr
    (tmp_path / "rates.csv").write_text("window_start_s,rate_rps\n0,1\n60,2\n120,1\n")
    done = breakeven("plan", "points.csv", "--rps", "1", "--arrivals", str(tmp_path / "rates.csv"))
    assert done.returncode == 1
    assert "rates.csv: rates of windows; expected a moment for each request" in done.stderr


HEADER = "method,k,concurrency,mean_latency_s\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (HEADER + "none,0,1,1.2\nnone,0,8,fast\n", ["row 2 (line 3)", "column mean_latency_s", "seconds"]),
        ("method,k,mean_latency_s\nnone,0,1.2\n", ["concurrency and request_rate_rps"]),
        (
            "method,k,concurrency,mean_latency_s,gpu\nnone,0,1,1,A100\nnone,0,8,2,H100\n",
            ["column gpu", "--where", "--group-by"],
        ),
        ("{}", ["JSON of no known kind"]),
    ],
)
@pytest.mark.parametrize("command", ["fit", "predict", "plan"])
def test_wrong_points_are_refused_in_one_line_and_nothing_is_written(
    command: str, text: str, names: list[str], tmp_path: Path
) -> None:
    (tmp_path / "wrong.csv").write_text(text)
    arguments = {
        "fit": ["fit", "wrong.csv", "-o", "p.json"],
        "predict": ["predict", "wrong.csv", "--method", "none", "--rps", "1"],
        "plan": ["plan", "wrong.csv", "--rps", "1"],
    }[command]
    done = breakeven(*arguments, "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    if text != "{}" or command == "fit":
        assert line.startswith("breakeven: wrong.csv")
        assert all(name in line for name in names), line
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.csv"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["fit", "absent.csv", "-o", "p.json"], 1, "absent.csv: no such file"),
        (["fit", "points.csv"], 2, "--output"),
        (["fit", "points.csv", "-o", "/nowhere/p.json"], 1, "no such folder"),
        (["fit", "points.csv", "-o", "p.json", "--where", "gpu"], 2, "COLUMN=VALUE"),
        (["fit", "points.csv", "-o", "p.json", "--where", "gpu=H100"], 1, "no such row"),
        (["fit", "points.csv", "-o", "p.json", "--group-by", "gpu"], 1, "--group-by gpu"),
        (["fit", "points.csv", "-o", "p.json", "--k", "3"], 2, "--k without --method"),
        (["predict", "points.csv", "--method", "none"], 2, "--rps"),
        (["predict", "points.csv", "--method", "none", "--rps", "1", "--concurrency", "1"], 2, "--rps"),
        (["predict", "points.csv", "--method", "none", "--k", "3", "--rps", "1"], 2, "method none"),
        (
            [
                "predict",
                "points.csv",
                "--method",
                "eagle3",
                "--k",
                "3",
                "--rps",
                "1",
                "--tokens-per-step",
                "5",
            ],
            1,
            "k + 1",
        ),
        (["predict", "points.csv", "--method", "medusa", "--k", "3", "--rps", "1"], 1, "measured arms"),
        (["predict", "points.csv", "--method", "none", "--rps", "1", "--quantile", "0.9"], 1, "0.95"),
        (["plan", "points.csv"], 2, "--rps"),
        (["plan", "points.csv", "--rps", "1", "--rps-range", "5", "2"], 2, "no range"),
        (["plan", "points.csv", "--rps", "1", "--draft-lengths", "many"], 2, "draft lengths"),
        (
            ["plan", "points.csv", "--rps", "1", "--tokens-per-step", "ngram/3=2"],
            1,
            "measured speculative arm",
        ),
        (["plan", "points.csv", "--rps", "1", "--per-position", "0.2,0.9"], 1, "never rise"),
        (
            ["plan", "points.csv", "--concurrency", "2", "--dispersion", "4"],
            2,
            "clients ask when they are answered",
        ),
        (
            ["plan", "points.csv", "--rps", "1", "--dispersion", "4", "--arrivals", "points.csv"],
            2,
            "give one",
        ),
        (["plan", "points.csv", "--rps", "1", "--arrivals", "points.csv"], 1, "points.csv: row 1"),
        (["plan", "fit.json", "--rps", "1"], 1, "breakeven fit"),
        (["fit", "points.csv", "-o", "points.csv"], 1, "one of the points files; expected another file"),
        (["fit", "points.csv", "-o", "."], 1, ".: a folder; expected a file to write"),
        (
            ["fit", "points.csv", "--method", "none", "--method", "ngram", "-o", "p.json"],
            2,
            "once for each JSON file",
        ),
        (["predict", "points.csv", "--method", "none", "--rps", "nan"], 2, "not a finite number"),
    ],
)
def test_wrong_usage_and_impossible_questions(arguments: list[str], code: int, says: str) -> None:
    done = breakeven(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (DATA / "p.json").exists()


def test_a_number_of_tokens_that_no_step_of_an_arm_has_is_said_and_bounded() -> None:
    done, most = (
        breakeven(
            "plan", "points.csv", "--rps", "6", *(f"--tokens-per-step={one}" for one in given), "--json"
        )
        for given in (["50"], ["eagle3/1=2", "eagle3/3=4"])
    )
    said = "! --tokens-per-step 50: more than k + 1 of eagle3/1, eagle3/3; k + 1 is taken there\n"
    assert (done.stdout, done.stderr, most.stderr) == (most.stdout, said, "")


def test_group_by_writes_one_profile_per_value(tmp_path: Path) -> None:
    rows = [
        f"none,0,{c},{1 + c * cost},{work}"
        for work, cost in (("chat", 0.1), ("code", 0.2))
        for c in (1, 8, 32)
    ]
    (tmp_path / "p.csv").write_text("method,k,concurrency,mean_latency_s,workload\n" + "\n".join(rows) + "\n")
    done = breakeven("fit", "p.csv", "-o", "all.json", "--group-by", "workload", "--json", cwd=tmp_path)
    groups = json.loads(done.stdout)["groups"]
    assert [group["workload"] for group in groups] == ["chat", "code"]
    assert groups[1]["arms"][0]["c2_s"] == pytest.approx(0.2, rel=0.02)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["all-chat.json", "all-code.json"]


def test_objectives_are_about_the_quantile_asked_for_and_say_where_only_a_mean_is_known(
    tmp_path: Path,
) -> None:
    lines = [
        "method,k,concurrency,mean_latency_s,ttft_mean_s,ttft_p95_s,tpot_mean_s,tpot_p95_s,output_tokens"
    ]
    lines += [
        f"none,0,{c},{1.1 + 0.07 * c},0.1,0.2,{0.005 + 0.0003 * c},{0.006 + 0.0004 * c},201"
        for c in (1, 8, 32)
    ]
    lines += [f"eagle3,3,{c},{0.7 + 0.08 * c},0.1,0.2,{0.003 + 0.0004 * c},,201" for c in (1, 8, 32)]
    (tmp_path / "p.csv").write_text("\n".join(lines))
    objectives = ["--tpot-slo-s", "0.0085", "--ttft-slo-s", "0.21"]
    load = ["plan", "p.csv", "--concurrency", "8"]
    document = json.loads(breakeven(*load, *objectives, "--quantile", "0.95", "--json", cwd=tmp_path).stdout)
    none, eagle = document["arms"]
    assert (none["meets_slo"], eagle["meets_slo"]) == (False, True)
    assert none["at_quantile"]["tpot_s"] == pytest.approx(0.0092)
    assert (none["tpot_s"], eagle["at_quantile"]["means"]) == (pytest.approx(0.0074), ["latency_s", "tpot_s"])
    # 0.0085 s is reached with 5.25 others in flight.
    assert none["capacity_rps"] == pytest.approx(5.25 / (1.17 + 0.07 * 5.25), rel=0.03)
    assert document["warnings"] == [
        "eagle3/3: p95 of TPOT was not measured: its mean is held against the objective"
    ]
    means = json.loads(breakeven(*load, *objectives, "--json", cwd=tmp_path).stdout)
    assert [one["meets_slo"] for one in means["arms"]] == [True, True]
    assert (means["quantile"], means["arms"][0]["at_quantile"], means["warnings"]) == (None, None, [])
