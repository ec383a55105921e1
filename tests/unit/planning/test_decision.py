"""One decision per word: what makes it, and what its sentence says."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION
from breakeven.deciding import Decisions
from breakeven.estimate import Estimate
from breakeven.planning.capacity import FewestReplicas
from breakeven.planning.decision import Action, with_acceptance
from breakeven.planning.decision_memory import DecisionMemory, LiveAcceptance
from breakeven.planning.forecast import PastRates
from breakeven.planning.objective import Follow, Policy, Slo, tail_factor
from breakeven.planning.observed_load import live_conditions
from breakeven.planning.wording import followed_text, sentence
from breakeven.reasons import Reason
from breakeven.serving.counted_window import Load
from fakes.lawmodel import EAGLE, EAGLE_2, ArmLaw, chat, law_model

NOW = 1_000_000.0
QUICK = Policy(dwell_s=0.0, roll_seconds=60.0, lookback_s=0.0)


def load_of(law, rps, **more):
    latency_s = law.c1_s / (1.0 - rps * law.c2_s)
    return Load(rps, 300, 1000, inflight=rps * latency_s, latency_s=latency_s, **more)


def ask(model, rps, running=NO_SPECULATION, policy=QUICK, past=None, memory=None, fewest=None, **more):
    load = load_of(model.laws[running], rps, **more)
    memory = memory or DecisionMemory(running)
    return Decisions(model, list(model.laws), policy).at(load, memory, NOW, past, fewest)


def flat(rps, days=3.0):
    steps = int(days * 288)
    return PastRates([NOW - 300.0 * (steps - 1 - i) for i in range(steps)], [rps] * steps)


def test_an_arm_that_saves_is_entered_and_the_sentence_says_how_much_until_where_and_for_what_price():
    found = ask(chat(eagle_2=ArmLaw(0.75, 0.035, 2.2, 0.01)), 3.0)
    assert (found.action, found.arm) == (Action.SWITCH, EAGLE)
    assert found.reason is Reason.GAIN_ABOVE_THRESHOLD
    said = sentence(found)
    assert "live" not in said, "nothing was seen live"
    assert said.startswith("no speculation -> eagle/7: eagle/7 is 1.9")
    assert "pays until 17.7 rps" in said
    assert re.search(r"eagle/7 saves 49 % of request time over the next 4 h \(90 %: \d\d to \d\d\)", said), (
        said
    )
    assert "after a roll that costs 61 s of serving; next best eagle/2: 30 %" in said


def test_where_it_saves_nothing_it_is_not_entered():
    found = ask(chat(), 20.0)
    assert (found.action, found.reason) == (Action.STAY, Reason.BEYOND_BREAK_EVEN)
    assert "no speculation is right: eagle/7 takes" in sentence(found)


def test_beyond_the_break_even_it_is_left_at_once():
    memory = DecisionMemory(EAGLE, last_switch_s=NOW - 60.0)
    found = ask(chat(), 20.0, EAGLE, replace(QUICK, dwell_s=900.0), memory=memory)
    assert (found.action, found.arm) == (Action.SWITCH, NO_SPECULATION)
    assert found.reason is Reason.BEYOND_BREAK_EVEN


def test_an_arm_that_loses_over_the_expected_loads_is_not_entered_at_night():
    night = [3.0] * 216 + [21.0] * 72
    past = PastRates([NOW - 300.0 * (863 - i) for i in range(864)], night * 3)
    found = ask(chat(), 3.0, policy=replace(QUICK, lookback_s=259200.0), past=past)
    assert (found.action, found.reason) == (Action.STAY, Reason.PEAK_AHEAD)
    assert "over the expected loads (up to 21 rps per replica) eagle/7 takes" in sentence(found)


@pytest.mark.parametrize("missing", ["ahead", "considered"])
def test_without_the_figures_of_a_peak_the_sentence_says_what_its_reason_means(missing):
    night = [3.0] * 216 + [21.0] * 72
    past = PastRates([NOW - 300.0 * (863 - i) for i in range(864)], night * 3)
    found = ask(chat(), 3.0, policy=replace(QUICK, lookback_s=259200.0), past=past)
    said = sentence(replace(found, **{missing: None}))
    assert Reason.PEAK_AHEAD.meaning in said
    assert "over the expected loads" not in said


@pytest.mark.parametrize(("running", "action"), [(EAGLE, Action.SWITCH), (NO_SPECULATION, Action.STAY)])
def test_an_arm_that_only_the_risk_of_a_day_speaks_against_is_left_for_that_and_the_limit_is_named(
    running, action
):
    day = [3.0] * 276 + [12.0] * 12
    past = PastRates([NOW - 300.0 * (863 - i) for i in range(864)], day * 3)
    bound = replace(QUICK, lookback_s=259200.0, roll_away_share=0.25)
    found = ask(chat(), 3.0, running, bound, past=past)
    assert (found.action, found.arm, found.reason) == (action, NO_SPECULATION, Reason.RISK_TOO_HIGH)
    said = sentence(found)
    assert (
        "a jump of the load would cost more than 5 % of a day's request time, or than 12 % of ten days'"
        in said
    )
    assert ask(chat(), 3.0, running, replace(bound, day_risk=1.0), past=past).arm == EAGLE


def test_a_jump_that_would_cost_more_than_is_risked_keeps_an_arm_out_that_carries_less():
    model = law_model({NO_SPECULATION: ArmLaw(1.0, 0.05), EAGLE: ArmLaw(0.5, 0.08, 2.5)})
    policy = replace(QUICK, roll_seconds=300.0, roll_away_share=0.25)
    past = flat(11.0)
    found = ask(model, 7.0, policy=replace(policy, lookback_s=259200.0, horizon_s=600.0), past=past)
    carried = {one.arm: one for one in found.options}[EAGLE]
    assert carried.risk > 0.0


def test_too_little_is_no_gain():
    model = law_model({NO_SPECULATION: ArmLaw(1.0, 0.03), EAGLE: ArmLaw(0.998, 0.02994, 3.0)})
    found = ask(model, 3.0)
    assert (found.action, found.reason) == (Action.STAY, Reason.GAIN_BELOW_THRESHOLD)
    assert "which is less than the required 3 %" in sentence(found)


def test_a_roll_that_costs_more_than_it_saves_is_not_made():
    found = ask(chat(), 3.0, policy=replace(QUICK, roll_seconds=50_000.0))
    assert (found.action, found.reason) == (Action.STAY, Reason.ROLL_NOT_WORTH_IT)


def test_doubt_about_the_fit_keeps_an_arm_out():
    model = law_model(
        {NO_SPECULATION: ArmLaw(1.0, 0.03, noise=0.3), EAGLE: ArmLaw(0.9, 0.027, 3.0, noise=0.3)}
    )
    found = ask(model, 3.0)
    assert (found.action, found.reason) == (Action.STAY, Reason.WIDE_BOUNDS)


def test_a_dwell_and_a_cool_down_hold_an_entry_back_and_say_until_when():
    slow = replace(QUICK, dwell_s=900.0)
    first = ask(chat(), 3.0, policy=slow)
    assert (first.action, first.reason, first.until_s) == (Action.HOLD, Reason.DWELLING, NOW + 900.0)
    assert (first.memory.candidate, first.memory.running) == (EAGLE, NO_SPECULATION)
    cooling = DecisionMemory(NO_SPECULATION, NOW - 600.0)
    held = ask(chat(), 3.0, policy=QUICK, memory=cooling)
    assert (held.action, held.reason) == (Action.HOLD, Reason.COOLING_DOWN)
    assert held.until_s == NOW + 3000.0
    assert "the last switch is younger than the cool-down of 60 min" in sentence(held)


@pytest.mark.parametrize("measured_s", [0.004, 0.020])
def test_an_objective_that_is_missed_by_measurement_waits_for_no_limit(measured_s):
    """TPOT is a hundredth of the latency: none misses 10 ms at 3 rps, eagle/7 keeps it."""
    cooling = DecisionMemory(NO_SPECULATION, NOW - 600.0)
    policy = replace(QUICK, slo=Slo(tpot_s=0.010))
    found = ask(chat(), 3.0, policy=policy, memory=cooling, tpot_s=measured_s)
    assert found.action is (Action.SWITCH if measured_s > 0.010 else Action.HOLD)
    if measured_s > 0.010:
        assert found.reason is Reason.SLO_VIOLATED
        assert "no speculation misses the objective (TPOT" in sentence(found)


@pytest.mark.parametrize("strain", [None, (0.5, 0.99), (1.2, 1.5), (1.2, None)])
def test_a_measured_quantile_beyond_its_limit_waits_for_no_limit_although_the_law_keeps_it(strain):
    """By its law none answers with a TPOT p95 of 36 ms of 50; eagle/7 with 7."""
    model = law_model(
        {NO_SPECULATION: ArmLaw(1.1, 0.03, p95_over_mean=3.0), EAGLE: ArmLaw(0.5, 0.03, 3.0, p95_over_mean=1.1)}
    )  # fmt: skip
    cooling = DecisionMemory(NO_SPECULATION, NOW - 600.0)
    policy = replace(QUICK, slo=Slo(tpot_s=0.050, quantile=0.95))
    found = ask(model, 3.0, policy=policy, memory=cooling, strain=strain)
    if strain is None or strain[0] < 1.0:
        assert (found.action, found.reason) == (Action.HOLD, Reason.COOLING_DOWN)
    else:
        assert (found.action, found.reason) == (Action.SWITCH, Reason.SLO_VIOLATED)
        assert "no speculation misses the objective (measured: at least 1.2 times the limit)" in sentence(
            found
        )


def test_a_measured_breach_is_evidence_against_every_arm_whose_tail_would_be_as_long():
    """By their laws both keep 40 ms: none with 36 and eagle/7 with 20. Users see three times as much of none."""
    model = law_model(
        {NO_SPECULATION: ArmLaw(1.1, 0.03, p95_over_mean=3.0), EAGLE: ArmLaw(0.6, 0.03, 3.0, p95_over_mean=3.0)}
    )  # fmt: skip
    cooling = DecisionMemory(NO_SPECULATION, NOW - 600.0)
    policy = replace(QUICK, slo=Slo(tpot_s=0.040, quantile=0.95))
    found = ask(model, 3.0, policy=policy, memory=cooling, strain=(2.7, None))
    assert (found.action, found.reason) == (Action.HOLD, Reason.COOLING_DOWN)


def test_an_objective_that_users_see_kept_is_no_reason_to_leave_an_arm():
    """By its law eagle/7 has a TPOT p95 of 24 ms of 20, and none one of 13."""
    model = law_model(
        {NO_SPECULATION: ArmLaw(1.1, 0.03, p95_over_mean=1.1), EAGLE: ArmLaw(0.53, 0.0434, 3.0, p95_over_mean=4.0)}
    )  # fmt: skip
    policy = replace(QUICK, slo=Slo(tpot_s=0.020, quantile=0.95))
    believed = ask(model, 3.0, EAGLE, policy)
    assert (believed.arm, believed.reason) == (NO_SPECULATION, Reason.SLO_VIOLATED)
    seen = ask(model, 3.0, EAGLE, policy, strain=(0.5, 0.75))
    assert (seen.arm, seen.action) == (EAGLE, Action.STAY)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.one_of(st.none(), st.floats(1.0, 10.0)))
def test_a_strain_is_moved_as_little_as_the_measurement_allows(expected, lower, width):
    upper = None if width is None else lower * width
    (moved,) = expected * tail_factor(np.array([expected]), (lower, upper))
    assert moved >= lower * (1 - 1e-9)
    assert upper is None or moved <= upper * (1 + 1e-9)
    if lower <= expected and (upper is None or expected <= upper):
        assert moved == expected
    assert tail_factor(np.array([expected]), None) == 1.0


def test_an_objective_outweighs_speed():
    """eagle/2 is the faster one and its TPOT is beyond the limit where the other one's is not."""
    fast = replace(ArmLaw(0.5, 0.03, 2.2), p95_over_mean=4.0)
    model = law_model(
        {NO_SPECULATION: ArmLaw(1.1, 0.03, p95_over_mean=1.1), EAGLE_2: fast, EAGLE: ArmLaw(0.8, 0.03, 3.0, p95_over_mean=1.1)}
    )  # fmt: skip
    assert ask(model, 3.0).arm == EAGLE_2
    assert ask(model, 3.0, policy=replace(QUICK, slo=Slo(tpot_s=0.012, quantile=0.95))).arm == EAGLE


def test_requests_that_queue_at_every_pod_wait_for_no_limit():
    memory = DecisionMemory(EAGLE, last_switch_s=NOW - 60.0)
    load = Load(24.0, 300, 1000, inflight=400.0, latency_s=17.0, saturated=True)
    found = Decisions(chat(), [EAGLE], replace(QUICK, dwell_s=900.0)).at(load, memory, NOW)
    assert (found.action, found.reason) == (Action.SWITCH, Reason.ENTERED_SATURATION)
    assert "eagle/7 is saturated at 24 rps per replica, no speculation carries 3" in sentence(found)


CARRIES_MORE = {NO_SPECULATION: ArmLaw(1.0, 0.05), EAGLE: ArmLaw(0.6, 0.035, 3.0)}


@pytest.mark.parametrize(
    ("rps", "waiting", "rolled_ago_s", "enters"),
    [
        (24.0, 400.0, 3000.0, False),  # a queue stands, and the arm would work it off
        (24.0, 400.0, 90000.0, True),
        (3.0, 0.0, 7200.0, False),  # it is gone, and the cool-down is over
        (3.0, 0.0, 90000.0, True),
    ],
)
def test_on_a_day_on_which_requests_had_to_wait_no_arm_is_entered_within_a_day_of_a_roll(
    rps, waiting, rolled_ago_s, enters
):
    """Each roll in an overload takes replicas away from a queue that makes the next arm look better."""
    policy = replace(QUICK, roll_away_share=0.25, lookback_s=259200.0)
    stood = {"queued": waiting, "queued_without": waiting, "queued_at_s": NOW - 600.0}
    memory = DecisionMemory(NO_SPECULATION, NOW - rolled_ago_s, **stood, decided_s=NOW - 300.0)
    inflight = 3.6 + waiting
    load = Load(rps, 300, 1000, inflight=inflight, latency_s=inflight / rps, saturated=bool(waiting))
    found = Decisions(law_model(CARRIES_MORE), [EAGLE], policy).at(load, memory, NOW, flat(3.0))
    if enters:
        assert (found.action, found.arm) == (Action.SWITCH, EAGLE)
        return
    assert (found.action, found.reason) == (Action.HOLD, Reason.COOLING_DOWN)
    assert found.until_s == NOW - rolled_ago_s + 86400.0
    assert "requests have had to wait, and the last switch is younger than 24 h" in sentence(found)


@pytest.mark.parametrize(("waiting", "enters"), [(0.0, True), (400.0, False)])
def test_an_objective_that_is_missed_without_a_queue_waits_for_no_day(waiting, enters):
    policy = replace(QUICK, lookback_s=259200.0, slo=Slo(tpot_s=0.010))
    stood = {"queued": waiting, "queued_without": waiting, "queued_at_s": NOW - 600.0}
    memory = DecisionMemory(NO_SPECULATION, NOW - 7200.0, **stood, decided_s=NOW - 300.0)
    rps = 24.0 if waiting else 3.0
    load = Load(rps, 300, 1000, inflight=3.6 + waiting, latency_s=(3.6 + waiting) / rps, tpot_s=0.02)
    found = Decisions(law_model(CARRIES_MORE), [EAGLE], policy).at(load, memory, NOW, flat(3.0))
    assert (found.action is Action.SWITCH) is enters


def test_acceptance_that_stays_low_is_the_reason_that_is_named():
    memory = DecisionMemory(EAGLE, seen=(LiveAcceptance(EAGLE, 1.3),))
    load = Load(3.0, 300, 1000, inflight=4.2, latency_s=1.4, tokens_per_step=1.2)
    found = Decisions(chat(), [EAGLE], QUICK).at(load, memory, NOW)
    assert (found.arm, found.reason) == (NO_SPECULATION, Reason.ACCEPTANCE_COLLAPSED)
    assert "(3.00 when it was calibrated)" in sentence(found)


def test_a_break_even_names_the_live_acceptance_that_it_holds_for():
    memory = DecisionMemory(EAGLE, seen=(LiveAcceptance(EAGLE, 2.5),))
    found = ask(chat(), 3.0, EAGLE, memory=memory, tokens_per_step=2.5)
    assert " at the live 2.50 tokens per step (calibrated: 3.00); " in sentence(found)


def test_one_window_moves_the_live_acceptance_by_its_share_of_a_quarter_of_an_hour():
    load = Load(3.0, 300, 1000, inflight=2.0, latency_s=0.6, tokens_per_step=1.0)
    found = Decisions(chat(), [EAGLE], QUICK).at(load, DecisionMemory(EAGLE), NOW)
    # Users ask for tokens: a window in which a step yields a third of them has three times the steps.
    weight = 1.0 - 2.718281828 ** (-1 / 3)
    tokens, steps = 1.0, (1.0 - weight) / 3.0 + weight / 1.0
    assert found.memory.seen[0].tokens_per_step == pytest.approx(tokens / steps)


def live_windows(values, survival=()):
    """The memory after windows of live traffic in which E was each of these."""
    memory = DecisionMemory(EAGLE)
    for number, e in enumerate(values):
        load = Load(3.0, 300, 1000, inflight=2.0, latency_s=0.6, tokens_per_step=e, survival=survival)
        memory = with_acceptance(chat(), memory, load, NOW + 300.0 * number)
        memory = replace(memory, decided_s=NOW + 300.0 * number)
    return memory


def test_what_windows_of_live_traffic_differ_by_is_the_error_of_its_acceptance():
    calm, strange = (live_windows([2.0 + step * (-1) ** n for n in range(30)]) for step in (0.0, 0.2))
    load = Load(3.0, 300, 1000, tokens_per_step=2.0)
    errors = [live_conditions(chat(), load, one.seen)(EAGLE).tokens_per_step_error for one in (calm, strange)]
    assert errors[0] == pytest.approx(0.0, abs=0.01)
    # Windows differ by a tenth; a quarter of an hour averages six of them, as weights that fall off count.
    assert errors[1] == pytest.approx(0.1 / 6**0.5, rel=0.25)
    # One step from calibrated to live traffic is no scatter of live traffic.
    assert live_windows([1.2]).seen[0].variance == 0


def test_live_survival_is_averaged_as_acceptance_is():
    seen = live_windows([2.0, 2.0], (0.6, 0.3)).seen[0]
    assert seen.survival == pytest.approx((0.6, 0.3))
    same = replace(seen, tokens_per_step=2.0)
    assert same.moved(2.0, (0.8, 0.1), 0.25).survival == pytest.approx((0.65, 0.25))
    # A window of drafts that are accepted half as often has more of them.
    assert same.moved(1.0, (0.2, 0.1), 0.25).survival == pytest.approx((0.44, 0.22))
    assert seen.moved(2.0, (), 0.25).survival == seen.survival


def test_without_requests_or_a_measurement_it_holds():
    idle = Decisions(chat(), [EAGLE], QUICK).at(Load(0.0, 300, 0), DecisionMemory(EAGLE), NOW)
    assert (idle.action, idle.reason) == (Action.HOLD, Reason.NO_LOAD)
    assert sentence(idle) == "no request in the last 5 min: nothing to decide on"
    found = ask(law_model({EAGLE: chat().laws[EAGLE]}), 3.0, EAGLE)
    assert (found.action, found.reason) == (Action.HOLD, Reason.NOT_MEASURED)
    assert "nothing is known of no speculation" in sentence(found)


@pytest.mark.parametrize("noise", [0.01, 0.3])
@pytest.mark.parametrize("rps", [23.5, 26.0, 30.0])
def test_an_arm_that_the_load_saturates_is_not_entered_however_fast_it_is_alone(rps, noise):
    """It saturates at 23 requests per second, no speculation at 34."""
    found = ask(chat(eagle=ArmLaw(0.05, 0.0434, 3.0, noise)), rps, past=flat(rps))
    assert found.arm == NO_SPECULATION


def test_an_idle_service_rolls_when_that_is_worth_it_and_no_request_pays_for_it():
    past = flat(3.0)
    quiet = replace(past, rps=[*past.rps[:-24], *[0.0] * 24])
    policy = replace(QUICK, lookback_s=259200.0)
    found = Decisions(chat(), [EAGLE], policy).at(
        Load(0.0, 300, 0), DecisionMemory(NO_SPECULATION), NOW, quiet
    )
    assert (found.action, found.arm) == (Action.SWITCH, EAGLE)
    assert {one.arm: one for one in found.options}[EAGLE].roll_cost == pytest.approx(0.0, abs=1e-6)
    rests = Decisions(chat(), [EAGLE], policy).at(Load(0.0, 300, 0), DecisionMemory(EAGLE), NOW, quiet)
    assert (rests.action, rests.reason) == (Action.HOLD, Reason.NO_LOAD)
    assert rests.memory.decided_s == NOW


def test_requests_that_wait_let_only_an_arm_skip_the_limits_that_makes_up_for_its_roll():
    """An arm with 2 % more saturation takes hours to win back the replicas that a roll takes away."""
    cooling = DecisionMemory(NO_SPECULATION, last_switch_s=NOW - 600.0)
    policy = replace(QUICK, dwell_s=300.0, roll_seconds=300.0, roll_away_share=0.25)
    for slope, action in ((0.049, Action.SWITCH), (0.02, Action.SWITCH)):
        model = law_model({NO_SPECULATION: ArmLaw(1.0, 0.05), EAGLE: ArmLaw(0.5, slope, 2.5)})
        load = Load(35.0, 300, 6000, inflight=4500.0, latency_s=128.0, saturated=True)
        found = Decisions(model, [EAGLE], policy).at(load, cooling, NOW)
        assert (found.action is action) is (slope == 0.02), slope


def test_what_live_latency_shows_corrects_the_break_even_that_is_named():
    memory = DecisionMemory(EAGLE)
    model = chat()
    found = None
    for step in range(200):
        now = NOW + 1800.0 * step
        slow = load_of(ArmLaw(0.53 * 1.3, 0.0434 * 1.3), 8.0)
        found = Decisions(model, [EAGLE], QUICK).at(slow, memory, now)
        memory = replace(found.memory, running=EAGLE)
    assert found is not None
    until_rps = found.pays_until_rps
    assert until_rps is not None
    assert until_rps < 16.0, "17.7 as it was fitted"
    assert f"with what live latency shows it pays until {until_rps:.3g} rps" in sentence(found)


def fewest(best, **replicas):
    needs = {arm: Estimate(*3 * (replicas[arm.family],)) for arm in (NO_SPECULATION, EAGLE)}
    return FewestReplicas(best, needs, f"for 20 rps {best} needs fewest")


def test_on_a_fleet_that_is_scaled_an_arm_that_needs_more_replicas_is_not_entered_however_fast_it_is():
    scaled = fewest(NO_SPECULATION, none=2, eagle=3)
    found = ask(chat(), 3.0, fewest=scaled)
    assert (found.action, found.arm) == (Action.STAY, NO_SPECULATION)
    losing = ask(chat(), 20.0, EAGLE, fewest=fewest(EAGLE, none=3, eagle=2))
    assert (losing.action, losing.arm, losing.memory.running) == (Action.STAY, EAGLE, EAGLE)
    as_many = fewest(NO_SPECULATION, none=2, eagle=2)
    assert ask(chat(), 3.0, fewest=as_many).arm == EAGLE


def test_on_a_fleet_that_is_scaled_the_arm_that_needs_fewer_replicas_is_entered():
    scaled = fewest(NO_SPECULATION, none=2, eagle=3)
    found = ask(chat(), 3.0, EAGLE, fewest=scaled)
    assert (found.arm, found.reason) == (NO_SPECULATION, Reason.FEWER_REPLICAS)
    assert "for 20 rps none needs fewest" in sentence(found)
    slower = fewest(EAGLE, none=3, eagle=2)
    dwelling = ask(chat(), 21.0, policy=replace(QUICK, dwell_s=900.0), fewest=slower)
    assert (dwelling.action, dwelling.reason) == (Action.HOLD, Reason.DWELLING)
    entered = ask(chat(), 21.0, fewest=slower)
    assert (entered.arm, entered.reason) == (EAGLE, Reason.FEWER_REPLICAS)


@pytest.mark.parametrize(("lookback_s", "entered"), [(0.0, True), (259200.0, False)])
def test_without_a_lookback_the_largest_load_ever_seen_says_nothing(lookback_s, entered):
    model = law_model({NO_SPECULATION: ArmLaw(1.0, 0.05), EAGLE: ArmLaw(0.5, 0.08, 2.5)})
    policy = replace(QUICK, roll_seconds=300.0, roll_away_share=0.25, lookback_s=lookback_s)
    memory = DecisionMemory(NO_SPECULATION, largest_rps=13.0, largest_at_s=NOW - 86400.0)
    past = flat(2.0) if lookback_s else None
    assert (ask(model, 2.0, policy=policy, past=past, memory=memory).arm == EAGLE) is entered


CHANGES = replace(QUICK, follow=Follow.CHANGES)
FLAT = law_model({NO_SPECULATION: ArmLaw(1.0, 0.05), EAGLE: ArmLaw(0.9, 0.058, 2.5)})
LITTLE_RPS, MUCH_RPS = 8.7, 10.5
"""Rates beyond the break-even of 7.7 at which no speculation saves 3 and 11 percent of the request time on eagle/7."""


@pytest.mark.parametrize("rps", [LITTLE_RPS, MUCH_RPS])
@pytest.mark.parametrize("since_s", [0.0, 3600.0])
def test_a_break_even_protects_once_it_is_passed_by_much_or_for_an_hour(rps, since_s):
    memory = DecisionMemory(EAGLE, candidate=NO_SPECULATION, candidate_since_s=NOW - since_s)
    found = ask(FLAT, rps, EAGLE, memory=memory)
    assert found.arm == NO_SPECULATION
    assert found.memory.candidate_since_s == NOW - since_s
    assert found.protects is (rps == MUCH_RPS or since_s == 3600.0)


@pytest.mark.parametrize("policy", [QUICK, CHANGES])
def test_an_arm_that_follows_changes_is_entered_once(policy):
    first = ask(chat(), 3.0, policy=policy)
    assert (first.arm, first.memory.chosen) == (EAGLE, True)
    left = replace(first.memory, running=NO_SPECULATION, last_switch_s=NOW - 7200.0)
    again = ask(chat(), 3.0, policy=policy, memory=left)
    if policy is QUICK:
        assert again.arm == EAGLE
    else:
        assert (again.action, again.arm, again.reason) == (
            Action.HOLD,
            NO_SPECULATION,
            Reason.FOLLOWS_CHANGES,
        )
        assert "the arm follows changes, not the load" in sentence(again)
    assert ask(chat(), 3.0, policy=policy, memory=replace(left, chosen=False)).arm == EAGLE


@pytest.mark.parametrize(("rps", "since_s", "leaves"), [(LITTLE_RPS, 0.0, False), (LITTLE_RPS, 3600.0, True), (MUCH_RPS, 0.0, True)])  # fmt: skip
def test_an_arm_that_follows_changes_is_left_by_the_exits_that_protect(rps, since_s, leaves):
    memory = DecisionMemory(EAGLE, chosen=True, candidate=NO_SPECULATION, candidate_since_s=NOW - since_s)
    found = ask(FLAT, rps, EAGLE, CHANGES, memory=memory)
    assert found.arm == (NO_SPECULATION if leaves else EAGLE)
    assert (found.reason is Reason.FOLLOWS_CHANGES) is not leaves
    assert found.memory.running == found.arm


def test_an_arm_that_follows_changes_is_left_for_an_objective_that_another_arm_keeps():
    policy = replace(CHANGES, slo=Slo(tpot_s=0.010))
    found = ask(chat(), 3.0, policy=policy, memory=DecisionMemory(NO_SPECULATION, chosen=True), tpot_s=0.020)
    assert (found.action, found.arm, found.reason) == (Action.SWITCH, EAGLE, Reason.SLO_VIOLATED)


def test_a_past_says_what_one_arm_and_following_the_load_would_have_been_worth():
    night = [3.0] * 216 + [20.0] * 72
    past = PastRates([NOW - 300.0 * (863 - i) for i in range(864)], night * 3)
    found = ask(chat(), 3.0, policy=replace(QUICK, lookback_s=259200.0), past=past).followed
    assert found.days == pytest.approx(3.0, abs=0.1)
    assert 0.0 <= found.one < found.each < 1.0
    assert found.changes == 5
    assert "in 5 changes" in followed_text(found)
    assert ask(chat(), 3.0, past=flat(3.0, days=0.5)).followed is None


@pytest.mark.parametrize(
    ("figure", "value"), [("rps", math.nan), ("inflight", -1.0), ("dispersion", math.inf)]
)
def test_nothing_is_decided_on_a_figure_that_is_no_number(figure, value):
    load = replace(Load(3.0, 300, 1000), **{figure: value})
    with pytest.raises(ValueError, match=figure):
        Decisions(chat(), [EAGLE], QUICK).at(load, DecisionMemory(EAGLE), NOW)
