"""Results of other load generators as the source of a run: read, judged and kept like any other."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.fitting import fit_points
from breakeven.profile import Profile
from breakeven.readers.reading import read_text
from breakeven_operator import calibration
from breakeven_operator.actions import FitOutcome
from breakeven_operator.resources import CalibrationRun
from fakes.calibration_world import RUN

MARKER = "xyzzy-not-for-logs"
GUIDELLM = Path(__file__).parents[2] / "golden" / "data" / "guidellm_0.8.1_engine_sim.json"


def bench(rps: float, c1_s: float, c2_s: float, **changes) -> str:
    """One result of `vllm bench serve` on an engine that obeys a law."""
    latency_ms = 1e3 * c1_s / (1 - rps * c2_s)
    result = {
        "completed": 200,
        "failed": 0,
        "request_throughput": rps,
        "request_rate": rps,
        "burstiness": 1.0,
        "total_input_tokens": 200 * 64,
        "total_output_tokens": 200 * 32,
        "mean_e2el_ms": latency_ms,
        "model_id": "Qwen/Qwen3-8B",
        # Keys that `--save-detailed` adds.
        "generated_texts": [MARKER],
        "input_lens": [64],
    }
    return json.dumps(result | changes)


def results(c1_s: float, c2_s: float, **changes) -> str:
    """Several of them in one file, as `--append-result` writes them."""
    return "\n".join(bench(share / c2_s, c1_s, c2_s, **changes) for share in (0.05, 0.2, 0.35, 0.5, 0.6, 0.7))


@pytest.fixture
def importing(world):
    world.run["spec"]["importFrom"] = [
        {"arm": "none", "configMap": {"name": "sweeps", "keys": ["none.json"]}},
        {"arm": "eagle/2", "configMap": {"name": "sweeps", "keys": ["eagle.json"]}},
    ]
    world.config_maps["sweeps"] = {
        "data": {"none.json": results(1.0, 0.05), "eagle.json": results(0.6, 0.055)}
    }
    return world


def everything(world):
    return json.dumps([world.status, world.jobs, world.profiles, [str(event) for event in world.said]])


def refused(world):
    world.turn()
    assert world.status["phase"] == "Failed"
    assert not world.jobs
    assert "points" not in world.status
    assert MARKER not in everything(world)
    return world.status["reason"], world.status["message"]


def conclude(world):
    fit = world.fits[-1]
    outcome = FitOutcome(fit_points(read_text(fit.points_csv, "points")).to_json(), None)
    world.do(calibration.conclude(world.view(), outcome, world.now))


def test_imported_results_become_a_profile_without_a_pod(importing):
    status = importing.turn()
    assert [(arm["arm"], arm["phase"]) for arm in status["armStatuses"]] == [
        ("none", "Done"),
        ("eagle/2", "Done"),
    ]
    assert len(status["points"]) == 12, "they are durable before the fit"
    assert (status["plan"]["promptTokens"], status["plan"]["outputTokens"]) == (64, 32)
    importing.config_maps.clear()
    importing.turn()
    assert importing.status["phase"] == "Fitting"
    conclude(importing)
    assert importing.status["phase"] == "Succeeded"
    assert importing.most_jobs == 0
    (profile,) = importing.profiles
    arms = {arm["arm"]: arm for arm in profile["spec"]["arms"]}
    fitted = Profile.from_json(profile["spec"]["profile"])
    assert fitted.arm(NO_SPECULATION).c1_s == pytest.approx(1.0, rel=0.02)
    assert fitted.arm(Arm("eagle3", 2, "eagle")).c2_s == pytest.approx(0.055, rel=0.02)
    assert arms["eagle/2"]["points"]
    assert MARKER not in everything(importing)
    assert {point["textSource"] for point in status["points"]} == {"imported results"}


def test_what_obeys_no_law_is_measured_and_its_bounds_promise_nothing(importing):
    wild = "\n".join(
        bench(rps, 1.0, 0.05, mean_e2el_ms=latency_ms)
        for rps, latency_ms in ((1, 900), (4, 5000), (8, 400), (12, 9000), (14, 700))
    )
    importing.config_maps["sweeps"]["data"]["eagle.json"] = wild
    importing.turn()
    importing.turn()
    conclude(importing)
    assert re.search(r"worst residual 1\d\d %$", importing.status["message"])
    shown = {arm["arm"]: arm for arm in importing.profiles[0]["spec"]["arms"]}
    assert shown["eagle/2"]["verdict"] == "Uncertain"


def test_a_guidellm_report_is_read_by_the_reader_of_reports(importing):
    report = GUIDELLM.read_text()
    importing.config_maps["sweeps"]["data"]["none.json"] = report.replace('"demo"', '"chat"')
    status = importing.turn()
    assert status["armStatuses"][0]["phase"] == "Done"
    assert sum(point["arm"] == "none" for point in status["points"]) >= 3


def test_a_guidellm_report_of_another_model_is_refused(importing):
    importing.config_maps["sweeps"]["data"]["none.json"] = GUIDELLM.read_text()
    assert "model 'demo'; expected" in importing.turn()["message"]


def test_one_file_per_rate_makes_one_arm(importing):
    data = importing.config_maps["sweeps"]["data"]
    lines = data.pop("none.json").splitlines()
    data |= {f"none-{number}.json": line for number, line in enumerate(lines)}
    keys = sorted(key for key in data if key.startswith("none-"))
    importing.run["spec"]["importFrom"][0]["configMap"]["keys"] = keys
    status = importing.turn()
    assert status["armStatuses"][0]["message"] == "6 usable points imported"


def test_a_config_map_or_key_that_is_not_there_is_a_word(importing):
    data = importing.config_maps["sweeps"]["data"]
    del data["eagle.json"]
    assert refused(importing) == (
        "InputRefused",
        "importFrom: ConfigMap sweeps has no key eagle.json (1 others)",
    )


@pytest.mark.parametrize(
    ("eagle", "said"),
    [
        ("{", "ConfigMap sweeps, key eagle.json: line 1, column 2: not JSON"),
        (json.dumps({"prompt": MARKER}), "ConfigMap sweeps, key eagle.json"),
        (results(0.6, 0.055, model_id="other/model"), "model 'other/model'; expected Qwen/Qwen3-8B or chat"),
        (
            "method,k,request_rate_rps,mean_latency_s\nnone,0,1,0.5\n",
            "arm none; expected eagle/2 (eagle3, 2)",
        ),
        (
            "method,k,request_rate_rps,mean_latency_s,gpu\neagle3,2,1,0.5,NVIDIA-H100\n",
            "gpu 'NVIDIA-H100'; expected NVIDIA-A100-SXM4-80GB",
        ),
    ],
)
def test_a_file_that_cannot_stand_for_its_arm_is_one_line(importing, eagle, said):
    importing.config_maps["sweeps"]["data"]["eagle.json"] = eagle
    reason, message = refused(importing)
    assert reason == "InputRefused"
    assert said in message
    assert "\n" not in message


def test_a_config_map_that_may_not_be_read_says_which_right_is_missing(importing):
    importing.config_maps.clear()
    reason, message = refused(importing)
    assert (reason, "grant the operator `get` on configmaps" in message) == ("InputRefused", True)


def test_no_usable_point_of_no_speculation_ends_the_run(importing):
    importing.config_maps["sweeps"]["data"]["none.json"] = bench(4, 1.0, 0.05, failed=100)
    importing.turn()
    status = importing.turn()
    assert (status["phase"], status["reason"]) == ("Failed", "InputRefused")
    assert "no usable point among 1 imported" in status["message"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"importFrom": [{"arm": "eagle/2"}]}, "without none"),
        ({"importFrom": [{"arm": "none"}, {"arm": "eagle/5"}]}, "eagle/5 cannot be imported"),
        ({"arms": ["eagle/2"]}, "spec.arms beside spec.importFrom"),
    ],
)
def test_arms_that_cannot_be_imported_are_named(importing, changes, said):
    spec = importing.run["spec"] | changes
    for one in spec["importFrom"]:
        one.setdefault("configMap", {"name": "sweeps", "keys": ["none.json"]})
    importing.run["spec"] = spec
    reason, message = refused(importing)
    assert reason == "InvalidSpec"
    assert said in message


def test_an_arm_is_imported_once():
    run = copy.deepcopy(RUN)
    one = {"arm": "none", "configMap": {"name": "sweeps", "keys": ["a"]}}
    run["spec"]["importFrom"] = [one, one]
    with pytest.raises(InputError, match="is there twice"):
        CalibrationRun.read(run, "run")


def test_yaml_of_more_than_a_mebibyte_is_refused_because_it_takes_seconds(importing):
    """Each file is a report that is read; the cycle of all tenants waits for them."""
    report = f"""version: "0.2"
scenario:
  load: {{standardized: {{rate_qps: 1.0}}, native: {{config: {{load: {{type: poisson}}}}}}}}
results:
  request_performance:
    aggregate:
      latency: {{request_latency: {{units: s, mean: 1.05}}}}
      requests: {{total: 100, failures: 0}}
      throughput: {{requests_rate: {{mean: 1.0}}}}
# {"x" * 200_000}
"""
    data = importing.config_maps["sweeps"]["data"]
    keys = [f"none-{number}.yaml" for number in range(6)]
    data |= dict.fromkeys(keys, report)
    importing.run["spec"]["importFrom"][0]["configMap"]["keys"] = keys
    status = importing.turn()
    assert (status["phase"], status["reason"]) == ("Failed", "InputRefused")
    assert status["message"].endswith("more than 1 MiB of YAML in all; expected JSON, or fewer reports")
