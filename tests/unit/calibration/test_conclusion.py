"""From the fit to a profile, or to the reason why there is none."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from breakeven.fitting.profiles import fit_points, points_of
from breakeven.profile import ArmFit, Profile
from breakeven.profile.document import HIDDEN_PROMPTS
from breakeven.profile.fits import Excluded, MeasuredRange, Measurement
from breakeven.profile.step_fit import ArmStarts, EngineStarts
from breakeven_operator import calibration
from breakeven_operator.actions import FitOutcome
from breakeven_operator.cluster.cluster_objects import file_profile
from breakeven_operator.resources.candidates import Candidates
from breakeven_operator.resources.speculationprofile import SpeculationProfile

LAWS = {"none": (1.2, 0.070), "eagle/2": (0.92, 0.072), "eagle/7": (0.78, 0.085)}


def fit(name: str) -> ArmFit:
    method, _, k = name.partition("/")
    c1_s, c2_s = LAWS[name]
    return ArmFit(
        method="eagle3" if k else "none",
        k=int(k or 0),
        candidate=method if k else None,
        c1_s=c1_s,
        c1_ci_s=(0.97 * c1_s, 1.03 * c1_s),
        c2_s=c2_s,
        c2_ci_s=(0.97 * c2_s, 1.03 * c2_s),
        saturation_rps=1 / c2_s,
        points=7,
        max_relative_error=0.041,
        measured_range=MeasuredRange((0.5, 0.9 / c2_s), (0.5, 30.0)),
        measurements=tuple(
            Measurement(row, "points.csv", "poisson", n, n, n / (c1_s + n * c2_s), c1_s + n * c2_s)
            for row, n in enumerate((0.5, 2.0, 5.0, 10.0, 30.0, 60.0, 90.0), start=2)
        ),
    )


def lawful(*arms: ArmFit) -> Profile:
    """The arms with the law of steps of their rows."""
    found = Profile(0.9, arms)
    return replace(found, steps=fit_points(points_of(found)).steps)


def outcome(*arms: ArmFit) -> FitOutcome:
    return FitOutcome(lawful(*arms).to_json(), None)


@pytest.fixture
def fitting(world):
    world.turn()
    world.turn()
    for _ in range(3):
        world.measure_arm()
        world.turn()
    world.second_starts()
    assert world.status["phase"] == "Fitting"
    return world


def test_a_run_says_that_its_rows_hide_what_prompts_cost(fitting):
    profile = replace(lawful(*map(fit, LAWS)), warnings=(HIDDEN_PROMPTS,))
    fitting.do(calibration.conclude(fitting.view(), FitOutcome(profile.to_json(), None), fitting.now))
    assert fitting.status["message"] == f"3 arms, 21 points, worst residual 4.1 %; {HIDDEN_PROMPTS}"


def test_a_fit_becomes_a_profile(fitting):
    fitting.do(calibration.conclude(fitting.view(), outcome(*map(fit, LAWS)), fitting.now))
    status = fitting.status
    assert (status["phase"], status["reason"]) == ("Succeeded", "CalibrationSucceeded")
    assert status["profileRef"] == {"name": "chat-7f3c2"}
    assert status["message"] == "3 arms, 21 points, worst residual 4.1 %"
    # Of both arms eagle/2 pays longer: until 12.73 rps, not 8.86.
    shown = status["display"]["breakEven"]
    assert shown.startswith("12.7 [")
    assert shown.endswith("] rps (eagle/2)")
    assert not fitting.said[-1].warning
    (manifest,) = fitting.profiles
    profile = SpeculationProfile.read(manifest, "profile")
    assert profile.spec.fingerprint == fitting.fingerprint
    assert profile.spec.gpu_product == "NVIDIA-A100-SXM4-80GB"
    assert profile.spec.model == "Qwen/Qwen3-8B"
    by_name = {arm.arm: arm for arm in profile.spec.arms}
    assert math.isclose(by_name["eagle/7"].break_even_rps, 8.86, abs_tol=0.05)
    assert by_name["none"].break_even_rps is None
    (method,) = Candidates.read(fitting.service["spec"]["candidates"], "candidates").methods
    assert {name: arm.drafter for name, arm in by_name.items()} == {
        "none": None,
        "eagle/2": method.drafter,
        "eagle/7": method.drafter,
    }, "what was measured under a name is this drafter"
    assert Profile.from_json(profile.spec.profile).arms[0].c1_s == 1.2
    assert "ownerReferences" not in manifest["metadata"], "it outlives the service, which may be made again"


def test_a_stored_profile_has_ten_digits_of_each_figure_and_predicts_the_same(fitting):
    whole = lawful(*map(fit, LAWS))
    fitting.do(calibration.conclude(fitting.view(), FitOutcome(whole.to_json(), None), fitting.now))
    text = SpeculationProfile.read(fitting.profiles[0], "profile").spec.profile
    digits = [
        len(re.sub(r"e.*|[-.]", "", one).lstrip("0")) for one in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text)
    ]
    assert max(digits) == 10, "43 arms at 20 loads do not fit into an object with all their digits"
    for arm in (one.arm for one in whole.arms):
        was, now = whole.predict(arm, rps=5.0), Profile.from_json(text).predict(arm, rps=5.0)
        assert now.latency_ci_s == pytest.approx(was.latency_ci_s, rel=1e-7)


def test_starts_that_differ_and_a_machine_that_drifts_are_events_with_their_words(fitting):
    profile = lawful(*map(fit, LAWS))
    assert profile.steps is not None
    arms = (
        ArmStarts(2, apart=0.05, apart_error=0.01),
        ArmStarts(1, drift=-0.06, drift_error=0.01),
        ArmStarts(1),
    )
    starts = EngineStarts(0.02, 1, arms)
    found = FitOutcome(replace(profile, steps=replace(profile.steps, starts=starts)).to_json(), None)
    fitting.do(calibration.conclude(fitting.view(), found, fitting.now))
    assert fitting.status["phase"] == "Succeeded"
    said = {one.reason: one.message for one in fitting.said if one.warning}
    assert said["StartsDiffer"].startswith("none: 2 starts of its engine differ by 5.1%")
    assert said["MachineDrifts"].startswith("eagle/2: the same load took 5.8% less long at the end")


def unusable(name: str) -> ArmFit:
    """An arm of whose points none is usable."""
    excluded = (Excluded(2, "NotSteady"), Excluded(3, "NotSteady"), Excluded(4, "PointTooShort"))
    return replace(fit(name), points=0, measurements=(), excluded=excluded, c1_s=None, c2_s=None)


def test_an_arm_without_a_usable_point_stands_in_the_profile_with_the_word(fitting):
    fitting.do(
        calibration.conclude(
            fitting.view(), outcome(fit("none"), fit("eagle/2"), unusable("eagle/7")), fitting.now
        )
    )
    assert fitting.status["phase"] == "Succeeded"
    assert "without eagle/7 (TooFewPoints)" in fitting.status["message"]
    shown = {arm["arm"]: arm for arm in fitting.profiles[0]["spec"]["arms"]}
    assert (shown["eagle/7"]["points"], shown["eagle/7"]["reason"]) == (0, "TooFewPoints")


def test_an_arm_that_left_no_point_stands_in_the_profile_with_its_reason(fitting):
    """Without it the arm would count as never measured, and every interval would bring another calibration."""
    fitting.run["status"]["armStatuses"][2] |= {"phase": "Failed", "reason": "EngineOutOfMemory"}
    fitting.do(calibration.conclude(fitting.view(), outcome(fit("none"), fit("eagle/2")), fitting.now))
    assert "without eagle/7 (EngineOutOfMemory)" in fitting.status["message"]
    (manifest,) = fitting.profiles
    entry = file_profile(
        manifest | {"metadata": manifest["metadata"] | {"uid": "p", "creationTimestamp": None}}
    )
    assert entry.arms == {"none", "eagle/2", "eagle/7"}
    assert entry.failed == {"eagle/7": "EngineOutOfMemory"}


def test_a_profile_that_is_dated_ahead_is_as_old_as_its_object(fitting):
    """Else who may write profiles keeps one in force for ever."""
    fitting.do(calibration.conclude(fitting.view(), outcome(*map(fit, LAWS)), fitting.now))
    (manifest,) = fitting.profiles
    made = manifest["metadata"] | {"uid": "p", "creationTimestamp": "2026-12-01T00:00:00Z"}
    dated = manifest | {"metadata": made, "spec": manifest["spec"] | {"createdTime": "2099-01-01T00:00:00Z"}}
    assert file_profile(dated).created.year == 2026


@pytest.mark.parametrize("lost", ["no speculation", "speculation"])
def test_without_something_to_compare_the_fit_is_rejected(fitting, lost):
    arms = {
        "no speculation": (unusable("none"), fit("eagle/2"), fit("eagle/7")),
        "speculation": (fit("none"), unusable("eagle/2")),
    }[lost]
    fitting.do(calibration.conclude(fitting.view(), outcome(*arms), fitting.now))
    assert (fitting.status["phase"], fitting.status["reason"]) == ("Failed", "FitRejected")
    named = "no speculation" if lost == "no speculation" else "eagle/2"
    assert fitting.status["message"] == f"no usable point of {lost}; {named}: NotSteady, PointTooShort"
    assert not fitting.profiles


def test_a_document_that_is_no_profile_is_refused(fitting):
    fitting.do(calibration.conclude(fitting.view(), FitOutcome(json.dumps({"arms": []}), None), fitting.now))
    assert (fitting.status["phase"], fitting.status["reason"]) == ("Failed", "FitRejected")
    assert fitting.status["message"].startswith("fit of ")


def test_a_late_outcome_changes_nothing(fitting):
    fitting.run["status"]["phase"] = "Superseded"
    assert calibration.conclude(fitting.view(), outcome(*map(fit, LAWS)), fitting.now) == ()


def test_an_unpredicted_break_even_is_not_a_figure(fitting):
    beyond = fit("eagle/2")
    close = lawful(fit("none"), beyond).compare(beyond.arm, rps=0.0)
    assert close.break_even_rps is not None
    rows = tuple(replace(row, latency_s=0.92 + 0.05 * row.others) for row in beyond.measurements)
    always = replace(beyond, c2_s=0.05, measurements=rows)
    fitting.do(calibration.conclude(fitting.view(), outcome(fit("none"), always), fitting.now))
    assert fitting.status["display"]["breakEven"] == "always"
