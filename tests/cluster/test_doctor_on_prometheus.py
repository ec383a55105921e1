"""`breakeven doctor` on a real Prometheus that holds what clusters hold: gone pods, old samples, series that ended, failures."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from click.testing import CliRunner

from breakeven.cli import root
from fakes.model_series import RPS, ModelSeries
from operatorcluster.made_up_prometheus import prometheus_of_store

# Product files whose change runs these tests at the next landing.
COVERS = ("tuner/breakeven/cli/doctor.py", "tuner/breakeven/serving/")

# Those whose rate is looked at go on for so long: a test that comes a minute late on a busy machine has a whole window, too.
ON: dict[str, Any] = {"until_s": 300}
PARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "steady": (ON, ON),
    "gone": (ON, {"until_s": -100}),
    "alone": ({"until_s": -60}, {"until_s": -75}),
    "stale": ({}, {"until_s": -150, "marked": False}),
    "ended": ({}, {"ended": {"e2e_request_latency_seconds_sum": -120}}),
    "fails": ({"finished": 0.8, "began": 0.8, "posts": 1.0, "refused": 0.2}, {}),
    "native": ({"native": True, **ON}, {"native": True, **ON}),
    "copied": ({"copies": ("x", "y"), **ON}, {"label": "instance", **ON}),
}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    end_s = int(time.time())
    series = ModelSeries(end_s=end_s)
    for part, pods in PARTS.items():
        for letter, given in zip("ab", pods, strict=True):
            own: dict[str, Any] = {**given}
            if "until_s" in own:
                own["until_s"] += end_s
            if "ended" in own:
                own["ended"] = {name: end_s + at_s for name, at_s in own["ended"].items()}
            series.pod(f"{part}-{letter}", **own)
    with prometheus_of_store(tmp_path_factory.mktemp("prometheus"), series.store) as found:
        yield found


def asked(address, part):
    # One pod of `copied` has no label `pod`, and is not matched.
    given = ["--prometheus", address, "--model", "chat", "--match", f"pod=~{part}-.*", "--json"]
    done = CliRunner().invoke(root, ["doctor", *given], catch_exceptions=False)
    assert done.stderr == ""
    found = json.loads(done.stdout)
    return found, {one["cause"]: one["evidence"] for one in found["findings"]}


@pytest.mark.parametrize(
    ("part", "cause", "evidence"),
    [
        ("steady", None, ""),
        ("native", None, ""),
        ("copied", None, ""),
        ("gone", "PodsGone", "the series of gone-b ended within the window"),
        ("alone", "PodsGone", "(alone-a); no pod of this model has any"),
        ("stale", "SeriesStale", "the newest samples of stale-b are old"),
        ("ended", "SeriesEnded", "vllm:e2e_request_latency_seconds_sum of ended-b ended within the window"),
        ("fails", "RequestsFail", "HTTP requests were answered with 4xx or 5xx"),
    ],
)
def test_doctor_tells_gone_old_ended_and_failing_apart(address, part, cause, evidence):
    found, causes = asked(address, part)
    events = {"PodsGone", "SeriesStale", "SeriesEnded", "SeriesMissing", "RequestsFail", "NoSeries"}
    assert events & causes.keys() == ({cause} if cause else set())
    assert cause is None or evidence in causes[cause]
    if cause in {None, "PodsGone"} and part != "alone":
        assert found["rps"] == pytest.approx(RPS, rel=0.1)


def test_doctor_says_under_which_labels_series_are(address):
    given = ["--prometheus", address, "--model", "chat", "--namespace", "other", "--json"]
    done = CliRunner().invoke(root, ["doctor", *given], catch_exceptions=False)
    assert "namespace='llm' pod='ended-a'" in json.loads(done.stdout)["sentence"]
    wrong = ["--prometheus", address, "--model", "caht", "--json"]
    done = CliRunner().invoke(root, ["doctor", *wrong], catch_exceptions=False)
    assert json.loads(done.stdout)["sentence"].endswith("there are some with model_name='chat'")
