"""`plan` is the rule of the operator without a memory: one load for ever, a roll that costs nothing, nothing at risk."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.planning import expected_saving
from breakeven.planning.decision_memory import DecisionMemory
from breakeven.planning.evaluation import LoadQuestion, best_arm, evaluate
from breakeven.planning.expected_saving import decide_by_saving
from breakeven.planning.forecast import Forecast
from breakeven.planning.learned_laws import fitted_law
from breakeven.planning.objective import Policy, Slo
from breakeven.profile import LoadPoint
from breakeven.serving.counted_window import Load
from draws import draws
from fakes.lawful_profile import lawful_points
from fakes.lawmodel import ArmLaw, law_model

ARMS = (NO_SPECULATION, Arm("eagle3", 2), Arm("eagle3", 5))


@pytest.fixture(autouse=True, scope="module")
def without_doubt():
    """A rule that is sure of its laws and risks any jump, as `plan` is of its expectations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expected_saving, "DOUBT_SD", 0.0)
        patch.setattr(expected_saving, "RISK", 1e9)
        yield


FREELY = Policy(min_gain=0.0, roll_seconds=1e-9)
DAY_S = 86400.0
LAWS = st.lists(st.tuples(st.floats(0.5, 4.0), st.floats(0.03, 0.2)), min_size=3, max_size=3)
SHARES = st.floats(0.05, 0.65)


@draws(60)
@given(LAWS, SHARES, st.sampled_from(ARMS))
@example([(1.0, 0.05), (0.9, 0.05), (2.0, 0.1)], 0.3, NO_SPECULATION)
def test_what_plan_names_is_what_the_rule_runs_where_nothing_but_latency_counts(laws, share, running):
    profile = law_model({arm: ArmLaw(*law) for arm, law in zip(ARMS, laws, strict=True)})
    assert_plan_and_rule_agree(profile, laws, share, running)


@draws(5)
@given(LAWS, SHARES, st.sampled_from(ARMS))
def test_what_plan_names_is_what_the_rule_runs_on_a_profile_that_was_fitted(laws, share, running):
    points = [
        point
        for arm, law in zip(ARMS, laws, strict=True)
        for point in lawful_points(arm, law, 1.0, prompt_tokens=512.0, output_tokens=256.0)
    ]
    assert_plan_and_rule_agree(fit_points(points), laws, share, running)


def assert_plan_and_rule_agree(profile, laws, share, running):
    rps = share / max(c2_s for _, c2_s in laws)
    evaluations = evaluate(profile, ARMS, LoadQuestion(LoadPoint(rps=rps)))
    latencies_s = sorted(one.latency_s for one in evaluations.arms)
    assume(latencies_s[1] > 1.05 * latencies_s[0])
    constant = ((1.0, rps),)
    decision = decide_by_saving(
        [fitted_law(one) for one in evaluations.arms],
        Load(rps, 60.0, rps * 60.0, None, None),
        Forecast(constant, constant, rps, 10 * DAY_S),
        DecisionMemory(running),
        FREELY,
        10 * DAY_S,
    )
    assert decision.arm == best_arm(evaluations, Slo()).arm
