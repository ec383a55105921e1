"""Lengths of requests: means and bounds that hold for every distribution, and draws that repeat."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.errors import InputError
from breakeven.load_driver.lengths import EmpiricalLengths, LengthPair, LogNormalLengths, read_lengths
from breakeven.load_driver.sent_workload import ProsePrompts
from draws import draws

tokens = st.integers(20, 4000)
scatter = st.floats(0, 1)
seeds = st.integers(0, 1000)
STRETCH = 100


@draws(40)
@given(tokens, tokens, scatter, scatter, seeds, st.integers(0, 20))
def test_a_hundred_requests_have_the_mean_that_was_asked_for(
    prompt, output, cv_prompt, cv_output, seed, point
):
    """Left to chance the mean of a hundred lengths that scatter by their mean misses it by a tenth."""
    drawn = LogNormalLengths(prompt, output, cv_prompt * prompt, cv_output * output, seed)
    pairs = [drawn.pair(point * 1_000_000 + number) for number in range(STRETCH)]
    assert sum(pair.prompt_tokens for pair in pairs) / STRETCH == pytest.approx(prompt, rel=0.05, abs=1)
    assert sum(pair.output_tokens for pair in pairs) / STRETCH == pytest.approx(output, rel=0.05, abs=1)
    assert all(pair.prompt_tokens >= 1 and pair.output_tokens >= 1 for pair in pairs)


@draws(40)
@given(
    st.lists(st.tuples(tokens, tokens, st.integers(1, 9)), min_size=1, max_size=30), seeds, st.integers(0, 20)
)
def test_pairs_come_as_often_as_their_weights_say_and_stay_together(rows, seed, point):
    pairs = [LengthPair(prompt, output) for prompt, output, _ in rows]
    weights = [float(weight) for *_, weight in rows]
    drawn = EmpiricalLengths(pairs, weights, seed)
    found = [drawn.pair(point * 1_000_000 + number) for number in range(1000)]
    assert set(found) <= set(pairs)
    wanted = sum(pair.output_tokens * weight for pair, weight in zip(pairs, weights, strict=True)) / sum(
        weights
    )
    assert drawn.mean_output_tokens == pytest.approx(wanted)
    assert sum(pair.output_tokens for pair in found) / 1000 == pytest.approx(wanted, rel=0.03)


@draws(40)
@given(tokens, st.floats(0.1, 1), seeds, st.integers(0, 10**7))
def test_the_same_number_is_the_same_request(mean, cv, seed, index):
    drawn, again = (LogNormalLengths(mean, mean, cv * mean, 0.0, seed) for _ in range(2))
    assert drawn.pair(index) == again.pair(index)
    prompts = ProsePrompts(mean, seed, drawn)
    assert len(prompts.prompt(index).split()) == drawn.pair(index).prompt_tokens
    assert prompts.prompt(index) == ProsePrompts(mean, seed, again).prompt(index)


@draws(40)
@given(st.integers(20, 500), st.floats(0, 1), seeds, st.integers(0, 10**6), st.integers(0, 10**6))
def test_all_prompts_begin_with_the_shared_prefix_and_go_on_by_themselves(words, share, seed, one, other):
    assume(one != other)
    prompts = ProsePrompts(words, seed, prefix_share=share)
    first, second = (prompts.prompt(index).split() for index in (one, other))
    shared = round(share * words)
    assert len(first) == len(second) == words
    assert first[:shared] == second[:shared]
    assume(words - shared >= 40)
    assert first[shared:] != second[shared:]


def test_a_file_of_pairs_is_read_with_its_weights_and_refused_by_line_and_column(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("timestamp_s,prompt_tokens,output_tokens,weight\n0,100,10,3\n1,400,50,1\n")
    found = read_lengths(file, seed=0)
    assert found.mean_prompt_tokens == 175
    assert found.mean_output_tokens == 20
    for content, said in [
        ("a,b\n1,2\n", "header: no column prompt_tokens"),
        ("prompt_tokens,output_tokens\n", "no row"),
        ("prompt_tokens,output_tokens\n5,x\n", "line 2, column output_tokens: 'x'"),
        ("prompt_tokens,output_tokens\n5\n", "line 2, column output_tokens: ''"),
        ("prompt_tokens,output_tokens\n0,5\n", "line 2, column prompt_tokens: '0'"),
        ("prompt_tokens,output_tokens\n1e3,5\n", "column prompt_tokens: '1e3'"),
        ("prompt_tokens,output_tokens\n٣,5\n", "column prompt_tokens"),
        ("prompt_tokens,output_tokens,weight\n5,5,nan\n", "line 2, column weight: 'nan'"),
        ("prompt_tokens,output_tokens,weight\n5,5,-1\n", "expected a number above 0"),
    ]:
        file.write_text(content)
        with pytest.raises(InputError) as refused:
            read_lengths(file, seed=0)
        assert said in str(refused.value)
