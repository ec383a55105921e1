"""Laws of the guard: it never flaps, more doubt never makes it act, and its answer is a fixed point."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION
from breakeven.planning.guard import Action, DecisionMemory, Load, Policy, decide
from breakeven.planning.objective import Slo
from breakeven.planning.outlook import expected_loads
from draws import draws
from fakes.lawmodel import EAGLE, EAGLE_2, LOOKUP, ArmLaw, law_model

NOW = 1_000_000.0


def floats(low, high):
    return st.floats(low, high, allow_nan=False)


@st.composite
def models(draw):
    noise = draw(floats(0.0, 0.1))
    laws = {NO_SPECULATION: ArmLaw(1.0, 0.03, noise=noise)}
    for arm, e in ((EAGLE, 3.0), (EAGLE_2, 2.2), (LOOKUP, 1.4)):
        if draw(st.booleans()):
            capped = draw(st.one_of(st.none(), floats(10.0, 40.0)))
            laws[arm] = ArmLaw(
                draw(floats(0.3, 1.4)), draw(floats(0.01, 0.06)), e, noise, measured_saturation_rps=capped
            )
    return law_model(laws)


@st.composite
def policies(draw):
    gain = draw(floats(0.01, 0.3))
    slo = Slo(e2e_s=draw(floats(0.3, 5.0))) if draw(st.booleans()) else Slo()
    return Policy(
        min_gain=gain,
        exit_margin=draw(floats(0.0, gain)),
        max_utilisation=draw(floats(0.3, 0.9)),
        cooldown_s=draw(st.sampled_from([0.0, 600.0, 3600.0])),
        dwell_s=draw(st.sampled_from([0.0, 300.0, 900.0])),
        slo=slo,
        roll_seconds=draw(st.sampled_from([0.0, 120.0])),
        roll_away_share=draw(st.sampled_from([0.0, 0.25])),
    )


def live_in(model, truth, rps, policy, start, hours=6.0, expected=()):
    """Run the guard against an engine whose acceptance is `truth`; return the arms it switched to and when."""
    memory, switches = DecisionMemory(start), []
    for step in range(int(hours * 4)):
        now = NOW + 900.0 * step
        running = memory.running
        law = model.laws[running].at(truth.get(running))
        left = 1.0 - rps * float(law.c2)
        load = Load(
            rps,
            300,
            1000,
            latency_s=float(law.c1) / left if left > 0 else 60.0,
            tokens_per_step=truth.get(running),
            # Where a queue was measured to grow, or by the law of what is really accepted.
            saturated=left <= 0 or rps >= (model.laws[running].measured_saturation_rps or math.inf),
            expected=expected,
        )
        decision = decide(model, load, memory, policy, now, list(model.laws))
        memory = decision.memory
        if decision.action is Action.SWITCH:
            assert decision.arm != running
            switches.append((now, decision.arm))
        else:
            assert decision.arm == running
    return switches


@draws(40)
@given(models(), policies(), floats(0.1, 60.0), st.data())
def test_a_constant_load_brings_at_most_one_switch(model, policy, rps, data):
    start = data.draw(st.sampled_from(sorted(model.laws)))
    truth = {arm: law.tokens_per_step for arm, law in model.laws.items() if law.tokens_per_step}
    assert len(live_in(model, truth, rps, policy, start)) <= 1


@draws(60)
@given(models(), policies(), floats(0.1, 60.0), st.lists(floats(0.0, 60.0), max_size=30), st.data())
def test_what_is_expected_brings_no_flapping_either(model, policy, rps, past, data):
    start = data.draw(st.sampled_from(sorted(model.laws)))
    truth = {arm: law.tokens_per_step for arm, law in model.laws.items() if law.tokens_per_step}
    expected = expected_loads([*past, rps])
    arms = [arm for _, arm in live_in(model, truth, rps, policy, start, expected=expected)]
    # Left at once for what loses now, then perhaps for what is best over all that is expected; never back.
    assert len(arms) <= 2
    assert len({start, *arms}) == len(arms) + 1


@draws(60)
@given(models(), policies(), floats(0.1, 30.0))
def test_a_load_that_is_expected_to_last_is_the_load_of_now(model, policy, rps):
    now = Load(rps, 300, 1000)
    same = replace(now, expected=expected_loads([rps] * 5))
    # Beyond saturation there is no rest: what counts then is what the queue grows to.
    assume(all(rps < 0.9 * law.saturation_rps for law in model.laws.values()))
    first, second = (
        decide(model, load, DecisionMemory(NO_SPECULATION), policy, NOW, list(model.laws))
        for load in (now, same)
    )
    assert (first.action, first.arm, first.reason) == (second.action, second.arm, second.reason)


@draws(30)
@given(models(), policies(), floats(0.1, 60.0), st.data())
def test_a_drafter_that_disappoints_is_tried_once(model, policy, rps, data):
    start = data.draw(st.sampled_from(sorted(model.laws)))
    truth = {arm: data.draw(floats(1.0, arm.k + 1.0)) for arm in model.laws if arm.k}
    arms = [arm for _, arm in live_in(model, truth, rps, policy, start)]
    # Each drafter may bring one entry and one exit, and its second draft length one more.
    assert len(arms) <= 2 * len({arm.family for arm in truth}) + 1
    assert all(arms.count(arm) <= 1 for arm in arms if arm != NO_SPECULATION)


@draws(60)
@given(models(), policies(), st.data())
def test_nothing_is_done_within_the_cool_down(model, policy, data):
    assume(policy.cooldown_s)
    running = data.draw(st.sampled_from(sorted(model.laws)))
    since = data.draw(floats(0.0, 1.0)) * policy.cooldown_s * 0.999
    memory = DecisionMemory(running, NOW - since, data.draw(st.sampled_from(sorted(model.laws))), NOW - 1e6)
    load = Load(
        data.draw(floats(0.0, 60.0)),
        300,
        data.draw(floats(0.0, 1e5)),
        latency_s=data.draw(st.one_of(st.none(), floats(0.0, 100.0))),
        tokens_per_step=data.draw(st.one_of(st.none(), floats(1.0, 3.0))),
        saturated=data.draw(st.booleans()),
    )
    decision = decide(model, load, memory, policy, NOW, list(model.laws))
    assert decision.action is not Action.SWITCH


@draws(60)
@given(models(), policies(), floats(0.1, 60.0), st.data())
def test_deciding_again_at_once_changes_nothing(model, policy, rps, data):
    running = data.draw(st.sampled_from(sorted(model.laws)))
    first = decide(model, Load(rps, 300, 1000), DecisionMemory(running), policy, NOW, list(model.laws))
    again = decide(model, Load(rps, 300, 1000), first.memory, policy, NOW, list(model.laws))
    assert again.action is not Action.SWITCH or again.arm == first.arm
    assert again.arm == first.arm
    same = decide(model, Load(rps, 300, 1000), DecisionMemory(running), policy, NOW, list(model.laws))
    assert (same.action, same.arm, same.reason) == (first.action, first.arm, first.reason)


@draws(60)
@given(models(), policies(), floats(0.1, 60.0), floats(1.0, 5.0))
def test_more_doubt_never_makes_it_enter(model, policy, rps, factor):
    policy = replace(policy, dwell_s=0.0, slo=Slo())
    doubtful = law_model(
        {arm: replace(law, noise=law.noise * factor) for arm, law in model.laws.items()}, model.confidence
    )

    def entered(asked):
        load = Load(rps, 300, 1000)
        decision = decide(asked, load, DecisionMemory(NO_SPECULATION), policy, NOW, list(model.laws))
        return decision.action is Action.SWITCH

    assert entered(model) or not entered(doubtful)


@draws(60)
@given(models(), policies(), floats(0.1, 60.0), floats(0.0, 0.5))
def test_asking_for_more_gain_never_makes_it_enter(model, policy, rps, more):
    policy = replace(policy, dwell_s=0.0, slo=Slo())
    greedy = replace(policy, min_gain=policy.min_gain + more)

    def entered(by):
        decision = decide(
            model, Load(rps, 300, 1000), DecisionMemory(NO_SPECULATION), by, NOW, list(model.laws)
        )
        return decision.action is Action.SWITCH

    assert entered(policy) or not entered(greedy)


@draws(40)
@given(models(), policies(), st.data())
def test_a_collapsed_acceptance_switches_off_in_the_second_window_at_any_load(model, policy, data):
    speculative = sorted(arm for arm in model.laws if arm.k)
    assume(speculative)
    running = data.draw(st.sampled_from(speculative))
    load = Load(
        data.draw(floats(0.01, 100.0)),
        300,
        1000,
        tokens_per_step=1.0 + data.draw(floats(0.0, 0.999)) * policy.min_gain,
        saturated=data.draw(st.booleans()),
    )
    policy = replace(policy, slo=Slo())
    noticed = decide(model, load, DecisionMemory(running), policy, NOW, list(model.laws))
    assert noticed.action is Action.HOLD
    decision = decide(model, load, noticed.memory, policy, NOW + load.window_s, list(model.laws))
    assert decision.action is Action.SWITCH
    assert decision.arm != running
    if decision.arm.family == running.family:
        # Another draft length of the same drafter, if even the acceptance carried over leaves it a gain.
        (other,) = (c for c in decision.field.others if c.arm == decision.arm)
        assert other.tokens_per_step > 1.0 + policy.min_gain


@draws(40)
@given(models(), policies(), floats(0.1, 60.0), st.randoms(use_true_random=False))
def test_the_order_in_which_candidates_are_named_does_not_matter(model, policy, rps, random):
    arms = list(model.laws)
    shuffled = arms[:]
    random.shuffle(shuffled)
    load = Load(rps, 300, 1000)
    first, second = (
        decide(model, load, DecisionMemory(NO_SPECULATION), policy, NOW, named) for named in (arms, shuffled)
    )
    by_latency = {c.arm: c.latency_s for c in first.field.others}
    assert first.action is second.action
    assert np.isclose(by_latency.get(first.arm, 0.0), by_latency.get(second.arm, 0.0))
