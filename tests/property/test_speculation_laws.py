"""Laws of steps and of schedules."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.laws.latency import mean_kv_tokens
from breakeven.planning.draft_schedule import goodput, schedule
from draws import draws

few = draws(30)


def step_times(sizes, k, base, token=0.0, draft=0.0, position=0.0, drafted=0.0):
    """Durations (s) of steps of 1 to `sizes` requests at each draft length: SmartSpec's form."""
    batch = np.arange(1, sizes + 1)[:, None]
    return base + token * batch * (k + 1.0) + draft * (k > 0) + k * (position + drafted * batch)


@few
@given(st.floats(0.0, 1e4), st.floats(1.0, 1e4), st.floats(0.0, 3.0))
def test_mean_kv_length_is_that_of_a_request_in_progress(prompt, output, variation):
    square = output**2 * (1.0 + variation**2)
    assert mean_kv_tokens(prompt, output, square) >= mean_kv_tokens(prompt, output)
    # A constant request is on average half through its output.
    assert mean_kv_tokens(prompt, output) == pytest.approx(prompt + output / 2)


@st.composite
def steps_and_tokens(draw):
    sizes = draw(st.integers(1, 40))
    longest = draw(st.integers(1, 8))
    k = np.arange(longest + 1)
    step_s = step_times(sizes, k, *(draw(st.floats(low, 1e-2)) for low in (1e-4, 0.0, 0.0, 0.0, 0.0)))
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
    each_s = step_s / (1.0 if worst_case else e)
    # Where no draft length keeps the limit the fastest is taken.
    kept = each_s <= (np.inf if limit is None else limit)
    fastest = each_s <= each_s.min(axis=1, keepdims=True)
    permitted = np.where(kept.any(axis=1, keepdims=True), kept, fastest)
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
    output = goodput(np.arange(1, len(step_s) + 1)[:, None], e, step_s)
    chosen = [output[b - 1, exact.at(b)] for b in range(1, len(step_s) + 1)]
    np.testing.assert_allclose(chosen, output.max(axis=1))


def test_the_draft_length_falls_with_the_batch_where_verification_gets_dear():
    k = np.arange(6)
    e = 1.0 + np.cumsum(np.concatenate([[0.0], 0.7 ** np.arange(1, 6)]))
    step_s = step_times(64, k, 1.0, 0.03, position=0.05)
    found = schedule(step_s, e, k, tolerance=0.0)
    best = np.argmax(e / step_s, axis=1)
    assert [found.at(batch) for batch in range(1, 65)] == best.tolist()
    assert len(found.tiers) == len(set(best.tolist())) >= 4
    few_ranges = schedule(step_s, e, k, tolerance=0.03)
    assert len(found.tiers) > len(few_ranges.tiers) > 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_kv_tokens(10.0, 100.0, 99.0), "output_tokens_sq"),
        (lambda: schedule([[1.0, 1.0]], [1.0, 2.0], [1, 0]), "draft_lengths"),
        (lambda: schedule([1.0], [1.0], [0]), "step_s"),
    ],
)
def test_impossible_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
