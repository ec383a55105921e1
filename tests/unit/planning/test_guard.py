"""Every reason of the guard, at the load where it applies, and what its sentence says."""

import math
import re
from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.planning.evaluation import speedup_bounds
from breakeven.planning.guard import Action, Decision, DecisionMemory, LiveAcceptance, Load, Policy, decide
from breakeven.planning.objective import Slo
from breakeven.planning.outlook import ExpectedLoad, expected_loads
from breakeven.planning.wording import sentence
from breakeven.reasons import Reason
from fakes.lawmodel import EAGLE, EAGLE_2, LOOKUP, ArmLaw, LawModel, chat, law_model

NOW = 1_000_000.0
AT_ONCE = Policy(dwell_s=0)


def ask(
    model: LawModel, running, rps, policy=AT_ONCE, memory=None, now_s=NOW, requests=1000, **load
) -> Decision:
    return decide(
        model,
        Load(rps, 300, requests, **load),
        memory or DecisionMemory(running),
        policy,
        now_s,
        list(model.laws),
    )


def outcome(decision):
    return decision.action, decision.arm, decision.reason


def test_enters_the_arm_whose_gain_is_sure():
    decision = ask(chat(), NO_SPECULATION, 3.1)
    assert outcome(decision) == (Action.SWITCH, EAGLE, Reason.GAIN_ABOVE_THRESHOLD)
    assert decision.memory == DecisionMemory(EAGLE, NOW)
    assert decision.subject == EAGLE
    assert decision.against_none.speedup == pytest.approx(1.98, abs=0.01)


def test_keeps_an_arm_that_pays():
    assert outcome(ask(chat(), EAGLE, 3.1)) == (Action.STAY, EAGLE, Reason.BELOW_BREAK_EVEN)


def test_leaves_beyond_the_break_even_where_the_law_is_trusted():
    slow = chat(eagle=ArmLaw(0.80, 0.0434, 3.0, 0.005))
    assert outcome(ask(slow, EAGLE, 17.0)) == (Action.SWITCH, NO_SPECULATION, Reason.BEYOND_BREAK_EVEN)


def test_above_the_trusted_utilisation_only_live_latency_makes_it_leave():
    assert outcome(ask(chat(), EAGLE, 19)) == (Action.HOLD, EAGLE, Reason.EXTRAPOLATED)
    assert ask(chat(), EAGLE, 19, latency_s=2.0).action is Action.HOLD, "faster than no speculation would be"
    decision = ask(chat(), EAGLE, 19, latency_s=3.0)
    assert outcome(decision) == (Action.SWITCH, NO_SPECULATION, Reason.BEYOND_BREAK_EVEN)


def test_where_both_laws_are_extrapolated_only_a_wide_margin_makes_it_leave():
    # No speculation is at 82 % of its saturation and would take 6.1 s by its law, which may be wrong by half.
    assert ask(chat(), EAGLE, 28, latency_s=8.0).action is Action.HOLD
    decision = ask(chat(), EAGLE, 28, latency_s=12.0)
    assert outcome(decision) == (Action.SWITCH, NO_SPECULATION, Reason.BEYOND_BREAK_EVEN)
    assert "requests take 12 s where none is predicted to take 6.12 s" in sentence(decision)


def test_where_bounds_open_next_to_saturation_queueing_requests_make_it_leave():
    noisy = chat(eagle=ArmLaw(0.53, 0.0434, 3.0, noise=0.3))
    undecided = ask(noisy, EAGLE, 22)
    assert undecided.against_none.speedup_ci[1] is None or undecided.against_none.speedup_ci[1] > 1
    assert undecided.action is Action.HOLD
    assert ask(noisy, EAGLE, 22, latency_s=4.0).action is Action.HOLD, "no wide margin over 3.1 s"
    decision = ask(noisy, EAGLE, 22, latency_s=8.0)
    assert outcome(decision) == (Action.SWITCH, NO_SPECULATION, Reason.BEYOND_BREAK_EVEN)


def test_requests_that_surely_take_longer_than_without_are_evidence_where_the_running_law_is_none():
    """Its law sees a gain at 85 % of saturation, with open bounds; a second window of slow requests is enough."""
    doubtful = chat(eagle=ArmLaw(0.45, 0.0434, 3.0, noise=0.3))
    first = ask(doubtful, EAGLE, 19.6, Policy(), latency_s=4.5, requests=5000)
    assert first.against_none.speedup < 1 < speedup_bounds(first.against_none)[1]
    assert outcome(first) == (Action.HOLD, EAGLE, Reason.DWELLING)
    assert first.until_s == NOW + 300, "the window, not the dwell time of 900 s"
    assert "none is entered when it has been better for 5 min" in sentence(first)
    second = ask(doubtful, EAGLE, 19.6, Policy(), first.memory, NOW + 300, latency_s=4.5, requests=5000)
    assert outcome(second) == (Action.SWITCH, NO_SPECULATION, Reason.BEYOND_BREAK_EVEN)
    assert "requests take 4.5 s where none is predicted to take 2.58 s" in sentence(second)
    brief = replace(AT_ONCE, dwell_s=60.0)
    assert ask(doubtful, EAGLE, 19.6, brief, latency_s=4.5, requests=5000).until_s == NOW + 60


def test_slow_requests_are_evidence_even_where_the_running_law_sees_a_gain():
    hopeful = chat(eagle=ArmLaw(0.30, 0.0434, 3.0, noise=0.01))
    slow = {"latency_s": 3.3, "requests": 20_000}
    decision = ask(hopeful, EAGLE, 20, AT_ONCE, **slow)
    assert decision.against_none.speedup > 1
    assert outcome(decision) == (Action.SWITCH, NO_SPECULATION, Reason.BEYOND_BREAK_EVEN)


def test_a_mean_of_few_requests_is_no_evidence():
    hopeful = chat(eagle=ArmLaw(0.30, 0.0434, 3.0, noise=0.01))
    assert ask(hopeful, EAGLE, 20, latency_s=3.3, requests=300).reason is Reason.EXTRAPOLATED


@pytest.mark.parametrize(("rps", "reason"), [(5.0, Reason.NOT_STEADY), (20.0, Reason.EXTRAPOLATED)])
def test_a_queue_that_is_worked_off_where_the_arm_gains_rolls_nothing(rps, reason):
    """After a spike requests take long at a load that is low again; without speculation they would wait as well."""
    hopeful = chat(eagle=ArmLaw(0.30, 0.0434, 3.0, noise=0.01))
    memory = DecisionMemory(EAGLE)
    for minute in range(60):
        decision = ask(
            hopeful, EAGLE, rps, Policy(), memory, NOW + 60 * minute, latency_s=30.0, requests=5000
        )
        assert outcome(decision) == (Action.HOLD, EAGLE, reason)
        memory = decision.memory


def test_measured_saturation_moves_to_the_arm_that_carries_more():
    decision = ask(chat(), EAGLE, 16, saturated=True)
    assert outcome(decision) == (Action.SWITCH, NO_SPECULATION, Reason.ENTERED_SATURATION)


def test_a_saturated_arm_beyond_its_break_even_is_left_without_dwelling():
    decision = ask(chat(), EAGLE, 19, Policy(), latency_s=9.0, saturated=True)
    assert outcome(decision) == (Action.SWITCH, NO_SPECULATION, Reason.BEYOND_BREAK_EVEN)
    assert ask(chat(), EAGLE, 19, Policy(), latency_s=9.0).reason is Reason.DWELLING


def test_saturated_without_a_better_arm_asks_for_replicas():
    decision = ask(chat(), NO_SPECULATION, 30, saturated=True)
    assert outcome(decision) == (Action.HOLD, NO_SPECULATION, Reason.SATURATED)
    assert "add replicas" in sentence(decision)


def test_a_measured_saturation_counts_before_that_of_the_law():
    capped = chat(none=ArmLaw(1.10, 0.0293, noise=0.01, measured_saturation_rps=16.0))
    assert ask(capped, EAGLE, 20, saturated=True).reason is Reason.SATURATED


@pytest.mark.parametrize("rps", [0.01, 3.0, 15.0, 24.0, 60.0])
@pytest.mark.parametrize("saturated", [False, True])
def test_a_collapse_is_noticed_in_one_window_and_left_in_the_next_at_any_load(rps, saturated):
    load = {"tokens_per_step": 1.01, "saturated": saturated}
    noticed = ask(chat(), EAGLE, rps, Policy(), **load)
    assert outcome(noticed) == (Action.HOLD, EAGLE, Reason.DWELLING)
    assert "1.01 tokens per step" in sentence(noticed)
    assert "when a second window of 5 min says the same" in sentence(noticed)
    # The window still reaches back into the first one.
    again = ask(chat(), EAGLE, rps, Policy(), noticed.memory, NOW + 299, **load)
    assert (again.action, again.until_s) == (Action.HOLD, NOW + 300)
    confirmed = ask(chat(), EAGLE, rps, Policy(), again.memory, NOW + 300, **load)
    assert outcome(confirmed) == (Action.SWITCH, NO_SPECULATION, Reason.ACCEPTANCE_COLLAPSED)


def test_one_window_of_collapse_is_forgotten_when_the_next_shows_none():
    collapsed = ask(chat(), EAGLE, 3, tokens_per_step=1.0)
    recovered = ask(chat(), EAGLE, 3, memory=collapsed.memory, now_s=NOW + 60, tokens_per_step=3.0)
    assert outcome(recovered) == (Action.STAY, EAGLE, Reason.BELOW_BREAK_EVEN)
    later = ask(chat(), EAGLE, 3, memory=recovered.memory, now_s=NOW + 900, tokens_per_step=1.0)
    assert later.action is Action.HOLD
    # Nor is a wish for another reason evidence of it.
    beyond = ask(chat(), EAGLE, 19, Policy(dwell_s=600), latency_s=9.0, tokens_per_step=3.0)
    assert beyond.reason is Reason.DWELLING
    both = ask(chat(), EAGLE, 19, AT_ONCE, beyond.memory, NOW + 900, latency_s=9.0, tokens_per_step=1.0)
    assert both.action is Action.HOLD


def collapsed(model, arm, rps, **load):
    """The decision of the window that confirms a collapse."""
    first = ask(model, arm, rps, **load)
    return ask(model, arm, rps, memory=first.memory, now_s=NOW + 300, **load)


def test_an_arm_left_for_its_acceptance_is_not_entered_on_its_calibrated_one():
    left = collapsed(chat(eagle_2=ArmLaw(0.6, 0.036, 2.2, 0.01)), EAGLE, 3, tokens_per_step=1.02)
    assert outcome(left) == (Action.SWITCH, NO_SPECULATION, Reason.ACCEPTANCE_COLLAPSED)
    again = ask(
        chat(eagle_2=ArmLaw(0.6, 0.036, 2.2, 0.01)), left.arm, 3, memory=left.memory, now_s=NOW + 86400
    )
    assert again.arm == NO_SPECULATION
    forgotten = replace(left.memory, seen=())
    assert ask(chat(), left.arm, 3, memory=forgotten, now_s=NOW + 86400).arm == EAGLE


def test_worse_in_both_coefficients_is_left_even_where_extrapolated():
    never = chat(eagle=ArmLaw(1.3, 0.04, 3.0, 0.01))
    assert outcome(ask(never, EAGLE, 24)) == (Action.SWITCH, NO_SPECULATION, Reason.NEVER_PAYS)


def test_where_every_arm_is_worse_in_both_no_speculation_stays_because_none_ever_pays():
    never = chat(eagle=ArmLaw(1.3, 0.04, 3.0, 0.01))
    assert outcome(ask(never, NO_SPECULATION, 3)) == (Action.STAY, NO_SPECULATION, Reason.NEVER_PAYS)
    assert "only a new calibration" in sentence(ask(never, NO_SPECULATION, 3))
    one_pays = chat(eagle=ArmLaw(1.3, 0.04, 3.0, 0.01), eagle_2=ArmLaw(1.0, 0.04, 2.2, 0.01))
    assert ask(one_pays, NO_SPECULATION, 20).reason is Reason.BEYOND_BREAK_EVEN


def test_a_neighbour_must_be_surely_better_than_the_running_arm():
    model = chat(eagle_2=ArmLaw(0.6, 0.036, 2.2, 0.01))
    near, far = ask(model, EAGLE, 13), ask(model, EAGLE, 15)
    assert outcome(near) == (Action.STAY, EAGLE, Reason.GAIN_BELOW_THRESHOLD)
    assert near.alternative == EAGLE_2
    assert outcome(far) == (Action.SWITCH, EAGLE_2, Reason.GAIN_ABOVE_THRESHOLD)


def test_wide_bounds_hold():
    assert outcome(ask(chat(0.3), NO_SPECULATION, 3)) == (Action.HOLD, NO_SPECULATION, Reason.WIDE_BOUNDS)
    assert outcome(ask(chat(0.4), EAGLE, 3)) == (Action.HOLD, EAGLE, Reason.WIDE_BOUNDS)


def test_no_speculation_stays_where_every_arm_loses_or_gains_little():
    assert ask(chat(), NO_SPECULATION, 20).reason is Reason.BEYOND_BREAK_EVEN
    little = chat(eagle=ArmLaw(1.05, 0.0285, 3.0, 0.01))
    assert outcome(ask(little, NO_SPECULATION, 5)) == (
        Action.STAY,
        NO_SPECULATION,
        Reason.GAIN_BELOW_THRESHOLD,
    )
    alone = law_model({NO_SPECULATION: ArmLaw(1.1, 0.03)})
    assert outcome(ask(alone, NO_SPECULATION, 5)) == (Action.STAY, NO_SPECULATION, Reason.ALREADY_BEST)


def test_nothing_is_entered_above_the_trusted_utilisation():
    grows = chat(eagle=ArmLaw(0.5, 0.028, 3.0, 0.01))
    assert ask(grows, NO_SPECULATION, 20).action is Action.SWITCH
    assert outcome(ask(grows, NO_SPECULATION, 30, latency_s=9.0)) == (
        Action.HOLD,
        NO_SPECULATION,
        Reason.EXTRAPOLATED,
    )
    outside = chat(eagle=ArmLaw(0.5, 0.028, 3.0, 0.01, measured_to_rps=10.0))
    assert ask(outside, NO_SPECULATION, 20).reason is Reason.EXTRAPOLATED


def test_no_fit_no_decision():
    assert ask(chat(), LOOKUP, 3).reason is Reason.NO_BELIEVABLE_FIT
    doubtful = chat(none=ArmLaw(1.1, 0.0293, believable=False))
    decision = ask(doubtful, EAGLE, 3)
    assert outcome(decision) == (Action.HOLD, EAGLE, Reason.NO_BELIEVABLE_FIT)
    assert "none" in sentence(decision)
    assert ask(chat(eagle=ArmLaw(0.1, 0.001, 3.0, believable=False)), NO_SPECULATION, 3).arm == NO_SPECULATION


def test_no_request_no_decision():
    decision = ask(chat(), EAGLE, 0)
    assert outcome(decision) == (Action.HOLD, EAGLE, Reason.NO_LOAD)
    assert sentence(decision) == "no request in the last 5 min: nothing to decide on"


def test_an_objective_outranks_the_mean():
    # eagle/7 is faster on average at 15 rps, but its TPOT (a hundredth of the latency) misses 14 ms; eagle/2 keeps it.
    model = chat(eagle_2=ArmLaw(0.6, 0.036, 2.2, 0.01))
    policy = replace(AT_ONCE, slo=Slo(tpot_s=0.014))
    decision = ask(model, EAGLE, 15, policy)
    assert outcome(decision) == (Action.SWITCH, EAGLE_2, Reason.SLO_VIOLATED)
    assert "TPOT 15.2 ms > 14 ms" in sentence(decision)
    assert ask(model, EAGLE, 15, replace(AT_ONCE, slo=Slo(tpot_s=0.001))).reason is not Reason.SLO_VIOLATED


def test_an_objective_about_a_quantile_is_held_against_that_quantile():
    # The means keep 14 ms on both arms; p95 does on eagle/2 only.
    slo = Slo(tpot_s=0.014, quantile=0.95)
    model = chat(
        none=ArmLaw(1.10, 0.0293, noise=0.01, p95_over_mean=1.3),
        eagle=ArmLaw(0.53, 0.0434, 3.0, 0.01, p95_over_mean=1.5),
        eagle_2=ArmLaw(0.6, 0.036, 2.2, 0.01, p95_over_mean=1.1),
    )
    decision = ask(model, EAGLE, 13, replace(AT_ONCE, slo=slo))
    assert outcome(decision) == (Action.SWITCH, EAGLE_2, Reason.SLO_VIOLATED)
    assert "TPOT p95 18.2 ms > 14 ms" in sentence(decision)
    assert "ObjectiveNotMeasured" not in sentence(decision)
    assert ask(model, EAGLE, 13, replace(AT_ONCE, slo=replace(slo, quantile=None))).action is Action.STAY


def test_a_mean_that_stands_in_for_a_quantile_is_said_and_rescues_nobody():
    policy = replace(AT_ONCE, slo=Slo(tpot_s=0.014, quantile=0.95))
    nothing = chat(eagle_2=ArmLaw(0.6, 0.036, 2.2, 0.01))
    decision = ask(nothing, EAGLE, 15, policy)
    assert outcome(decision) == (Action.SWITCH, EAGLE_2, Reason.SLO_VIOLATED)
    assert "TPOT mean 15.2 ms > 14 ms" in sentence(decision)
    assert sentence(decision).endswith(
        "p95 of TPOT was not measured: its mean is held against the objective (ObjectiveNotMeasured)"
    )
    # eagle/7 misses it at p95; that the mean of eagle/2 keeps it says nothing about its p95.
    unlike = chat(
        eagle=ArmLaw(0.53, 0.0434, 3.0, 0.01, p95_over_mean=1.5), eagle_2=ArmLaw(0.6, 0.036, 2.2, 0.01)
    )
    assert ask(unlike, EAGLE, 13, policy).reason is not Reason.SLO_VIOLATED


def test_a_roll_must_pay_for_itself():
    small = chat(0.005, eagle=ArmLaw(1.0, 0.026, 3.0, 0.005))
    assert ask(small, NO_SPECULATION, 5).action is Action.SWITCH
    slow_start = replace(AT_ONCE, roll_seconds=1800.0)
    assert outcome(ask(small, NO_SPECULATION, 5, slow_start)) == (
        Action.STAY,
        NO_SPECULATION,
        Reason.ROLL_NOT_WORTH_IT,
    )


def day(*hours: float) -> tuple[ExpectedLoad, ...]:
    return expected_loads(hours)


def test_an_arm_that_would_lose_over_the_expected_loads_is_not_entered():
    nights = (3.0,) * 20
    assert ask(chat(), NO_SPECULATION, 3, expected=day(*nights, *(24.0,) * 4)).reason is Reason.PEAK_AHEAD
    assert ask(chat(), NO_SPECULATION, 3, expected=day(*nights, *(40.0,) * 4)).reason is Reason.PEAK_AHEAD
    assert ask(chat(), NO_SPECULATION, 3, expected=day(*nights, *(14.0,) * 4)).action is Action.SWITCH
    assert ask(chat(), NO_SPECULATION, 3, expected=day(*nights)).action is Action.SWITCH
    # Twelve minutes beyond the break-even, but not beyond saturation, do not outweigh a day below it.
    assert ask(chat(), NO_SPECULATION, 3, expected=day(*(3.0,) * 119, 20.0)).action is Action.SWITCH


def test_the_sentence_says_what_the_expected_loads_would_cost():
    decision = ask(chat(), NO_SPECULATION, 3, expected=day(*(3.0,) * 20, *(24.0,) * 4))
    assert "the expected loads (up to 24 rps per replica) take" in sentence(decision)
    assert f"{EAGLE} is entered when no such peak is ahead" in sentence(decision)


def test_the_best_arm_over_the_expected_loads_is_entered_not_the_fastest_now():
    both = chat(eagle_2=ArmLaw(0.6, 0.030, 2.2, 0.01))
    assert ask(both, NO_SPECULATION, 3).arm == EAGLE
    assert ask(both, NO_SPECULATION, 3, expected=day(*(3.0,) * 4, *(20.0,) * 8)).arm == EAGLE_2


def test_an_arm_is_left_before_a_peak_at_which_it_loses():
    busy = day(*(3.0,) * 12, *(24.0,) * 12)
    decision = ask(chat(), EAGLE, 3, expected=busy)
    assert outcome(decision) == (Action.SWITCH, NO_SPECULATION, Reason.PEAK_AHEAD)
    assert sentence(decision).endswith("a roll at the peak would lack capacity")
    # Left for a peak, the arm is not entered again before it is over.
    again = ask(chat(), NO_SPECULATION, 3, memory=decision.memory, now_s=NOW + 86400, expected=busy)
    assert again.reason is Reason.PEAK_AHEAD
    assert ask(chat(), EAGLE, 3, expected=day(*(3.0,) * 12, *(14.0,) * 12)).action is Action.STAY
    assert ask(chat(), EAGLE, 3, Policy(), expected=busy).reason is Reason.DWELLING
    brief = replace(AT_ONCE, horizon_s=300.0)
    assert ask(chat(), EAGLE, 3, brief, expected=busy).reason is Reason.BELOW_BREAK_EVEN, "not worth a roll"


def test_an_arm_is_not_left_for_a_peak_where_its_bounds_allow_a_gain():
    busy = day(*(3.0,) * 12, *(22.0,) * 12)
    exact, doubtful = (chat(eagle=ArmLaw(0.53, 0.042, 3.0, noise)) for noise in (0.002, 0.1))
    assert ask(exact, EAGLE, 3, expected=busy).reason is Reason.PEAK_AHEAD
    assert ask(doubtful, EAGLE, 3, expected=busy).action is Action.STAY


def test_the_gain_over_the_expected_loads_counts_as_far_below_its_estimate_as_that_of_now():
    mostly_calm = day(*(3.0,) * 24, 19.0, 19.0)
    exact, doubtful = (chat(0.002, eagle=ArmLaw(0.53, 0.0434, 3.0, noise)) for noise in (0.002, 0.1))
    assert ask(exact, NO_SPECULATION, 3, expected=mostly_calm).arm == EAGLE
    assert ask(doubtful, NO_SPECULATION, 3).arm == EAGLE
    assert ask(doubtful, NO_SPECULATION, 3, expected=mostly_calm).reason is Reason.PEAK_AHEAD


def test_replicas_that_a_roll_takes_away_must_be_spared():
    surge, quarter = AT_ONCE, replace(AT_ONCE, roll_away_share=0.25)
    model = chat(eagle=ArmLaw(0.9, 0.0285, 3.0, 0.005))
    assert ask(model, NO_SPECULATION, 24, surge).action is Action.SWITCH
    assert ask(model, NO_SPECULATION, 24, quarter).reason is Reason.ROLL_NOT_WORTH_IT
    assert ask(model, NO_SPECULATION, 12, quarter).action is Action.SWITCH
    everything = replace(AT_ONCE, roll_away_share=1.0)
    assert ask(model, NO_SPECULATION, 3, everything).reason is Reason.ROLL_NOT_WORTH_IT


def test_nothing_is_entered_while_a_queue_is_worked_off():
    decision = ask(chat(), NO_SPECULATION, 3, latency_s=9.0)
    assert outcome(decision) == (Action.HOLD, NO_SPECULATION, Reason.NOT_STEADY)
    assert "requests take 9 s where none is predicted to take 1.21 s" in sentence(decision)
    assert ask(chat(), NO_SPECULATION, 3, latency_s=1.3).action is Action.SWITCH


def test_cool_down_is_absolute_and_names_its_end():
    memory = DecisionMemory(EAGLE, last_switch_s=NOW - 100)
    decision = ask(chat(), EAGLE, 3, memory=memory, tokens_per_step=1.0)
    assert outcome(decision) == (Action.HOLD, EAGLE, Reason.COOLING_DOWN)
    assert decision.until_s == NOW - 100 + 3600
    assert decision.alternative == NO_SPECULATION


def test_dwell_counts_from_the_first_wish_and_during_the_cool_down():
    first = ask(chat(), NO_SPECULATION, 3, Policy())
    assert outcome(first) == (Action.HOLD, NO_SPECULATION, Reason.DWELLING)
    assert first.until_s == NOW + 900
    early = ask(chat(), NO_SPECULATION, 3, Policy(), first.memory, NOW + 899)
    assert early.reason is Reason.DWELLING
    assert ask(chat(), NO_SPECULATION, 3, Policy(), early.memory, NOW + 900).action is Action.SWITCH
    cooling = DecisionMemory(NO_SPECULATION, last_switch_s=NOW - 2700)
    wished = ask(chat(), NO_SPECULATION, 3, Policy(), cooling)
    assert wished.reason is Reason.COOLING_DOWN
    assert ask(chat(), NO_SPECULATION, 3, Policy(), wished.memory, NOW + 900).action is Action.SWITCH


def test_an_interrupted_wish_dwells_anew():
    first = ask(chat(), NO_SPECULATION, 3, Policy())
    interrupted = ask(chat(), NO_SPECULATION, 20, Policy(), first.memory, NOW + 600)
    assert interrupted.memory.candidate is None
    again = ask(chat(), NO_SPECULATION, 3, Policy(), interrupted.memory, NOW + 1200)
    assert again.until_s == NOW + 2100


def test_a_reading_that_allows_no_decision_does_not_restart_the_dwell():
    first = ask(chat(), NO_SPECULATION, 3, Policy())
    noisy = ask(chat(), NO_SPECULATION, 3, Policy(), first.memory, NOW + 600, latency_s=9.0)
    assert noisy.reason is Reason.NOT_STEADY
    assert ask(chat(), NO_SPECULATION, 3, Policy(), noisy.memory, NOW + 900).action is Action.SWITCH
    # What is never wished for again is forgotten a window after its dwell time.
    late = ask(chat(), NO_SPECULATION, 3, Policy(), noisy.memory, NOW + 1199, latency_s=9.0)
    assert late.memory.candidate == EAGLE
    late = ask(chat(), NO_SPECULATION, 3, Policy(), noisy.memory, NOW + 1200, latency_s=9.0)
    assert late.memory.candidate is None


def test_a_clock_that_was_set_back_neither_holds_for_ever_nor_releases():
    memory = DecisionMemory(
        NO_SPECULATION, last_switch_s=NOW + 1e6, candidate=EAGLE, candidate_since_s=NOW + 1e6
    )
    decision = ask(chat(), NO_SPECULATION, 3, Policy(), memory)
    assert decision.reason is Reason.COOLING_DOWN
    assert decision.until_s == NOW + 3600


def test_live_acceptance_is_carried_to_the_other_draft_lengths_of_the_drafter():
    # eagle/7 lost half of its accepted drafts, so eagle/2's calibrated 2.2 does not hold either.
    model = chat(eagle_2=ArmLaw(0.6, 0.036, 2.2, 0.01))
    decision = ask(model, EAGLE, 5, tokens_per_step=2.0)
    sibling = next(c for c in decision.field.others if c.arm == EAGLE_2)
    assert sibling.tokens_per_step == pytest.approx(1.6)
    assert decision.memory.seen == (LiveAcceptance(EAGLE, 2.0),)


def test_live_acceptance_counts_where_none_was_calibrated():
    unknown = chat(eagle=ArmLaw(0.53, 0.0434, None, 0.01))
    assert collapsed(unknown, EAGLE, 3, tokens_per_step=1.0).reason is Reason.ACCEPTANCE_COLLAPSED
    assert ask(unknown, EAGLE, 3).reason is Reason.BELOW_BREAK_EVEN


def test_two_arms_that_take_turns_by_a_hair_do_not_reset_the_dwell():
    def model(hair):
        return chat(eagle=ArmLaw(0.6 + hair, 0.036, 3.0, 0.01), eagle_2=ArmLaw(0.6, 0.036, 2.2, 0.01))

    memory = ask(model(-0.001), NO_SPECULATION, 3, Policy()).memory
    assert memory.candidate == EAGLE
    memory = ask(model(0.001), NO_SPECULATION, 3, Policy(), memory, NOW + 450).memory
    decision = ask(model(-0.001), NO_SPECULATION, 3, Policy(), memory, NOW + 900)
    assert outcome(decision) == (Action.SWITCH, EAGLE, Reason.GAIN_ABOVE_THRESHOLD)
    clearly = ask(model(0.1), NO_SPECULATION, 3, Policy(), memory, NOW + 900)
    assert clearly.memory.candidate == EAGLE_2, "a clearly better arm starts its own dwell"


def test_acceptance_of_another_drafter_is_kept_beside_the_newest():
    memory = DecisionMemory(EAGLE, seen=(LiveAcceptance(LOOKUP, 1.3), LiveAcceptance(EAGLE_2, 1.5)))
    assert ask(chat(), EAGLE, 5, memory=memory, tokens_per_step=2.0).memory.seen == (
        LiveAcceptance(LOOKUP, 1.3),
        LiveAcceptance(EAGLE, 2.0),
    )


def test_sentences_carry_the_figures_that_decided():
    assert sentence(ask(chat(), NO_SPECULATION, 3.1)) == (
        "none -> eagle/7: eagle/7 is 1.98x (90 %: 1.93 to 2.02) at 3.1 rps per replica; pays until 17.7 rps (17.2 to "
        "18.2); the lower bound exceeds 1.05x; eagle/7 is left when its upper bound falls below 1.00x"
    )
    assert sentence(ask(chat(), EAGLE, 24)).startswith(
        "eagle/7 is saturated at 24 rps per replica by its law and the other is not; pays until 17.7 rps"
    )


def test_a_break_even_that_the_live_acceptance_moved_says_so():
    """Profile, report and picture show another figure: it holds for the calibrated acceptance."""
    said = sentence(ask(chat(), EAGLE, 3.1, tokens_per_step=2.5))
    figure = re.search(
        r"pays until ([\d.]+) rps \([\d. to]+\) at the live 2\.50 tokens per step \(calibrated: 3\.00\)",
        said,
    )
    assert figure, said
    assert float(figure[1]) < 17.7
    assert "live" not in sentence(ask(chat(), EAGLE, 3.1, tokens_per_step=3.0))


def test_an_upper_bound_is_only_said_to_be_low_where_it_is():
    """Beyond what was measured the bounds stay wide: what requests really take decides, and is what is said."""
    model = chat(eagle=ArmLaw(0.6, 0.065, 3.0, 0.15, measured_to_rps=8.0))
    decision = ask(model, EAGLE, 10, latency_s=4.0)
    assert (decision.arm, decision.reason) == (NO_SPECULATION, Reason.BEYOND_BREAK_EVEN)
    assert decision.against_none.speedup_ci[1] > 1
    assert "requests take 4 s where none is predicted to take" in sentence(decision)
    assert "the upper bound is below" not in sentence(decision)


def test_every_decision_has_a_sentence_without_placeholders():
    seen = set()
    model = chat(eagle_2=ArmLaw(0.6, 0.036, 2.2, 0.01), lookup=ArmLaw(1.0, 0.028, 1.3, 0.01))
    everything = Slo(e2e_s=1.5, ttft_s=0.2, tpot_s=0.014, quantile=0.95)
    for running in model.laws:
        for rps in (0.0, 0.1, 3.0, 13.0, 15.0, 19.0, 24.0, 33.0, 60.0):
            for load in ({}, {"saturated": True}, {"tokens_per_step": 1.0}, {"expected": day(3.0, 24.0)}):
                for policy in (AT_ONCE, Policy(), replace(AT_ONCE, slo=everything)):
                    decision = ask(model, running, rps, policy, **load)
                    text = sentence(decision)
                    assert text, decision
                    assert not any(word in text for word in ("None", "nan", "inf ", "{", "}")), text
                    assert "\n" not in text
                    assert len(text) < 500
                    seen.add(decision.reason)
    assert len(seen) > 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exit_margin": 0.2}, "exit_margin exceeds min_gain"),
        ({"min_gain": -0.1}, "min_gain"),
        ({"cooldown_s": math.nan}, "cooldown_s"),
        ({"max_utilisation": 0.0}, "max_utilisation"),
        ({"horizon_s": 0.0}, "horizon_s"),
        ({"roll_away_share": 1.5}, "roll_away_share"),
    ],
)
def test_impossible_policies_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Policy(**change)


@pytest.mark.parametrize(
    "change", [{"rps": math.nan}, {"rps": -1.0}, {"requests": math.inf}, {"latency_s": math.nan}]
)
def test_missing_data_cannot_pose_as_a_load(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Load(**{"rps": 1.0, "window_s": 60.0, "requests": 10.0, **change})
