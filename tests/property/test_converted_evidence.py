"""Evidence of live latency about an arm, after acceptance or lengths have changed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.deciding import Decisions
from breakeven.planning.decision_memory import DecisionMemory, Evidence
from breakeven.planning.learned_laws import FittedLaw, converted, learned, slowdown
from breakeven.planning.objective import Policy, Slo
from breakeven.profile import Conditions, Profile
from breakeven.serving.counted_window import Load
from draws import draws
from fakes.lawful_profile import lawful_profile_json
from fakes.straight_curve import Law, straight_curve

EAGLE = Arm("eagle3", 3, "eagle")
# 1.58x at 3 rps; prompts and context cost nothing, so that latencies are converted with 1/E.
LAWS = {NO_SPECULATION: (1.0, 0.05), EAGLE: (0.62, 0.055)}
POLICY = Policy(
    min_gain=0.03,
    cooldown_s=600.0,
    dwell_s=60.0,
    horizon_s=14400.0,
    lookback_s=0.0,
    roll_seconds=120.0,
    roll_away_share=0.0,
    slo=Slo(),
)
RPS, CYCLE_S = 3.0, 150.0


@pytest.fixture(scope="module")
def profile() -> Profile:
    return Profile.from_json(
        lawful_profile_json(
            LAWS,
            {NO_SPECULATION: 1.0, EAGLE: 2.5},
            prompt_tokens=200.0,
            output_tokens=100.0,
            gpu="A100",
        )
    )


def arm_after(profile: Profile, e: float, slower: float) -> Arm:
    """The arm in place after two hours as calibrated, and one and a half at another acceptance and so much slower requests."""
    promised_s = profile.predict(EAGLE, rps=RPS).latency_s
    assert promised_s is not None
    memory, now_s = DecisionMemory(EAGLE, last_switch_s=0.0), 1e6
    for step in range(84):
        changed = step >= 48
        latency_s = promised_s * (slower if changed else 1.0)
        load = Load(
            rps=RPS,
            window_s=300.0,
            requests=300.0 * RPS,
            inflight=RPS * latency_s,
            latency_s=latency_s,
            tokens_per_step=e if changed else 2.5,
            prompt_tokens=200.0,
            output_tokens=100.0,
        )
        decision = Decisions(profile, [EAGLE], POLICY).at(load, memory, now_s)
        memory, now_s = decision.memory, now_s + CYCLE_S
        if decision.arm != EAGLE:
            break
    return decision.arm


@pytest.mark.parametrize(("e", "slower"), [(1.5, 1.0), (1.5, 1.1), (1.25, 1.0)])
def test_an_arm_is_not_left_because_a_conversion_says_that_it_loses_while_its_requests_stay_fast(
    profile, e, slower
):
    """Hours of good latency at the calibrated acceptance must not make the conversion as sure as they are."""
    converted_s = profile.predict(EAGLE, rps=RPS, conditions=Conditions(tokens_per_step=e)).latency_s
    none_s = profile.predict(NO_SPECULATION, rps=RPS).latency_s
    assert converted_s > none_s, "by the model it loses"
    assert arm_after(profile, e, slower) == EAGLE


def test_an_arm_is_left_where_the_conversion_is_right(profile):
    e = 1.25
    slower = (
        profile.predict(EAGLE, rps=RPS, conditions=Conditions(tokens_per_step=e)).latency_s
        / profile.predict(EAGLE, rps=RPS).latency_s
    )
    assert arm_after(profile, e, slower) == NO_SPECULATION


PRECISION = st.tuples(st.floats(0.1, 1e5), st.floats(-0.9, 0.9), st.floats(0.1, 1e5))
FACTOR = st.floats(0.2, 5.0)


@draws(100)
@given(PRECISION, st.tuples(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5)), FACTOR, FACTOR)
def test_evidence_of_a_converted_law_says_the_same_with_more_doubt(precision, mean, alone, company):
    a, shared, c = precision
    matrix = np.array([[a, shared * math.sqrt(a * c)], [shared * math.sqrt(a * c), c]])
    evidence = Evidence((a, float(matrix[0, 1]), c), tuple((matrix @ mean).tolist()), 0.0, (1.0, 0.05))
    assert converted(evidence, (1.0, 0.05)).precision == pytest.approx(evidence.precision)
    moved = converted(evidence, (alone, 0.05 * company))
    (p, q), (_, s) = np.array(
        [[moved.precision[0], moved.precision[1]], [moved.precision[1], moved.precision[2]]]
    )
    after = np.linalg.inv(np.array([[p, q], [q, s]]))
    assert after @ np.asarray(moved.pull) == pytest.approx(mean, abs=1e-4)
    assert np.linalg.eigvalsh(after - np.linalg.inv(matrix)).min() >= -1e-7 * after.max()
    assert moved.level_s == (alone, 0.05 * company)


def test_what_one_arm_says_of_the_others_is_doubted_by_its_own_conversion_alone():
    priors = [
        FittedLaw.of(arm, straight_curve(Law(c1_s, 0.05, np.diag([4e-4 * c1_s**2, 1e-6]))))
        for arm, c1_s in ((NO_SPECULATION, 1.0), (EAGLE, 0.5))
    ]
    evidence = {EAGLE: Evidence((1e4, 0.0, 1e4), (2e3, 2e3), 0.0, (0.5, 0.05))}
    before = learned(priors, evidence, 0.0)
    converted = learned([priors[0], replace(priors[1], c1_s=1.0)], evidence, 0.0)
    assert before.mean[2] == pytest.approx(0.2, abs=0.02)
    assert converted.covariance[2, 2] > 4.0 * before.covariance[2, 2]
    assert converted.covariance[3, 3] < 2.0 * before.covariance[3, 3], "its cost of company was not converted"
    other = learned([replace(priors[0], c1_s=2.0), priors[1]], evidence, 0.0)
    assert other.mean == pytest.approx(before.mean)
    assert other.covariance == pytest.approx(before.covariance)


@pytest.mark.parametrize(("slower", "said"), [(0.7, 1.0), (1.15, 1.0), (1.25, 1.25)])
def test_an_arm_counts_as_slow_from_what_every_profile_errs_by_on(slower, said):
    """Profiles err by a tenth, which explains 19 % at a confidence of 90 %."""
    seen = Evidence((1e5, 0.0, 0.0), (1e5 * math.log(slower), 0.0), at_s=1e6)
    assert slowdown(seen, 1e6, 0.9) == pytest.approx(said)
