"""`breakeven simulate`: its document, its table, its refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli.simulate import command
from breakeven.errors import BreakevenError
from breakeven.fitting import fit_points
from breakeven.points.point import LoadMode, Point
from breakeven.profile import Profile
from breakeven_sim.engine.costs import parse_costs
from breakeven_sim.replay.fleet_arms import CostArms
from breakeven_sim.replay.measured import measured_profile
from sweeps import closed

DEMO = Path(__file__).parents[2] / "examples" / "engine-costs" / "demo.json"
KEYS = {
    "policy", "requests", "mean_latency_s", "p95_latency_s", "speedup_vs_none", "speedup_vs_oracle", "switches",
    "seconds_below_one", "slo_attainment", "ttft_mean_s", "ttft_p95_s", "tpot_mean_s", "tpot_p95_s",
    "tokens_per_step", "mean_inflight",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    import numpy as np

    folder = tmp_path_factory.mktemp("simulate")
    costs = parse_costs(DEMO.read_text(), "H100", "demo")
    arms = [NO_SPECULATION, Arm("eagle3", 3)]
    profile = measured_profile(CostArms(costs), arms, np.array([40]), np.array([48]), 1)
    (folder / "profile.json").write_text(profile.to_json())
    alone = replace(profile, arms=profile.arms[:1])
    (folder / "none.json").write_text(alone.to_json())
    (folder / "rates.csv").write_text("window_start_s,rate_rps\n0,6\n600,20\n1200,6\n")
    rows = "".join(f"{i * 0.13:.3f},40,{20 + i % 50}\n" for i in range(400))
    (folder / "requests.csv").write_text(f"timestamp_s,prompt_tokens,output_tokens\n{rows}")
    return folder


def run(*arguments: object):
    return CliRunner().invoke(command, [str(a) for a in arguments])


def document(*arguments: object) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("trace", ["rates.csv", "requests.csv"])
def test_a_profile_against_every_policy(files, trace):
    arguments = (
        "--profile",
        files / "profile.json",
        "--trace",
        files / trace,
        "--replicas",
        2,
        "--e2e-slo-s",
        2,
    )
    names = ["breakeven", "none", "schedule", "static:eagle3:3", "oracle", "oracle-free"]
    found = document(*arguments, *(word for name in names for word in ("--policy", name)))
    rows = {row["policy"]: row for row in found["policies"]}
    assert list(rows) == names
    assert all(set(row) == KEYS for row in rows.values())
    assert found["confidence"] == 0.9
    assert rows["none"]["speedup_vs_none"] == rows["oracle"]["speedup_vs_oracle"] == 1.0
    assert rows["none"]["seconds_below_one"] == rows["none"]["switches"] == 0
    assert rows["static:eagle3:3"]["speedup_vs_none"] == pytest.approx(
        rows["none"]["mean_latency_s"] / rows["static:eagle3:3"]["mean_latency_s"]
    )
    assert all(
        row["speedup_vs_oracle"] <= 1.0 for name, row in rows.items() if name in {"none", "static:eagle3:3"}
    )
    assert {row["requests"] for row in rows.values()} == {19200.0 if trace == "rates.csv" else 400}
    assert all(0 <= row["slo_attainment"] <= 1 for row in rows.values())


def slower_drafters(text: str, factor: float) -> str:
    """The profile of a fleet whose drafters take `factor` times as long as those of another profile."""
    laws = {fit.arm: (fit.c1_s, fit.c2_s) for fit in Profile.from_json(text).arms}
    points = [
        Point(
            method=arm.method,
            k=arm.k,
            load_mode=LoadMode.POISSON,
            request_rate_rps=share / c2_s,
            mean_latency_s=(factor if arm.k else 1.0) * c1_s / (1.0 - share),
            output_tokens=48.0,
        )
        for arm, (c1_s, c2_s) in laws.items()
        for share in (0.1, 0.3, 0.5, 0.7)
    ]
    return fit_points(points).to_json()


def test_the_fleet_follows_the_truth_and_decisions_what_is_believed(files, tmp_path):
    truth = tmp_path / "truth.json"
    truth.write_text(slower_drafters((files / "profile.json").read_text(), 2.0))
    (tmp_path / "days.csv").write_text("window_start_s,rate_rps\n0,8\n129600,8\n")
    policies = ("none", "static:eagle3:3", "breakeven")
    given = ("--trace", tmp_path / "days.csv", "--replicas", 2, "--profile", files / "profile.json")
    found, believed = (
        {
            row["policy"]: row
            for row in document(*given, *more, *(word for name in policies for word in ("--policy", name)))[
                "policies"
            ]
        }
        for more in (("--truth", truth), ())
    )
    assert believed["static:eagle3:3"]["speedup_vs_none"] > 1.2
    assert found["static:eagle3:3"]["speedup_vs_none"] < 1.0
    assert found["none"]["mean_latency_s"] == pytest.approx(believed["none"]["mean_latency_s"], rel=0.05)
    # Tried once, and given up when live latency has shown what it is.
    assert believed["breakeven"]["switches"] == 1
    assert found["breakeven"]["switches"] == 2


def test_costs_are_calibrated_first(files):
    found = document(
        "--costs",
        DEMO,
        "--gpu",
        "H100",
        "--trace",
        files / "requests.csv",
        "--policy",
        "static:eagle3:3",
        "--replicas",
        2,
    )
    (row,) = found["policies"]
    assert row["speedup_vs_none"] > 1.2
    assert found["trace"] == {"kind": "requests", "rows": 400, "replicas": 2, "roll_seconds": 2.5}


def test_an_engine_tells_what_latency_consists_of_and_a_law_does_not(files):
    """A prediction at other conditions is compared with the engine part by part."""
    arguments = ("--trace", files / "requests.csv", "--policy", "none", "--policy", "static:eagle3:3")
    by_engine = document("--costs", DEMO, "--arm", "eagle3:3", *arguments)
    for row in by_engine["policies"]:
        mean_tokens = sum(20 + i % 50 for i in range(400)) / 400
        whole_s = row["ttft_mean_s"] + (mean_tokens - 1) * row["tpot_mean_s"]
        assert whole_s == pytest.approx(row["mean_latency_s"], rel=1e-9)
        assert row["ttft_p95_s"] >= row["ttft_mean_s"]
        assert row["mean_inflight"] == pytest.approx(row["mean_latency_s"] / 0.13, rel=0.2)
    none, eagle = by_engine["policies"]
    assert none["tokens_per_step"] == 1.0
    assert 1.5 < eagle["tokens_per_step"] < 4.0
    (by_law,) = document("--profile", files / "profile.json", *arguments[:4])["policies"]
    assert [by_law[name] for name in ("ttft_mean_s", "tpot_p95_s", "tokens_per_step")] == [None] * 3
    assert by_law["mean_inflight"] > 0


def test_a_rate_trace_says_which_limits_it_cannot_judge(files):
    found = document(
        "--profile",
        files / "profile.json",
        "--trace",
        files / "rates.csv",
        "--policy",
        "none",
        "--tpot-slo-s",
        1,
    )
    assert found["policies"][0]["slo_attainment"] is None
    assert found["warnings"] == [
        "a rate trace tells no TTFT and no TPOT of requests: only --e2e-slo-s counts into the SLO share"
    ]


def test_a_constant_rate_gives_the_law(files, tmp_path):
    profile = json.loads((files / "profile.json").read_text())
    fit = next(arm for arm in profile["arms"] if arm["method"] == "eagle3")
    trace = tmp_path / "constant.csv"
    trace.write_text("window_start_s,rate_rps\n0,8\n600,8\n")
    found = document(
        "--profile", files / "profile.json", "--trace", trace, "--replicas", 2, "--policy", "static:eagle3:3"
    )
    assert found["policies"][0]["mean_latency_s"] == pytest.approx(
        fit["c1_s"] / (1 - 4 * fit["c2_s"]), rel=0.02
    )


def test_the_confidence_may_be_changed(files):
    arguments = ("--profile", files / "profile.json", "--trace", files / "rates.csv", "--policy", "breakeven")
    assert document(*arguments, "--confidence", 0.99)["confidence"] == 0.99


def test_default_policies_are_all_but_schedules(files):
    found = document("--profile", files / "profile.json", "--trace", files / "rates.csv")
    names = [row["policy"] for row in found["policies"]]
    assert names == ["breakeven", "none", "static:eagle3:3", "oracle", "oracle-free"]
    assert found["decisions"]


@pytest.mark.parametrize("engine", ["--profile", "--costs"])
def test_a_schedule_is_named_as_an_arm_and_as_a_static_policy(files, engine):
    given = {
        "--profile": ("--profile", files / "profile.json"),
        "--costs": ("--costs", DEMO, "--gpu", "H100"),
    }
    base = (*given[engine], "--trace", files / "rates.csv", "--replicas", 2)
    rows = {
        row["policy"]: row["mean_latency_s"]
        for row in document(*base, "--arm", "eagle3:3", "--arm", "eagle3:schedule")["policies"]
    }
    names = ["breakeven", "none", "static:eagle3:3", "static:eagle3:schedule", "oracle", "oracle-free"]
    assert list(rows) == names
    assert rows["oracle"] <= min(rows[name] for name in names[1:4])
    # Named by a static policy it is a candidate, too.
    (alone,) = document(*base, "--policy", "static:eagle3:schedule")["policies"]
    assert alone["speedup_vs_oracle"] <= 1.0


def test_acceptance_may_be_imposed_or_recorded(files, tmp_path):
    base = ("--trace", files / "requests.csv", "--policy", "static:eagle3:3", "--replicas", 2)
    costs = ("--costs", DEMO, "--gpu", "H100")
    profile = ("--profile", files / "profile.json")

    def speedup(*arguments):
        return document(*arguments)["policies"][0]["speedup_vs_none"]

    measured, hopeless = speedup(*base, *costs), speedup(*base, *costs, "--alpha", 0)
    assert hopeless < 0.9 < measured
    assert speedup(*base, *profile, "--alpha", 0.0) < 0.9
    assert speedup(*base, *profile, "--tokens-per-step", 4) > speedup(*base, *profile)
    recorded = tmp_path / "recorded.jsonl"
    recorded.write_text('{"acc_eagle": [4, 3, 2, 1]}\n')
    assert speedup(*base, *costs, "--acceptance", recorded) > 1.5


def test_the_table_says_what_the_document_says(files):
    result = run("--profile", files / "profile.json", "--trace", files / "rates.csv", "--policy", "none")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].split() == (
        [
            "policy",
            "requests",
            "mean",
            "s",
            "p95",
            "s",
            "vs",
            "none",
            "vs",
            "oracle",
            "switches",
            "slower",
            "than",
            "none",
            "s",
            "SLO",
            "kept",
        ]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "{files}/absent.csv", "--profile", "{files}/profile.json"], "No such file"),
        (["--trace", "{files}/rates.csv", "--profile", "{files}/rates.csv"], "rates.csv"),
        (["--trace", "{files}/rates.csv", "--profile", "{files}/profile.json", "--policy", "best"], "--policy best: unknown"),
        (["--trace", "{files}/rates.csv", "--profile", "{files}/profile.json", "--policy", "static:ngram:2"], "ngram"),
        (["--trace", "{files}/rates.csv", "--profile", "{files}/profile.json", "--truth", "{files}/none.json"], "none.json: no law for eagle3/3"),
        (["--trace", "{files}/rates.csv", "--profile", "{files}/profile.json", "--arm", "ngram:schedule"], "schedule of ngram: no measured arm"),
        (["--trace", "{files}/rates.csv", "--profile", "{files}/profile.json", "--policy", "static:eagle3:table"], "static:METHOD:schedule"),
        (["--trace", "{files}/rates.csv", "--costs", "{{}}"], "--costs: step: is missing"),
        (["--trace", "{files}/rates.csv", "--costs", str(DEMO), "--gpu", "L4"], "no entries fit GPU 'L4'"),
        (["--trace", "{files}/rates.csv", "--costs", str(DEMO), "--gpu", "H100", "--policy", "static:suffix:2"], "no entry for method suffix"),
    ],
)  # fmt: skip
def test_wrong_inputs_get_one_line(files, arguments, message):
    result = run(*(word.format(files=files) for word in arguments), "--json")
    assert isinstance(result.exception, BreakevenError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
    assert not result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --profile or --costs"),
        (["--profile", "p", "--costs", "{}"], "give either --profile or --costs"),
        (["--profile", "{files}/profile.json", "--acceptance", "a.jsonl"], "--acceptance belongs to --costs"),
        (["--costs", str(DEMO), "--tokens-per-step", "2"], "--tokens-per-step belongs to --profile"),
        (["--costs", str(DEMO), "--truth", "p"], "--truth belongs to --profile"),
        (
            ["--profile", "{files}/profile.json", "--arm", "eagle3:schedule", "--tokens-per-step", "2"],
            "one draft length",
        ),
        (["--profile", "p", "--replicas", "0"], "0 is not in the range"),
    ],
)
def test_wrong_usage_exits_with_2(files, arguments, message):
    arguments = [word.replace("{files}", str(files)) for word in arguments]
    result = run("--trace", files / "rates.csv", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_tail_above_a_mean_that_begins_at_0_is_replayed(tmp_path):
    """Two clients and more, and rows whose line meets a lone request below 0, which the tail's does not."""
    rows = [
        closed("none", 0, latency_s, 0.0, clients=[clients], first_row=clients, p95_latency_s=latency_s + 0.2)
        for clients, latency_s in ((2, 0.01), (4, 0.15), (8, 0.43), (16, 0.99), (32, 2.11))
    ]
    points = [*(one for (one,) in rows), *closed("eagle3", 3, 0.8, 0.085, clients=[2, 4, 8, 16, 32])]
    profile = fit_points(points)
    assert profile.arms[0].quantiles["0.95"].c1_s > 0.1
    (tmp_path / "profile.json").write_text(profile.to_json())
    (tmp_path / "rates.csv").write_text("window_start_s,rate_rps\n0,1\n300,2\n600,1\n")
    found = document(
        "--profile", tmp_path / "profile.json", "--trace", tmp_path / "rates.csv", "--policy", "none"
    )
    assert found["policies"][0]["p95_latency_s"] > found["policies"][0]["mean_latency_s"]
