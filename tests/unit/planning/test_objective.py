"""Limits and what misses them; reason words; what deciding loads."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from breakeven.planning.objective import Policy, Slo, objective_strain
from breakeven.profile import Conditions, LoadPoint
from breakeven.reasons import Reason
from fakes.lawmodel import EAGLE, ArmLaw, chat


def at(rps):
    return chat().predict(EAGLE, rps=rps)


def test_every_missed_limit_is_named_with_both_figures():
    slo = Slo(e2e_s=0.5, ttft_s=1.0, tpot_s=0.005)
    assert slo.missed(at(3)) == ("E2E 609 ms > 500 ms", "TPOT 6.09 ms > 5 ms")
    assert not Slo(e2e_s=1.0).missed(at(3))


def test_a_quantile_is_named_and_a_mean_in_its_place_too():
    slo = Slo(e2e_s=0.5, tpot_s=0.005, quantile=0.95)
    model = chat(eagle=ArmLaw(0.53, 0.0434, p95_over_mean=2.0))
    p95 = model.predict(EAGLE, rps=3, quantile=0.95)
    assert slo.missed(p95) == ("E2E p95 1.22 s > 500 ms", "TPOT p95 12.2 ms > 5 ms")
    assert slo.unmeasured(p95) == ()
    bare = chat()
    mean = bare.predict_along(EAGLE, bare.curve(EAGLE), LoadPoint(rps=3), quantile=0.95)
    assert slo.missed(mean)[1] == "TPOT mean 6.09 ms > 5 ms"
    assert slo.unmeasured(mean)[1] == "p95 of TPOT was not measured: its mean is held against the objective"


def test_what_was_never_measured_is_said_and_held_against_nobody():
    bare = replace(at(3), ttft_s=None)
    slo = Slo(ttft_s=0.001)
    assert (not slo.missed(bare), slo.lacks(bare), slo.lacks(at(3))) == (True, True, False)
    assert slo.unmeasured(bare) == ("TTFT was not measured: nothing is held against its objective",)
    assert Slo(tpot_s=1.0).unmeasured(bare) == ()


def test_a_saturated_arm_keeps_no_promise_and_breaks_none_that_was_not_made():
    assert Slo(tpot_s=10.0).missed(at(60)) == ("saturated",)
    assert not Slo().missed(at(60))
    assert not Slo().is_set


@pytest.mark.parametrize(
    "change", [{"e2e_s": 0.0}, {"tpot_s": -1.0}, {"ttft_s": math.nan}, {"quantile": 1.0}]
)
def test_impossible_limits_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Slo(**change)


def test_an_arm_strains_an_objective_by_what_a_lone_request_takes_where_nothing_else_is_in_flight():
    profile = chat()
    curve = profile.curve(EAGLE, Conditions())
    strain = objective_strain(profile, EAGLE, curve, Slo(tpot_s=0.0053))
    assert strain.at(np.array([0.0]), np.ones((1, 2))) == pytest.approx(np.ones((1, 1)))


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_gain", -0.1), ("day_risk", math.nan), ("roll_seconds", math.inf), ("roll_away_share", 1.5), ("horizon_s", 0.0)],
)  # fmt: skip
def test_an_impossible_policy_is_refused(name, value):
    with pytest.raises(ValueError, match=name):
        Policy(**{name: value})


def test_reason_words_are_camel_case_unique_and_explained():
    words = [reason.value for reason in Reason]
    assert len(set(words)) == len(words)
    for reason in Reason:
        assert reason.value.isalnum()
        assert reason.value[0].isupper()
        assert reason.meaning.endswith(".")
        assert "\n" not in reason.meaning
        assert Reason(reason.value) is reason  # type: ignore[call-arg]  # looks up, makes none


def test_deciding_never_loads_scipy():
    """The operator lives for months; scipy would be 40 MB of it."""
    code = (
        "import sys; from fakes.lawmodel import chat, EAGLE; from breakeven.deciding import *; "
        "from breakeven import profile; from breakeven.laws import acceptance_numbers, step_law; "
        "sentence(Decisions(chat(), [EAGLE], Policy()).at(Load(3.0, 60, 100, tokens_per_step=2.0), DecisionMemory(EAGLE), 0.0)); "
        "sys.exit('scipy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": "tests"})
