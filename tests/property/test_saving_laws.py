"""Laws of the rule by expected saving: of the decision, and of what it rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.planning.decision_memory import RARE_DAYS, DecisionMemory, Evidence
from breakeven.planning.expected_saving import (
    Savings,
    decide_by_saving,
    known_speedup,
)
from breakeven.planning.forecast import Forecast, PastRates, forecast
from breakeven.planning.learned_laws import (
    INDEPENDENT_S,
    FittedLaw,
    LearnedLaws,
    learned,
    with_latency,
)
from breakeven.planning.objective import Policy
from breakeven.planning.surprise import LASTS_S, waited_along, waited_in_jump, worth_avoiding
from breakeven.serving.counted_window import Load
from draws import draws
from fakes.straight_curve import Law, bent_curve, straight_curve

EAGLE, LONGER = Arm("eagle3", 3), Arm("eagle3", 5)
DAY_S = 86400.0
STEP_S = 150.0
MANY = 1e9
"""Requests of a window whose mean scatters no more."""
POLICY = Policy(roll_seconds=120.0, roll_away_share=0.25, day_risk=1.0)
C1 = st.floats(0.3, 5.0)
C2 = st.floats(0.02, 0.3)
SHARES = st.floats(0.02, 0.95)


def fitted(arm: Arm, c1_s: float, c2_s: float, relative_sd: float = 0.02) -> FittedLaw:
    covariance = np.diag([(relative_sd * c1_s) ** 2, (relative_sd * c2_s) ** 2])
    curve = straight_curve(Law(c1_s, c2_s, covariance))
    return FittedLaw.of(arm, curve)


def resting(c1_s: float, c2_s: float, rps: float) -> Load:
    """The window of an arm that follows its law at a constant rate."""
    latency_s = c1_s / (1.0 - rps * c2_s)
    return Load(rps, STEP_S, rps * STEP_S, rps * latency_s, latency_s)


def window(
    latency_s: float, inflight: float, requests: float = MANY, window_s: float = INDEPENDENT_S
) -> Load:
    return Load(1.0, window_s, requests, inflight, latency_s)


def constantly(rps: float, known_s: float = 5 * DAY_S) -> Forecast:
    return Forecast(((1.0, rps),), ((1.0, rps),), rps, known_s)


# The decision ---------------------------------------------------------------------------------------------


@draws(60)
@given(C1, C2, C1, C2, SHARES, st.booleans(), st.floats(0.0, 10 * DAY_S), st.floats(0.0, 1e6))
def test_equal_inputs_give_equal_decisions_and_no_roll_is_without_a_saving(
    c1, c2, fast, each, share, speculating, known_s, saved
):
    rps = share / max(c2, each)
    laws = [fitted(NO_SPECULATION, c1, c2), fitted(EAGLE, fast, each)]
    live = resting(*((fast, each) if speculating else (c1, c2)), rps)
    memory = DecisionMemory(EAGLE if speculating else NO_SPECULATION, saved=saved)
    asked = (laws, live, constantly(rps, known_s), memory, POLICY, known_s)
    decision = decide_by_saving(*asked)
    again = decide_by_saving(*asked)
    assert (again.arm, again.options, again.memory) == (decision.arm, decision.options, decision.memory)
    # Evidence of the window about the arm in place is kept.
    assert memory.running in decision.memory.evidence
    if decision.arm != memory.running:
        (chosen,) = (one for one in decision.options if one.arm == decision.arm)
        assert chosen.net > 0.0
        assert chosen.surely_net > 0.0


@draws(30)
@given(C1, C2, st.floats(0.3, 1.5), st.floats(0.7, 1.6), SHARES, st.floats(0.85, 1.18), st.floats(0.85, 1.18))
def test_a_constant_load_never_rolls_to_and_fro(c1, c2, gain, slope, share, truly, truly_each):
    """Not even where the drafter is other than the profile says: it is tried once, at the most."""
    true = {NO_SPECULATION: (c1, c2), EAGLE: (truly * gain * c1, truly_each * slope * c2)}
    rps = share / max(each for _, each in true.values())
    laws = [fitted(NO_SPECULATION, c1, c2), fitted(EAGLE, gain * c1, slope * c2)]
    memory, rolls = DecisionMemory(NO_SPECULATION), 0
    for step in range(150):
        live = resting(*true[memory.running], rps)
        now_s = 5 * DAY_S + step * 1800.0
        live = replace(live, window_s=1800.0)
        after = decide_by_saving(laws, live, constantly(rps), memory, POLICY, now_s).memory
        rolls += after.running != memory.running
        memory = after
    assert rolls <= 2


@draws(60)
@given(C1, C2, st.floats(0.3, 1.2), C2, SHARES, st.floats(0.5, 0.99))
def test_a_faster_drafter_saves_more(c1, c2, gain, each, share, faster):
    rps = share / max(c2, each)
    live, memory = resting(c1, c2, rps), DecisionMemory(NO_SPECULATION)
    nets = [
        decide_by_saving(
            [fitted(NO_SPECULATION, c1, c2), fitted(EAGLE, factor * gain * c1, each)],
            live,
            constantly(rps),
            memory,
            POLICY,
            5 * DAY_S,
        )
        .options[0]
        .net
        for factor in (1.0, faster)
    ]
    assert nets[1] >= nets[0]


STEEP = [fitted(NO_SPECULATION, 2.0, 0.05, 0.005), fitted(EAGLE, 1.1, 0.075, 0.005)]
"""A drafter whose saturation is a third lower."""


def asked(
    largest_rps: float,
    *,
    rps: float = 4.0,
    saved: float = 0.0,
    known_s: float = 5 * DAY_S,
    policy: Policy = POLICY,
    laws: Sequence[FittedLaw] = STEEP,
    window_s: float = 300.0,
) -> Savings:
    ahead = replace(constantly(rps, known_s), largest_rps=largest_rps)
    memory = DecisionMemory(NO_SPECULATION, saved=saved)
    live = replace(resting(2.0, 0.05, rps), window_s=window_s)
    return decide_by_saving(laws, live, ahead, memory, policy, known_s)


def test_an_arm_that_could_not_carry_a_jump_is_entered_when_savings_pay_for_one():
    """At a load well below its saturation: 37 % less waiting, and one jump takes days of it."""
    poor, rich, carried = asked(9.5), asked(9.5, saved=2e7), asked(4.0)
    assert poor.arm == NO_SPECULATION
    assert poor.options[0].share > 0.3
    assert rich.arm == EAGLE
    assert carried.arm == EAGLE


def test_no_savings_pay_for_a_jump_that_costs_more_than_it_takes_to_earn_it_again():
    """An account is no reason to spend it: ten days of this arm save less than one surprise on it costs."""
    decision = asked(13.0, saved=1e9)
    assert decision.arm == NO_SPECULATION


@draws(30)
@given(st.floats(2.0, 14.0), st.floats(0.0, 1e6), st.floats(1.0, 3.0), st.floats(1.0, 1e6))
def test_a_larger_load_in_the_past_and_less_saved_never_make_an_arm_more_worth(
    largest_rps, saved, larger, more
):
    def net(**given) -> float:
        return (
            asked(**{"largest_rps": largest_rps, "saved": saved, "known_s": 3 * DAY_S, **given})
            .options[0]
            .net
        )

    slack = 1e-6 * abs(net())
    assert net(largest_rps=larger * largest_rps) <= net() + slack
    assert net(saved=saved + more) >= net() - slack


def test_a_service_without_a_past_enters_what_carries_any_load():
    laws = [*STEEP, fitted(LONGER, 1.4, 0.049, 0.005)]
    assert asked(4.0, known_s=600.0, laws=laws).arm == LONGER
    assert asked(4.0, laws=laws).arm == EAGLE


@pytest.mark.parametrize("away_share", [0.0, 1.0 / 3.0])
@pytest.mark.parametrize("largest_rps", [8.0, 14.0])
def test_where_a_surprise_is_cheap_an_arm_is_entered_within_a_minute(away_share, largest_rps):
    """Engines that start in seconds, and decisions every few: 30 % less capacity is no risk there."""
    policy = Policy(roll_seconds=3.0, roll_away_share=away_share, lookback_s=300.0, day_risk=1.0)
    laws = [fitted(NO_SPECULATION, 2.0, 0.05), fitted(EAGLE, 1.1, 0.071)]
    assert asked(largest_rps, rps=5.0, known_s=60.0, policy=policy, laws=laws, window_s=20.0).arm == EAGLE
    slow = replace(policy, roll_seconds=300.0)
    assert (
        asked(largest_rps, rps=5.0, known_s=60.0, policy=slow, laws=laws, window_s=300.0).arm
        == NO_SPECULATION
    )


def test_a_young_service_does_not_try_a_slow_drafter_again_and_again():
    """While it grows older a jump to be reckoned with falls, and what is learned makes it dearer: neither is a reason to roll."""
    laws = [fitted(NO_SPECULATION, 1.03, 0.0574, 0.01), fitted(EAGLE, 0.546, 0.1006, 0.01)]
    true = {NO_SPECULATION: (1.03, 0.0574), EAGLE: (1.09, 0.1006)}
    policy = Policy(roll_away_share=0.5, day_risk=1.0)
    memory, rolls = DecisionMemory(NO_SPECULATION), 0
    for step in range(1, 400):
        now_s = step * 300.0
        live = replace(resting(*true[memory.running], 4.0), window_s=300.0)
        after = decide_by_saving(laws, live, constantly(4.0, now_s), memory, policy, now_s).memory
        rolls += after.running != memory.running
        memory = after
    assert rolls == 2


def test_the_largest_load_is_remembered_longer_than_the_past_is_known():
    seen = replace(constantly(4.0), largest_rps=13.0)
    live = resting(2.0, 0.05, 4.0)
    after = decide_by_saving(STEEP, live, seen, DecisionMemory(NO_SPECULATION), POLICY, 0.0).memory
    later = decide_by_saving(STEEP, live, constantly(4.0), after, POLICY, STEP_S)
    forgotten = decide_by_saving(STEEP, live, constantly(4.0), DecisionMemory(NO_SPECULATION), POLICY, STEP_S)
    assert later.arm == NO_SPECULATION
    assert (later.memory.largest_rps, later.memory.largest_at_s) == (13.0, 0.0)
    assert forgotten.arm == EAGLE
    much_later = decide_by_saving(STEEP, live, constantly(4.0), after, POLICY, 11 * DAY_S)
    assert (much_later.memory.largest_rps, much_later.memory.largest_at_s) == (4.0, 11 * DAY_S)


def test_what_waits_after_speculation_was_left_is_paid_from_its_account():
    rps, backlog = 4.0, 500.0
    live = replace(resting(2.0, 0.05, rps), inflight=backlog)
    # A jump has ended an hour after the roll.
    paid_s = POLICY.roll_s + LASTS_S
    saved = [
        decide_by_saving(STEEP, live, constantly(rps), memory, POLICY, 5 * DAY_S).memory.saved
        for memory in (
            DecisionMemory(NO_SPECULATION, last_switch_s=5 * DAY_S - ago_s, saved=1e6)
            for ago_s in (600.0, paid_s - 10.0, paid_s + 10.0, 4 * DAY_S)
        )
    ]
    assert max(saved[:2]) < 1e6 - 0.9 * backlog * STEP_S
    assert saved[2:] == pytest.approx([1e6, 1e6], rel=1e-3)


def test_without_any_load_no_arm_is_worth_a_roll():
    decision = asked(0.0, rps=0.0)
    assert (decision.arm, decision.options[0].surely_net) == (NO_SPECULATION, 0.0)


def test_two_arms_that_were_measured_exactly_may_still_be_a_few_percent_off_each_other():
    """Each errs by 2 % with its run, and the drafter by 3 %; what all requests have in common cancels."""
    priors = [fitted(arm, 1.0, 0.05, 0.0) for arm in (NO_SPECULATION, EAGLE)]
    alone = np.array([1.0, 0.0, -1.0, 0.0])
    assert alone @ learned(priors, {}, 0.0).covariance @ alone == pytest.approx(2 * 0.02**2 + 0.03**2)


def test_without_live_latency_the_known_speedup_is_that_of_the_laws():
    laws = [fitted(NO_SPECULATION, 1.2, 0.05), fitted(EAGLE, 0.6, 0.05)]
    found = known_speedup(laws, {}, EAGLE, 1.0, 0.0, 0.9)
    assert found is not None
    assert found.value == pytest.approx(2.0, rel=0.01)
    assert found.lower < found.value < found.upper
    assert known_speedup(laws, {}, NO_SPECULATION, 1.0, 0.0, 0.9) is None
    assert known_speedup(laws, {}, EAGLE, 30.0, 0.0, 0.9) is None, "saturated"


# Its basis ------------------------------------------------------------------------------------------------


@draws(60)
@given(C1, C2, SHARES)
def test_in_flight_is_the_laws_and_rises_with_the_rate(c1, c2, share):
    held = FittedLaw.of(EAGLE, straight_curve(Law(c1, c2)))
    rates = np.array([0.0, 0.5 * share, share, 0.99, 1.5, 3.0]) / c2
    (found,) = held.at(rates, np.ones((1, 2)))
    assert found[0] == pytest.approx(0.0, abs=1e-9)
    assert found[2] == pytest.approx(share / c2 * c1 / (1.0 - share), rel=0.02)
    assert np.all(np.diff(found) >= 0.0)
    assert np.all(np.isfinite(found))


@draws(60)
@given(C1, C2, SHARES, st.floats(0.7, 1.4), st.floats(0.7, 1.4))
def test_factors_make_another_law(c1, c2, share, alone, each):
    one = FittedLaw.of(EAGLE, straight_curve(Law(c1, c2)))
    rps = share / (each * c2)
    (found,) = one.at(np.array([rps]), np.array([[alone, each]]))
    assert found[0] == pytest.approx(rps * alone * c1 / (1.0 - share), rel=0.03)


@draws(60)
@given(
    st.floats(1.0, 20.0),
    st.floats(0.3, 1.0),
    st.floats(0.1, 1.6),
    st.floats(0.05, 0.9),
    st.sampled_from([0.0, 0.25, 0.5]),
)
def test_what_waits_after_a_jump_is_what_a_fluid_stepped_by_the_second_holds(safe, less, over, after, away):
    noticed_s = 300.0
    on, rps, after_rps, roll_s = less * safe, over * safe, after * less * safe, 480.0

    def stepped(leave: bool) -> float:
        queue = waited = 0.0
        carried = on
        for second in range(400_000):
            rate = rps if second < LASTS_S else after_rps
            if leave and second >= noticed_s:
                rolling = second < noticed_s + roll_s
                carried = (1.0 - away) * (on + safe) / 2.0 if rolling else safe
            before = queue
            queue = max(queue + rate - carried, 0.0)
            waited += (before + queue) / 2.0
            if second > LASTS_S and queue == 0.0:
                break
        return waited

    assume(safe - after_rps > 0.05 * safe)
    assume(on - after_rps > 0.05 * on)
    (found,) = waited_in_jump(rps, after_rps, np.array([on]), np.array([safe]), (roll_s, away, noticed_s))
    assert found == pytest.approx(min(stepped(leave=False), stepped(leave=True)), rel=0.02, abs=2.0 * safe)


@draws(60)
@given(
    st.lists(st.lists(st.floats(0.0, 20.0), min_size=4, max_size=4), min_size=1, max_size=3),
    st.lists(st.floats(1.0, 20.0), min_size=4, max_size=4),
    st.floats(0.0, 500.0),
)
@example([[1.0] * 4], [1.5] * 4, 500.0)
def test_what_waits_along_paths_is_what_a_queue_stepped_through_them_holds(paths, carried, before):
    every_s, total = 300.0, 0.0
    for path in paths:
        queue, waited = before, 0.0
        for rate, leaves in zip(path, carried, strict=True):
            queue = max(queue + (rate - leaves) * every_s, 0.0)
            waited += queue * every_s
        mean = sum(path) / len(path)
        total += waited + queue**2 / (2.0 * max(carried[-1] - mean, 0.02 * carried[-1]))
    found = waited_along(np.array(paths), np.array([carried]), every_s, np.array([before]))
    assert found == pytest.approx([total / len(paths)], rel=1e-6, abs=1e-3)


@draws(60)
@given(st.floats(0.0, 1e7), st.floats(0.0, 1e7), st.floats(1.0, 1e7), st.floats(1.0, 1e7))
def test_a_risk_counts_as_it_is_expected_where_it_is_small_and_outweighs_all_where_it_takes_the_account(
    cost, more, account, richer
):
    (one,) = worth_avoiding(np.array([cost]), np.array([account]))
    assert one >= cost / RARE_DAYS * (1.0 - 1e-9)
    assert worth_avoiding(np.array([cost + more]), np.array([account]))[0] >= one
    assert worth_avoiding(np.array([cost]), np.array([account + richer]))[0] <= one * (1.0 + 1e-9) + 1e-9
    assert worth_avoiding(np.array([1e-3 * account]), np.array([account])) == pytest.approx(
        1e-3 * account / RARE_DAYS, rel=1e-3
    )
    assert worth_avoiding(np.array([1.5 * account]), np.array([account]))[0] > 5.0 * account


def test_draws_move_little_where_what_is_known_moves_little():
    """If two variances of a covariance are equal, its eigenvectors turn by a right angle at a touch."""
    arms = (NO_SPECULATION, EAGLE)
    drawn = [
        LearnedLaws(arms, np.zeros(4), 0.01 * np.eye(4) + touch).draws()
        for touch in (np.zeros((4, 4)), 1e-7 * (np.ones((4, 4)) + np.diag([3.0, 1.0, 2.0, 4.0])))
    ]
    assert drawn[1] == pytest.approx(drawn[0], rel=1e-4)


@draws(60)
@given(st.floats(0.7, 1.4), st.floats(0.7, 1.4), C1, C2)
def test_live_latency_at_several_loads_teaches_both_coefficients(alone, each, c1, c2):
    prior = [fitted(arm, c1, c2) for arm in (NO_SPECULATION, EAGLE)]
    evidence: Mapping[Arm, Evidence] = {}
    for step in range(400):
        now_s = step * INDEPENDENT_S
        inflight = (0.1, 3.0)[step % 2] * c1 / c2
        evidence = with_latency(
            evidence,
            learned(prior, evidence, now_s),
            prior[1],
            window(alone * c1 + each * c2 * inflight, inflight),
            now_s,
        )
    laws = learned(prior, evidence, now_s)
    assert np.exp(laws.mean[2:]) == pytest.approx([alone, each], rel=0.04)
    # Evidence about one arm moves the belief about another one in part, and in the same direction.
    assert abs(laws.mean[0]) < abs(math.log(alone)) + abs(math.log(each))
    assert np.all(np.linalg.eigvalsh(laws.covariance) > 0.0)


def watched(
    evidence: Mapping[Arm, Evidence], prior: list[FittedLaw], now_s: float, **given: float
) -> Mapping[Arm, Evidence]:
    """Evidence after one more window of eagle, which met no other request and took `factor` times what the profile says."""
    c1_s, factor = prior[1].c1_s, given.get("factor", 1.0)
    return with_latency(
        evidence,
        learned(prior, evidence, now_s),
        prior[1],
        window(factor * c1_s, 0.0, requests=given.get("requests", MANY)),
        now_s,
    )


@pytest.mark.parametrize("fading", [1e-3, 1e3])
def test_latencies_that_no_engine_has_teach_nothing(fading):
    """A page may say anything: nanoseconds, or in each window a thousandth of the last."""
    prior = [fitted(arm, 1.0, 0.05) for arm in (NO_SPECULATION, EAGLE)]
    evidence: Mapping[Arm, Evidence] = {}
    for window in range(1, 40):
        evidence = watched(evidence, prior, window * INDEPENDENT_S, factor=fading**window)
    assert np.abs(learned(prior, evidence, window * INDEPENDENT_S).mean).max() < math.log(2000.0)
    assert watched({}, prior, 0.0, factor=2e-183) == watched({}, prior, 0.0, factor=1e9) == {}


@draws(60)
@given(st.integers(1, 60), st.floats(0.01, 3.0))
def test_the_first_window_teaches_as_much_as_a_half_hour_however_often_one_looks(looks, half_hours):
    prior = [fitted(arm, 1.0, 0.05) for arm in (NO_SPECULATION, EAGLE)]
    first = watched({}, prior, 0.0)
    evidence = first
    for look in range(1, looks + 1):
        evidence = watched(evidence, prior, look * half_hours * INDEPENDENT_S / looks)
    told = evidence[EAGLE].precision[0] / first[EAGLE].precision[0]
    # Three hours fade by a hundredth.
    assert 0.99 * (2.0 - math.exp(-half_hours)) <= told <= 1.0 + half_hours + 1e-9


@draws(60)
@given(st.floats(1.0, 1e5))
def test_a_window_teaches_no_more_than_its_requests_do(requests):
    prior = [fitted(arm, 1.0, 0.05) for arm in (NO_SPECULATION, EAGLE)]
    few = watched({}, prior, 0.0, requests=requests)[EAGLE].precision[0]
    many = watched({}, prior, 0.0)[EAGLE].precision[0]
    # Variances add: that of the window, and one over the requests.
    assert 1.0 / few == pytest.approx(1.0 / many + 1.0 / requests, rel=1e-3)


@draws(60)
@given(st.floats(1.2, 3.0))
def test_a_drafter_that_was_seen_to_be_wrong_is_as_wrong_where_it_was_not_seen(factor):
    """At another draft length and among other requests in flight; no speculation has its own speed."""
    prior = [fitted(arm, 1.0, 0.05) for arm in (NO_SPECULATION, EAGLE, LONGER)]
    evidence: Mapping[Arm, Evidence] = {}
    for window in range(4):
        evidence = watched(evidence, prior, window * INDEPENDENT_S, factor=factor)
    mean = learned(prior, evidence, 4 * INDEPENDENT_S).mean
    in_company, elsewhere = mean[3], mean[4:]
    assert np.all(elsewhere > 0.6 * math.log(factor))
    assert in_company > 0.6 * math.log(factor)
    assert abs(mean[0]) < 0.4 * math.log(factor)


def test_what_four_requests_scatter_says_nothing_of_a_drafter():
    prior = [fitted(arm, 1.0, 0.05) for arm in (NO_SPECULATION, EAGLE, LONGER)]
    evidence = watched({}, prior, 0.0, factor=1.5, requests=4.0)
    assert learned(prior, evidence, 0.0).mean == pytest.approx(np.zeros(6), abs=0.05)


@draws(30)
@given(st.floats(0.5, 1.5), st.floats(0.1, 35.0))
def test_an_arm_that_bends_and_runs_as_it_was_measured_teaches_nothing(dip, others):
    # A schedule: fast while it drafts much, and near its slowest tier beyond.
    bent = np.array([(0.0, 1.0), (8.0, 1.0 + 0.05 * 8 * dip), (16.0, 1.8), (40.0, 3.0)])
    curve = bent_curve(bent, 0.02)
    laws = [fitted(NO_SPECULATION, 1.4, 0.05), fitted(EAGLE, 1.0, 0.05)]
    laws[1] = replace(
        FittedLaw.of(EAGLE, curve), c1_s=1.0, c2_s=0.05, relative_covariance=laws[1].relative_covariance
    )
    latency_s = curve.loop_latency_s(others, closed=True)
    live = Load(others / latency_s, 1800.0, 1800.0 * others / latency_s, others, latency_s)
    decided = decide_by_saving(laws, live, constantly(live.rps), DecisionMemory(EAGLE), POLICY, 0.0)
    taught = learned(laws, decided.memory.evidence, 0.0)
    assert taught.mean == pytest.approx(np.zeros(4), abs=0.01)


@draws(60)
@given(st.floats(0.98, 1.02), st.floats(0.1, 30.0), C1, C2)
def test_evidence_takes_doubt_away_and_fades(factor, inflight, c1, c2):
    """Where it agrees with the profile: a drafter that was measured wrong is doubted the more."""
    prior = [fitted(arm, c1, c2) for arm in (NO_SPECULATION, EAGLE)]
    nothing = learned(prior, {}, 0.0)
    evidence = with_latency(
        {},
        nothing,
        prior[1],
        window(factor * (c1 + c2 * inflight), inflight),
        0.0,
    )
    doubts = [np.trace(learned(prior, evidence, now_s).covariance) for now_s in (0.0, 7 * DAY_S, 70 * DAY_S)]
    assert doubts == sorted(doubts)
    assert doubts[-1] <= np.trace(nothing.covariance) * (1.0 + 1e-9)
    assert nothing.mean == pytest.approx(np.zeros(4))
    logarithms = np.log(nothing.draws())
    assert logarithms.mean(axis=0) == pytest.approx(np.zeros((2, 2)), abs=1e-12)


@draws(40)
@given(st.permutations(range(3)), C1, C2, SHARES, st.booleans(), st.floats(0.8, 1.25))
def test_the_order_in_which_arms_are_listed_decides_nothing(order, c1, c2, share, speculating, factor):
    """Draws that were dealt by position made .361 or .633 of no speculation from the same arms."""
    laws = [
        fitted(NO_SPECULATION, c1, c2),
        fitted(EAGLE, 0.7 * c1, 1.1 * c2),
        fitted(LONGER, 0.8 * c1, 1.02 * c2),
    ]
    rps = share / (1.1 * c2)
    live = resting(factor * (0.7 if speculating else 1.0) * c1, 0.9 * c2, rps)
    memory = DecisionMemory(EAGLE if speculating else NO_SPECULATION)
    once, listed = (
        decide_by_saving(some, live, constantly(rps), memory, POLICY, 5 * DAY_S)
        for some in (laws, [laws[place] for place in order])
    )
    assert listed.arm == once.arm
    found = {one.arm: one for one in listed.options}
    for one in once.options:
        assert found[one.arm].surely_net == pytest.approx(one.surely_net, rel=1e-6, abs=1e-6)
        assert found[one.arm].taken_sd == pytest.approx(one.taken_sd, rel=1e-6, abs=1e-9)


# Overload --------------------------------------------------------------------------------------------------


@draws(60)
@given(C1, C2, st.floats(0.0, 1e5))
def test_latency_goes_on_as_a_straight_line_where_the_table_ends(c1, c2, others):
    alone_s, company_s = fitted(EAGLE, c1, c2).parts_s(others)
    assert alone_s + company_s == pytest.approx(c1 + c2 * others, rel=2e-2)


@draws(30)
@given(C1, C2, st.floats(1.02, 1.5), st.floats(0.3, 3.0), st.integers(2, 40))
def test_windows_in_which_a_queue_grows_or_drains_teach_nothing(c1, c2, over, strange, windows):
    """Whatever latency they show: a rule that looked at it would keep the windows that agree with a law."""
    laws = [fitted(NO_SPECULATION, c1, c2), fitted(EAGLE, 0.7 * c1, 1.05 * c2)]
    memory, carried = DecisionMemory(NO_SPECULATION), 1.0 / c2
    waiting = 0.0
    for step in range(2 * windows):
        rps = (over if step < windows else 0.6) * carried
        waiting = max(waiting + (rps - carried) * STEP_S, 0.0)
        if not waiting:
            break
        live = Load(rps, STEP_S, 1000.0, waiting, strange * waiting * c2)
        now_s = 5 * DAY_S + step * STEP_S
        memory = decide_by_saving(laws, live, constantly(rps), memory, POLICY, now_s).memory
        memory = replace(memory, running=NO_SPECULATION)
    assert memory.evidence == {}


def test_a_window_teaches_when_the_queue_is_gone_or_was_never_there():
    laws = [fitted(NO_SPECULATION, 1.0, 0.05), fitted(EAGLE, 0.7, 0.052)]
    after = decide_by_saving(
        laws, Load(24.0, STEP_S, 1e3, 600.0, 25.0), constantly(24.0), DecisionMemory(EAGLE), POLICY, 0.0
    ).memory
    assert (after.evidence, after.queued > 0.0) == ({}, True)
    taught = []
    for step in range(1, 8):
        asked_at = (laws, resting(0.7, 0.052, 4.0), constantly(4.0), after, POLICY, step * 300.0)
        after = replace(decide_by_saving(*asked_at).memory, running=EAGLE)
        taught.append(EAGLE in after.evidence)
    assert taught == sorted(taught), "once there is no queue windows teach"
    assert (taught[0], taught[-1]) == (False, True)
    # By its law it is saturated, and almost nobody is in flight: the law is wrong, and is taught.
    faster = decide_by_saving(
        laws, resting(0.7, 0.02, 24.0), constantly(24.0), DecisionMemory(EAGLE), POLICY, 0.0
    ).memory
    assert EAGLE in faster.evidence


@draws(30)
@given(st.floats(0.95, 0.99), st.floats(1.0, 1.2), st.floats(50.0, 3000.0))
def test_no_roll_takes_replicas_away_from_a_queue_that_it_does_not_shorten(carried, over, waiting):
    laws = [fitted(NO_SPECULATION, 1.2, 0.07, 0.005), fitted(EAGLE, 0.9, 0.07 / carried, 0.005)]
    rps = over / 0.07
    live = Load(rps, STEP_S, 1000.0, waiting + 100.0, (waiting + 100.0) / rps)
    ahead = replace(forecast(PastRates([5 * DAY_S], [7.0]), 5 * DAY_S, rps, 14400.0), known_s=5 * DAY_S)
    memory = DecisionMemory(
        EAGLE, queued=waiting, queued_at_s=5 * DAY_S, largest_rps=rps, largest_at_s=5 * DAY_S
    )
    assert decide_by_saving(laws, live, ahead, memory, POLICY, 5 * DAY_S).arm == EAGLE


@pytest.mark.parametrize(
    ("start_up_s", "away_share", "arm"), [(480.0, 0.0, NO_SPECULATION), (120.0, 0.25, EAGLE)]
)
def test_an_overload_is_left_in_its_first_minutes_only_if_new_replicas_come_first(
    start_up_s, away_share, arm
):
    """An arm of 1.5 % less capacity: staying costs less than a quarter of the replicas, and more than no replica at all."""
    laws = [fitted(NO_SPECULATION, 3.0, 0.1, 0.005), fitted(EAGLE, 1.5, 0.1015, 0.005)]
    ahead = replace(forecast(PastRates([5 * DAY_S], [6.0]), 5 * DAY_S, 10.0, 14400.0), known_s=5 * DAY_S)
    memory = DecisionMemory(EAGLE, largest_rps=10.0, largest_at_s=5 * DAY_S)
    policy = Policy(roll_seconds=start_up_s, roll_away_share=away_share, day_risk=1.0)
    live = Load(10.0, 300.0, 1000.0, 216.0, 21.6)
    assert decide_by_saving(laws, live, ahead, memory, policy, 5 * DAY_S).arm == arm


# The past --------------------------------------------------------------------------------------------------


def test_a_gap_is_no_day():
    """Two days of rates with a week without any between them are two days, and nobody knows the nights of that week."""
    each_s, now_s = 300.0, 9 * DAY_S
    ends = [place * each_s for place in range(288)] + [now_s - each_s * (287 - place) for place in range(288)]
    ahead = forecast(PastRates(ends, [1.0] * 288 + [2.0] * 288), now_s, 2.0, 14400.0)
    assert ahead.known_s == pytest.approx(2 * DAY_S)
    # Now, the last hours, what followed this time a day ago, and nine days ago.
    assert len(ahead.paths) == 3 + 1
    scarce = forecast(PastRates([0.0, 300.0, *ends[288:]], [50.0, 50.0, *[2.0] * 288]), now_s, 2.0, 14400.0)
    assert scarce.peak_rps == 2.0, "two rates of a morning long ago are no day to expect"


@draws(60)
@given(st.lists(st.floats(0.0, 1e3), min_size=1, max_size=800), st.floats(0.0, 1e3))
@example([float(place % 7) for place in range(380)], 2.0)  # three days, and most of these hours of a fourth
def test_a_forecast_gives_equal_parts_to_now_to_the_last_hours_and_to_each_day_before(rates, now_rps):
    every_s = 900.0
    ends = [1e6 + place * every_s for place in range(len(rates))]
    ahead = forecast(PastRates(ends, rates), ends[-1], now_rps, 14400.0)
    assert sum(share for share, _ in ahead.expected) == pytest.approx(1.0)
    assert sum(share for share, _ in ahead.seen) == pytest.approx(1.0)
    assert ahead.largest_rps == max((now_rps, *rates))
    days = int((ends[-1] - ends[0]) // DAY_S)
    parts = [[now_rps], rates[-16:]]
    for day in range(1, days + 1):
        first = len(rates) - day * 96
        parts.append(rates[first : first + 16])
    # The present rate lasts for an hour of the four, the mean of the last hours for the rest.
    lately = sum(rates[-16:]) / len(rates[-16:])
    ways = [[now_rps, lately, lately, lately], *parts[1:]]
    assert np.mean(ahead.paths, axis=1) == pytest.approx(
        [sum(part) / len(part) for part in ways if part], abs=1e-6
    )
    means = [sum(part) / len(part) for part in parts if part]
    assert ahead.mean_rps == pytest.approx(sum(means) / len(means), rel=1e-6, abs=1e-6)


# A queue that the capacity does not tell of ---------------------------------------------------------------


def told(live: Load) -> dict[Arm, Evidence]:
    memory = DecisionMemory(EAGLE)
    laws = [fitted(NO_SPECULATION, 0.43, 0.022), fitted(EAGLE, 0.20, 0.0395)]
    ahead = constantly(live.rps)
    return dict(decide_by_saving(laws, live, ahead, memory, POLICY, 0.0).memory.evidence)


@pytest.mark.parametrize(
    ("rps", "inflight", "latency_s"),
    # Windows of a run whose queue drained in six seconds; by the capacity of 25 rps none of them has one.
    [(19.0, 150.0, 6.80), (17.55, 129.7, 6.37), (14.80, 99.1, 5.81), (9.37, 55.5, 4.87), (9.5, 30.0, 3.0)],
)
def test_a_queue_that_drains_or_came_and_went_teaches_nothing_whatever_the_capacity(rps, inflight, latency_s):
    live = Load(rps, 12.0, 12.0 * rps, inflight, latency_s)
    assert told(replace(live, drains=True)) == {}
    # The same that stays is an arm that is slower than its law, and must be learned.
    assert told(live) != {}


def test_a_fall_of_the_load_that_left_no_queue_teaches():
    live = Load(4.0, 12.0, 48.0, 1.2, 0.25, drains=True)
    assert EAGLE in told(live)


@draws(30)
@given(st.floats(1.1, 1.6), st.floats(3.0, 100.0), st.floats(0.0, 3.0))
def test_one_window_at_another_law_does_not_overturn_what_was_known_however_late_it_comes(
    moved, window_s, days
):
    prior = [fitted(arm, 1.0, 0.05) for arm in (NO_SPECULATION, EAGLE)]
    evidence: Mapping[Arm, Evidence] = {}
    for step in range(20):
        evidence = watched(evidence, prior, step * INDEPENDENT_S)
    there = [prior[0], fitted(EAGLE, moved, 0.05 * moved)]
    now_s = 20 * INDEPENDENT_S + days * DAY_S
    factor = 3.0
    live = window(factor * moved, 0.0, window_s=window_s)
    once = with_latency(evidence, learned(there, evidence, now_s), there[1], live, now_s)
    mean = float(learned(there, once, now_s).mean[2])
    assert mean < 0.5 * math.log(factor)
    # Half a day of them does.
    for _ in range(24):
        now_s += INDEPENDENT_S
        live = replace(live, window_s=INDEPENDENT_S)
        once = with_latency(once, learned(there, once, now_s), there[1], live, now_s)
    assert float(learned(there, once, now_s).mean[2]) == pytest.approx(math.log(factor), rel=0.15)
