"""Blocks of two arms and the speedup they show: drawn worlds whose truth is known, and blocks without information."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.planning.arm_blocks import ArmBlocks
from breakeven.planning.roll_experiment import MeasuredSpeedup, experiment
from breakeven.reasons import Witness
from draws import draws

BLOCK_S = 60.0
# Latency of a lone request (s), and the saturation.
ALONE_S, CARRIED_RPS = 1.0, 20.0


# Share of a request's time until its first token; tokens after it, and of a prompt.
FIRST, ANSWER, PROMPT = 0.1, 100.0, 50.0


def slowed(rps):
    """How much longer than alone a request takes at a rate."""
    return 1.0 / (1.0 - np.asarray(rps, dtype=float) / CARRIED_RPS)


def law(rps):
    """A law of the wrong level: only its slope may count."""
    rate = np.asarray(rps, dtype=float)
    return np.where(rate < CARRIED_RPS, 7.0 * slowed(np.minimum(rate, 0.99 * CARRIED_RPS)), np.nan)


def pods(rng, latency_s, rates, present, *, pod_sd=0.0, block=None):
    """Pods of one arm that serve in some blocks.

    Args:
        latency_s: of a lone request.
        rates: per block.
        present: shape (pods, blocks).
        pod_sd: by which pods differ.
        block: factor of every block; None: 1.
    """
    shape = present.shape
    finished = rng.poisson(np.broadcast_to(rates, shape) * BLOCK_S).astype(float)
    # Sums of times per token, which scatter by half from request to request.
    means = latency_s * slowed(rates) * np.exp(pod_sd * rng.standard_normal((shape[0], 1)))
    spent = means * rng.gamma(np.maximum(4.0 * finished, 1e-9)) / 4.0 * (1.0 if block is None else block)
    parts = [
        FIRST * spent,
        finished,
        (1.0 - FIRST) * spent,
        ANSWER * finished,
        np.full(shape, BLOCK_S),
        np.zeros(shape),
    ]
    parts += [PROMPT * finished, np.zeros(shape)]
    return ArmBlocks(*(np.where(present, part, np.nan) for part in parts))


def rolled(
    seed,
    speedup,
    *,
    replicas=8,
    blocks=45,
    rps=3.0,
    pod_sd=0.0,
    block=None,
    old_rps=None,
    new_rps=None,
    began=15,
    ended=23,
):
    """A fleet whose pods change, one after another."""
    rng = np.random.default_rng(seed)
    here = np.arange(blocks)
    first = np.linspace(began, ended, replicas, endpoint=False).astype(int)[:, None]
    # Pods of the next arm come as those of the last one go.
    old = pods(rng, ALONE_S, np.full(blocks, old_rps or rps), here < first + 1, pod_sd=pod_sd, block=block)
    new = pods(
        rng, ALONE_S / speedup, np.full(blocks, new_rps or rps), here >= first, pod_sd=pod_sd, block=block
    )
    return old, new


def found(old, new):
    return experiment(old, new, law, law).found


def until(blocks, seen):
    return ArmBlocks(*(getattr(blocks, one.name)[:, :seen] for one in fields(ArmBlocks)))


@pytest.mark.parametrize("speedup", [0.8, 1.0, 1.1, 1.8])
def test_the_truth_lies_within_the_bounds_whatever_level_a_law_has(speedup):
    inside = 0
    for seed in range(20):
        low, high = found(*rolled(seed, speedup)).bounds(0.95)
        inside += low <= speedup <= high
    assert inside >= 18
    one = found(*rolled(0, speedup))
    assert one.witness is Witness.BOTH
    assert one.rps == pytest.approx(3.0, rel=0.05)
    assert high / low < 1.2


def test_a_true_gain_is_never_surely_a_loss_though_it_is_looked_at_after_every_block():
    for seed in range(8):
        old, new = rolled(seed, 1.1, pod_sd=0.03)
        for seen in range(17, 46):
            looked = found(until(old, seen), until(new, seen))
            assert looked is None or looked.always_valid(0.98).upper > 1.0, (seed, seen)


@pytest.mark.parametrize("confidence", [0.9, 0.98])
def test_bounds_for_all_looks_are_wrong_at_any_look_in_few_streams_and_those_for_one_look_in_many(confidence):
    """The truth is a speedup of 1; each block measures its logarithm with an error of its own, and is looked at."""
    looks, block_sd, allowed = np.arange(1, 301), 0.2, 1.0 - confidence
    noise = np.random.default_rng(1).standard_normal((2000, looks.size))
    means = block_sd * noise.cumsum(axis=1) / looks
    known = [
        MeasuredSpeedup(0.0, block_sd / math.sqrt(look), 0.0, 9, 0.0, 3.0, 5000.0, Witness.SIDE_BY_SIDE)
        for look in looks
    ]

    def ever_wrong(all_bounds):
        # Bounds lie around a mean as these lie around 0: they miss the truth where the mean is beyond them.
        lower, upper = np.log(np.array(all_bounds)).T
        return ((means < lower) | (means > upper)).any(axis=1).mean()

    assert ever_wrong([one.bounds(confidence) for one in known]) > 5.0 * allowed
    # Bounds that are much safer than was asked for are needlessly wide.
    assert 0.25 * allowed < ever_wrong([one.always_valid(confidence) for one in known]) <= allowed


def test_an_arm_that_loses_a_fifth_is_seen_to_while_the_roll_goes_on():
    for seed in range(4):
        old, new = rolled(seed, 0.75, pod_sd=0.01, ended=31)
        looks = [found(until(old, seen), until(new, seen)) for seen in range(19, 31)]
        assert any(look.always_valid(0.98).upper < 1.0 for look in looks if look is not None)
        assert all(look.witness is not Witness.BEFORE_AFTER for look in looks[4:] if look is not None)


def test_neighbouring_blocks_that_err_alike_widen_the_bounds():
    rng = np.random.default_rng(5)
    alike = np.exp(0.2 * np.repeat(rng.standard_normal(12), 4)[:45])
    # One replica: nothing is side by side, and what lasts for four blocks is in one arm's mean only.
    plain, lasting = (found(*rolled(3, 1.2, replicas=1, block=block)) for block in (None, alike))
    single = found(*rolled(3, 1.2, replicas=1, block=np.exp(0.2 * rng.standard_normal(45))))
    assert plain.time_sd < single.time_sd < lasting.time_sd


def test_blocks_that_remember_the_last_one_leave_more_doubt_than_independent_ones_of_the_same_variance():
    """Each block errs by 0.8 of what the last one erred by, and by something new."""
    count, alone = 120, np.ones((8, 120), dtype=bool)

    def time_sd(seed, remembers):
        rng = np.random.default_rng(seed)

        def arm():
            errors = rng.standard_normal(count)
            for block in range(1, count):
                errors[block] = remembers * errors[block - 1] + math.sqrt(1.0 - remembers**2) * errors[block]
            return pods(rng, ALONE_S, np.full(count, 3.0), alone, block=np.exp(0.1 * errors))

        return found(arm(), arm()).time_sd

    independent, alike = (
        np.mean([time_sd(seed, remembers) for seed in range(20)]) for remembers in (0.0, 0.8)
    )
    assert alike > 1.2 * independent


def test_what_both_arms_share_at_a_time_is_no_doubt_about_their_ratio():
    alike = np.exp(0.3 * np.sin(np.arange(45) / 3.0))
    old, new = rolled(4, 1.3, block=alike, began=2, ended=43)
    one = found(old, new)
    assert 1.2 < one.speedup < 1.4
    assert one.time_sd < 0.04


def test_an_arm_that_a_balancer_sends_more_requests_is_not_called_slower_for_it():
    """Two replicas of the new arm get 9 rps each where the old ones get 5: what they take is moved to one rate."""
    rates = {"old_rps": 5.0, "new_rps": 9.0}
    old, new = rolled(6, 1.0, replicas=4, **rates)
    of_old, of_new = (np.nansum(one.stepped_s) / np.nansum(one.tokens) for one in (old, new))
    assert of_old / of_new < 0.8
    one = found(old, new)
    assert one.speedup == pytest.approx(1.0, abs=0.06)
    # A slope has an error, and what was moved far is known the less.
    assert one.between_sd > found(*rolled(6, 1.0, replicas=4)).between_sd + 0.05


def test_pods_that_differ_widen_the_bounds_and_more_of_them_narrow_them():
    alike, unlike = (found(*rolled(7, 1.2, pod_sd=pod_sd)) for pod_sd in (0.0, 0.12))
    assert alike.pods_sd < 0.03 < unlike.pods_sd
    assert found(*rolled(7, 1.2, pod_sd=0.12, replicas=40)).pods_sd < 0.6 * unlike.pods_sd


def test_how_much_pods_differ_is_found_from_three_of_them_and_rather_too_large():
    """They differ as usual, so that what is usual adds nothing; two or three that differ more must count in full."""
    variances = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        arms = [
            pods(rng, ALONE_S, np.full(20, 3.0), np.ones((3, 20), dtype=bool), pod_sd=0.04) for _ in range(2)
        ]
        variances.append(found(*arms).pods_sd ** 2)
    assert 1.0 < math.sqrt(np.mean(variances)) / (0.04 * math.sqrt(1 / 3 + 1 / 3)) < 1.15


def test_pods_that_a_router_sends_unlike_loads_do_not_differ_for_that():
    """Of four equal pods one gets five times the requests of another: it is slower by what its law says."""

    def pods_sd(*rates):
        rng = np.random.default_rng(16)
        here = np.ones((4, 45), dtype=bool)
        return found(*(pods(rng, ALONE_S, np.array(rates)[:, None], here) for _ in range(2))).pods_sd

    assert pods_sd(2.0, 4.0, 8.0, 10.0) < 1.3 * pods_sd(6.0, 6.0, 6.0, 6.0)


def test_pods_are_held_against_those_that_served_at_the_same_time():
    """Texts become twice as long, and half of the pods serve before that only, the others after it."""
    texts = np.where(np.arange(40) < 20, 1.0, 2.0)
    early = np.repeat([[True], [True], [False], [False]], 40, axis=1)
    present = np.where(np.arange(40) < 20, early, ~early)

    def pods_sd(block):
        rng = np.random.default_rng(17)
        return found(*(pods(rng, ALONE_S, np.full(40, 3.0), present, block=block) for _ in range(2))).pods_sd

    assert pods_sd(texts) < 1.3 * pods_sd(None)


def test_a_pod_with_more_load_than_the_law_has_a_latency_for_leaves_bounds():
    rng = np.random.default_rng(18)
    old, new = (pods(rng, ALONE_S, np.full(30, 2.0), np.ones((4, 30), dtype=bool)) for _ in range(2))
    crowded = np.array([[11.0], [1.0], [1.0], [1.0]])
    summed = {name: crowded * getattr(new, name) for name in ("waited_s", "begun", "stepped_s", "tokens")}
    bounds = found(old, replace(new, **summed)).bounds(0.95)
    assert 0.0 < bounds.lower < bounds.upper < math.inf


def test_each_error_has_its_own_quantile_and_together_they_add_in_squares():
    none = MeasuredSpeedup(math.log(2.0), 1e-9, 0.0, 9, 0.0, 3.0, 5000.0, Witness.BOTH)
    # 1.96: of a normal distribution; 2.262: of Student's with 9 degrees of freedom.
    alone = {"time_sd": 1.96 * 0.03, "pods_sd": 2.262 * 0.03, "between_sd": 1.96 * 0.03}
    for name, radius in alone.items():
        bounds = replace(none, **{name: 0.03}).bounds(0.95)
        assert np.log(bounds) == pytest.approx(math.log(2.0) + radius * np.array([-1.0, 1.0]), abs=1e-5)
    every = replace(none, **dict.fromkeys(alone, 0.03))
    assert math.log(every.bounds(0.95).upper / 2.0) == pytest.approx(math.hypot(*alone.values()), abs=1e-5)


def test_one_replica_is_compared_before_and_after_with_what_that_costs():
    # In the one block that both serve in, the new pod is cold.
    apart = found(*rolled(8, 1.5, replicas=1, ended=16))
    assert apart.witness is Witness.BEFORE_AFTER
    assert apart.between_sd >= 0.05
    low, high = apart.bounds(0.95)
    assert 1.0 < low < 1.5 < high


def test_a_saturated_arm_says_so_and_is_compared_with_nothing():
    old, new = rolled(9, 1.5)
    queued = replace(old, queued=np.where(np.isfinite(old.queued), 3.0, np.nan))
    result = experiment(queued, new, law, law)
    assert result.found is None
    assert result.old_saturated == result.old_blocks > 0 == result.new_saturated
    beyond = experiment(old, new, lambda rps: np.where(np.asarray(rps) < 2.0, law(rps), np.nan), law)
    assert beyond.found is None
    assert beyond.old_saturated == beyond.old_blocks
    one_queues = replace(old, queued=np.where(np.arange(8)[:, None] < 1, queued.queued, old.queued))
    answered = experiment(one_queues, new, law, law)
    assert answered.found is not None, "seven others answer at once"
    assert answered.old_saturated == 0


def test_the_requests_of_a_roll_are_those_of_the_arm_that_had_fewer():
    old, new = rolled(9, 1.5)
    # A pod's first block does not count.
    few, many = (
        np.nansum(one.begun) - sum(row[np.isfinite(row)][0] for row in one.begun) for one in (old, new)
    )
    assert few < many
    assert experiment(old, new, law, law).requests == pytest.approx(few)
    assert experiment(new, old, law, law).requests == pytest.approx(few)


def test_blocks_without_figures_change_nothing_else():
    old, new = rolled(10, 1.3)
    holes = np.random.default_rng(0).random(old.begun.shape) < 0.2
    pierced = ArmBlocks(*(np.where(holes, np.nan, getattr(old, f.name)) for f in fields(ArmBlocks)))
    assert found(pierced, new).speedup == pytest.approx(1.3, rel=0.08)
    nothing = ArmBlocks(*(np.full_like(old.begun, np.nan) for _ in fields(ArmBlocks)))
    assert experiment(nothing, new, law, law).found is None
    assert experiment(old, nothing, law, law).new_blocks == 0


def test_a_pods_first_block_does_not_count():
    """Its graphs and caches are made in it."""
    old, new = rolled(11, 1.3)
    first = np.cumsum(np.isfinite(new.begun), axis=1) == 1
    cold = replace(new, stepped_s=np.where(first, 50.0 * new.stepped_s, new.stepped_s))
    assert found(old, cold) == found(old, new)


def test_prompts_that_are_shorter_after_the_roll_make_no_arm_faster_and_leave_doubt():
    old, new = rolled(20, 1.0, replicas=1, ended=16)
    one, shorter = (
        found(old, replace(new, waited_s=part * new.waited_s, prompt_tokens=part * new.prompt_tokens))
        for part in (1.0, 0.5)
    )
    assert shorter.log == pytest.approx(one.log, abs=0.01)
    assert math.hypot(one.between_sd, 0.04) < shorter.between_sd
    # Of prompts that nobody counts nothing is known.
    unknown = replace(new, waited_s=0.5 * new.waited_s, prompt_tokens=np.nan * new.prompt_tokens)
    assert found(old, unknown).log == pytest.approx(one.log + 0.05, abs=0.01)


def test_answers_of_another_length_at_the_same_pace_make_no_arm_faster():
    """Half the tokens of a request take half of its time, and half as many requests are in flight."""
    old, new = rolled(21, 1.0, rps=1.0)
    halved = replace(new, stepped_s=0.5 * new.stepped_s, tokens=0.5 * new.tokens)
    assert found(old, halved).log == pytest.approx(found(old, new).log, abs=0.04)


def test_a_pod_that_only_drains_counts_for_nothing():
    old, new = rolled(22, 1.2)
    draining = (np.arange(8)[:, None] == 3) & (np.arange(45) > 16)
    left = replace(
        old, begun=np.where(draining, 0.0, old.begun), stepped_s=np.where(draining, 9.0, 1.0) * old.stepped_s
    )
    gone = ArmBlocks(*(np.where(draining, np.nan, getattr(old, part.name)) for part in fields(ArmBlocks)))
    assert found(left, new).log == pytest.approx(found(gone, new).log, abs=1e-3)


@pytest.mark.parametrize(("had", "has"), [(0.0, 0.0), (0.5, 0.5), (0.5, 0.0), (0.0, 0.5), (0.5, None)])
def test_hits_that_one_arm_lacks_are_allowed_for_on_its_side(had, has):
    """Both arms are of one speed; the one whose caches hold less may be the faster one."""
    old, new = rolled(23, 1.0)
    share = math.nan if has is None else has
    one = found(replace(old, hits=had * old.prompt_tokens), replace(new, hits=share * new.prompt_tokens))
    assert (one.new_cold > 0.08) == (has is None or has < had)
    assert (one.old_cold > 0.08) == (has is not None and had < has)
    plain = replace(one, new_cold=0.0, old_cold=0.0).bounds(0.95)
    assert one.bounds(0.95).upper == pytest.approx(plain.upper * math.exp(one.new_cold))
    assert one.bounds(0.95).lower == pytest.approx(plain.lower / math.exp(one.old_cold))


def test_an_arm_with_few_requests_is_not_called_faster_for_their_scatter():
    """A mean of logarithms of noisy means lies low."""
    logs = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        old, new = (
            pods(rng, ALONE_S, np.full(60, rps), np.ones((count, 60), dtype=bool))
            for count, rps in ((8, 3.0), (1, 0.3))
        )
        logs.append(found(old, new).log)
    assert np.mean(logs) == pytest.approx(0.0, abs=0.008)


def test_blocks_of_before_and_after_leave_no_more_doubt_than_those_side_by_side_alone():
    old, new = rolled(0, 1.2)
    beside = np.isfinite(old.begun).any(axis=0) & np.isfinite(new.begun).any(axis=0)
    alone = found(
        *(
            ArmBlocks(*(np.where(beside, getattr(blocks, one.name), np.nan) for one in fields(ArmBlocks)))
            for blocks in (old, new)
        )
    )
    every = found(old, new)
    assert (alone.witness, every.witness) == (Witness.SIDE_BY_SIDE, Witness.BOTH)
    of_every, of_alone = (math.hypot(one.time_sd, one.pods_sd, one.between_sd) for one in (every, alone))
    assert of_every < 0.95 * of_alone


def test_blocks_of_a_second_that_hold_two_requests_are_joined_until_they_tell_a_rate():
    """Every second two requests: alone each block would be at a rate of its own, some beyond the arm's saturation."""
    rng = np.random.default_rng(2)
    # Minutes of the pods, seen in sixty parts each.
    old, new = rolled(13, 1.6, replicas=2, blocks=30, rps=1.0, began=10, ended=14)

    def split(blocks):
        seconds = np.full((8, 2, 30, 60), np.nan)
        for pod, minute in np.argwhere(np.isfinite(blocks.begun)):
            begun = rng.multinomial(int(blocks.begun[pod, minute]), np.full(60, 1 / 60))
            each_s = blocks.stepped_s[pod, minute] / blocks.begun[pod, minute]
            of_requests = (FIRST / (1.0 - FIRST) * each_s * begun, begun, each_s * begun, ANSWER * begun)
            seconds[:, pod, minute] = (*of_requests, np.ones(60), np.zeros(60), PROMPT * begun, np.zeros(60))
        return ArmBlocks(*seconds.reshape(8, 2, -1))

    fine = experiment(split(old), split(new), law, law)
    whole = found(old, new)
    assert fine.new_saturated == fine.old_saturated == 0
    assert fine.found.speedup == pytest.approx(whole.speedup, rel=0.05)
    assert fine.found.requests == pytest.approx(whole.requests, rel=0.1)
    assert fine.found.time_sd < 2.0 * whole.time_sd
    # A queue that stood in every other second was worked off in between.
    waits = replace(split(new), queued=np.where(np.arange(30 * 60) % 2, 3.0, 0.0) + 0.0 * split(new).queued)
    assert experiment(split(old), waits, law, law).new_saturated == 0


def test_joined_blocks_in_which_one_arm_follows_the_other_are_not_side_by_side():
    old, new = rolled(14, 1.5, replicas=1, blocks=40, rps=0.05, began=17, ended=18)
    alone = np.arange(40) < 17
    gone = ArmBlocks(*(np.where(alone, getattr(old, f.name), np.nan) for f in fields(ArmBlocks)))
    assert found(gone, new).witness is Witness.BEFORE_AFTER


ODD = np.array([math.nan, 0.0, -1.0, 1e-9, 1e9, 3.0, 60.0, 200.0])


@draws(40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 9), st.booleans())
def test_no_blocks_make_it_fail(seed, count, blocks, tame):
    rng = np.random.default_rng(seed)

    def drawn():
        parts = (
            rng.choice(ODD, (8, count, blocks)) if not tame else rng.uniform(0.0, 300.0, (8, count, blocks))
        )
        return ArmBlocks(*parts)

    one = found(drawn(), drawn())
    if one is not None:
        for bounds in (one.bounds(0.95), one.always_valid(0.98)):
            assert 0.0 <= bounds.lower <= bounds.upper
