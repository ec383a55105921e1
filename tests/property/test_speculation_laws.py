"""Laws of the pooled form, of steps and of schedules."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.laws.goodput import StepCosts, allowed, best_draft_length, goodput, time_per_token
from breakeven.laws.latency import latency_among
from breakeven.laws.speculation import (
    COEFFICIENTS,
    PooledLaw,
    design,
    estimable,
    latency_design,
    mean_kv_tokens,
    outside_row_space,
    unidentified,
)
from breakeven.planning.draft_schedule import schedule
from draws import draws

few = draws(30)
coefficients = st.lists(st.floats(0.0, 0.1), min_size=8, max_size=8)
acceptances = st.floats(1.0, 8.0)


@few
@given(coefficients, acceptances, st.integers(0, 10), st.floats(1.0, 2000.0), st.floats(0.0, 200.0))
def test_the_design_spells_the_form_out(values, e, k, g, others):
    law = PooledLaw(*values)
    rows = design(e, k, g)
    flat = 1.0 if k else 0.0
    c1 = law.c1p + g / e * (law.c1v + k * law.c1d + flat * law.c1s)
    c2 = law.c2p + g / e * (law.c2v + k * law.c2d + flat * law.c2s)
    assert law.c1_s(rows) == pytest.approx(c1)
    assert law.c2_s(rows) == pytest.approx(c2)
    full = latency_design(rows, rows, others)
    assert full @ law.vector == pytest.approx(float(latency_among(c1, c2, others)))
    assert law.vector.tolist() == values


@few
@given(coefficients, acceptances, st.integers(0, 10), st.floats(1.0, 2000.0), st.integers(1, 300))
def test_a_request_is_its_prefill_and_its_steps(values, e, k, g, batch):
    law = PooledLaw(*values)
    rows = design(e, k, g)
    whole = law.c1_s(rows) + (batch - 1) * law.c2_s(rows)
    prefill = law.c1p + (batch - 1) * law.c2p
    assert prefill + g / e * law.step_s(batch, k) == pytest.approx(float(whole))


def test_without_speculation_acceptance_and_drafting_do_not_enter():
    assert design(1.0, 0.0, 200.0).tolist() == [1.0, 200.0, 0.0, 0.0]


def test_only_the_others_prefill_and_attention_grow_with_length():
    base, longer = design(2.0, 3.0, 100.0), design(2.0, 3.0, 100.0, prompt_ratio=2.0, kv_ratio=3.0)
    assert (longer / base).tolist() == [2.0, 3.0, 1.0, 1.0]


@few
@given(st.floats(0.0, 1e4), st.floats(1.0, 1e4), st.floats(0.0, 3.0))
def test_mean_kv_length_is_that_of_a_request_in_progress(prompt, output, variation):
    square = output**2 * (1.0 + variation**2)
    assert mean_kv_tokens(prompt, output, square) >= mean_kv_tokens(prompt, output)
    # A constant request is on average half through its output.
    assert mean_kv_tokens(prompt, output) == pytest.approx(prompt + output / 2)


@st.composite
def sweeps(draw):
    ks = draw(st.lists(st.integers(0, 8), min_size=1, max_size=4, unique=True))
    loads = draw(st.lists(st.floats(0.0, 50.0), min_size=1, max_size=4, unique=True))
    outputs = draw(st.lists(st.floats(20.0, 500.0), min_size=1, max_size=2, unique=True))
    grid = [(n, k, g) for n in loads for k in ks for g in outputs]
    n, k, g = (np.array(column, dtype=float) for column in zip(*grid, strict=True))
    rows = design(1.0 + 0.4 * k, k, g)
    return latency_design(rows, rows, n)


@few
@given(sweeps(), st.lists(st.floats(-2.0, 2.0), min_size=16, max_size=16))
def test_what_was_measured_and_what_lies_between_is_estimable(measured, weights):
    assert estimable(measured, measured).all()
    mixed = np.resize(weights, len(measured)) @ measured
    assume(np.linalg.norm(mixed) > 1e-3)
    assert estimable(measured, mixed)
    assert np.all(outside_row_space(measured, measured * 7.0) < 1e-6)


def test_what_points_determine_and_what_not():
    def points(ks, loads=(0.0, 5.0, 20.0), outputs=(100.0,)):
        grid = [(n, k, g) for n in loads for k in ks for g in outputs]
        n, k, g = (np.array(column, dtype=float) for column in zip(*grid, strict=True))
        rows = design((k + 1.0) ** 0.6, k, g)
        return latency_design(rows, rows, n)

    def asked(k, n=7.0, g=100.0):
        row = design((k + 1.0) ** 0.6, k, g)
        return latency_design(row, row, n)

    three = points((0, 2, 7))
    # One output length: the costs of prefill and of steps are not identified, so no coefficient of C1 or C2 stands alone ...
    assert set(unidentified(three)) == set(COEFFICIENTS)
    # ... and three draft lengths are three equations for four of them, so only what was measured is determined.
    assert all(estimable(three, asked(k)) for k in (0, 2, 7))
    assert not estimable(three, asked(4))
    assert not estimable(points((0, 7)), asked(3))
    assert not estimable(three, asked(2, g=300.0))
    both = points((0, 2, 7), outputs=(100.0, 300.0))
    assert unidentified(both) == ()
    assert estimable(both, asked(4, g=200.0))
    one_load = points((0, 2, 7), loads=(5.0,))
    assert not estimable(one_load, asked(2, n=20.0))


@few
@given(coefficients, st.integers(1, 8))
def test_estimable_predictions_do_not_depend_on_the_undetermined(values, k):
    """Two coefficient vectors that explain every point equally well predict the same estimable figures."""
    grid = [(n, j) for n in (0.0, 10.0) for j in (0, k)]
    n, j = (np.array(column, dtype=float) for column in zip(*grid, strict=True))
    rows = design(1.0 + 0.3 * j, j, 100.0)
    measured = latency_design(rows, rows, n)
    _, singular, basis = np.linalg.svd(measured)
    free = basis[np.sum(singular > 1e-9 * singular[0]) :]
    row = design(1.0 + 0.3 * k, float(k), 100.0)
    asked = latency_design(row, row, 4.0)
    assert estimable(measured, asked)
    other = np.array(values) + 3.0 * free.sum(axis=0)
    assert asked @ other == pytest.approx(float(asked @ np.array(values)), abs=1e-6)


def test_stopping_at_the_first_local_maximum_would_pick_no_speculation():
    e = [1.0, 1.5, 1.85, 2.1, 2.27, 2.4]
    k = np.arange(6)
    steps = StepCosts(base_s=1.0, token_s=0.0, draft_s=0.6, draft_position_s=0.02).step_s(1.0, k)
    output = goodput(1.0, e, steps)
    assert np.round(output, 2).tolist() == [1.0, 0.93, 1.13, 1.27, 1.35, 1.41]
    assert best_draft_length(output) == 5


@st.composite
def steps_and_tokens(draw):
    sizes = draw(st.integers(1, 40))
    longest = draw(st.integers(1, 8))
    costs = StepCosts(*(draw(st.floats(low, 1e-2)) for low in (1e-4, 0.0, 0.0, 0.0, 0.0, 0.0)))
    k = np.arange(longest + 1)
    step_s = costs.step_s(np.arange(1, sizes + 1)[:, None], k)
    e = 1.0 + np.cumsum(
        np.concatenate(
            [[0.0], np.cumprod(draw(st.lists(st.floats(0.0, 1.0), min_size=longest, max_size=longest)))]
        )
    )
    return step_s, e, k


@few
@given(steps_and_tokens(), st.one_of(st.none(), st.floats(1e-4, 0.1)), st.booleans(), st.floats(0.0, 0.05))
def test_a_schedule_is_valid_for_vllm_and_gives_away_no_more_than_it_may(case, limit, worst_case, tolerance):
    step_s, e, k = case
    found = schedule(step_s, e, k, tpot_limit_s=limit, worst_case=worst_case, tolerance=tolerance)
    sizes = len(step_s)
    ranges = found.ranges(sizes)
    assert ranges[0][0] == 1
    assert ranges[-1][1] == sizes
    for (_, high, first), (low, _, second) in itertools.pairwise(ranges):
        assert low == high + 1
        assert first != second
    assert all(0 <= length <= found.num_speculative_tokens for _, _, length in ranges)
    permitted = allowed(time_per_token(e, step_s, worst_case=worst_case), limit)
    output = np.where(permitted, goodput(np.arange(1, sizes + 1)[:, None], e, step_s), -np.inf)
    for batch in range(1, sizes + 1):
        chosen = output[batch - 1, found.at(batch)]
        assert chosen >= output[batch - 1].max() * (1.0 - tolerance) * (1 - 1e-9)


@few
@given(steps_and_tokens())
def test_merging_only_removes_ranges(case):
    step_s, e, k = case
    exact = schedule(step_s, e, k, tolerance=0.0)
    merged = schedule(step_s, e, k, tolerance=0.02)
    assert len(merged.tiers) <= len(exact.tiers)
    best = best_draft_length(goodput(np.arange(1, len(step_s) + 1)[:, None], e, step_s))
    output = goodput(np.arange(1, len(step_s) + 1)[:, None], e, step_s)
    chosen = [output[b - 1, exact.at(b)] for b in range(1, len(step_s) + 1)]
    np.testing.assert_allclose(chosen, np.take_along_axis(output, best[:, None], axis=1)[:, 0])


@few
@given(steps_and_tokens(), st.floats(1e-4, 0.1))
def test_the_worst_case_is_never_longer_than_the_mean_allows(case, limit):
    step_s, e, _ = case
    mean = time_per_token(e, step_s) <= limit
    worst = time_per_token(e, step_s, worst_case=True) <= limit
    assert np.all(~worst | mean)


def test_the_draft_length_falls_with_the_batch_where_verification_gets_dear():
    k = np.arange(6)
    e = 1.0 + np.cumsum(np.concatenate([[0.0], 0.7 ** np.arange(1, 6)]))
    step_s = StepCosts(1.0, 0.03, draft_position_s=0.05).step_s(np.arange(1, 65)[:, None], k)
    found = schedule(step_s, e, k, tolerance=0.0)
    best = np.argmax(e / step_s, axis=1)
    assert [found.at(batch) for batch in range(1, 65)] == best.tolist()
    assert len(found.tiers) == len(set(best.tolist())) >= 4
    few_ranges = schedule(step_s, e, k, tolerance=0.03)
    assert len(found.tiers) > len(few_ranges.tiers) > 1


def test_where_no_draft_length_keeps_the_limit_the_fastest_is_taken():
    assert allowed([[3.0, 2.0, 4.0], [1.0, 0.5, 9.0]], 0.9).tolist() == [
        [False, True, False],
        [False, True, False],
    ]
    assert allowed([3.0, 2.0], None).tolist() == [True, True]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PooledLaw(*(0.1,) * 7, -0.1), "coefficients"),
        (lambda: design(0.5, 1.0, 100.0), "tokens_per_step"),
        (lambda: mean_kv_tokens(10.0, 100.0, 99.0), "output_tokens_sq"),
        (lambda: outside_row_space(np.ones((2, 3)), np.ones(4)), "do not fit"),
        (lambda: StepCosts(-1.0, 0.0), "base_s"),
        (lambda: schedule([[1.0, 1.0]], [1.0, 2.0], [1, 0]), "draft_lengths"),
        (lambda: schedule([1.0], [1.0], [0]), "step_s"),
    ],
)
def test_impossible_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
