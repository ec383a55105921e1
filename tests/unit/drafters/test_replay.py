"""Drafts behind every token: against the rule read another way, and against what vLLM's own suffix trees drafted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.drafters.replay import (
    LONGEST,
    NgramRule,
    SuffixDrafter,
    SuffixRule,
    SuffixTree,
    model_drafts,
    ngram_drafts,
)
from unit.drafters.made_up_answers import made_up_answers

_FIGURES = [
    (
        1,
        50,
        SuffixRule(24, 1.0),
        [1464, 2344, 2931, 3390, 3787, 4135, 4443, 4711],
        [506, 1051, 1450, 1762, 2014, 2215, 2374, 2493],
    ),
    (
        2,
        5000,
        SuffixRule(24, 1.0),
        [941, 1655, 2226, 2708, 3135, 3512, 3844, 4134],
        [626, 1123, 1519, 1838, 2090, 2280, 2420, 2522],
    ),
    (
        3,
        200,
        SuffixRule(64, 2.0),
        [1270, 2534, 3273, 4024, 4634, 5251, 5772, 6284],
        [597, 1111, 1745, 2225, 2620, 2987, 3278, 3540],
    ),
    (
        4,
        200,
        SuffixRule(24, 4.0),
        [1376, 2722, 4043, 5357, 6184, 7015, 7843, 8651],
        [632, 1153, 1629, 2038, 2595, 2954, 3267, 3547],
    ),
]
"""Tokens drafted and accepted by draft length over all tokens of made-up answers, by arctic-inference 0.1.1 (its C++ trees)."""

_texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@given(prompt=_texts, answer=_texts, low=st.integers(1, 4), more=st.integers(0, 3))
def test_ngrams_are_looked_up_as_the_rule_says(
    prompt: list[int], answer: list[int], low: int, more: int
) -> None:
    drafts = ngram_drafts(prompt, answer, NgramRule(low, low + more))
    text = prompt + answer
    for index in range(len(answer) - 1):
        now = len(prompt) + index + 1
        draft: list[int] = []
        for n in range(low + more, low - 1, -1):
            places = [at for at in range(now - n) if text[at : at + n] == text[now - n : now]]
            if places:
                draft = text[places[0] + n : min(places[0] + n + LONGEST, now)]
                break
        confirmed = 0
        while (
            confirmed < len(draft)
            and now + confirmed < len(text)
            and draft[confirmed] == text[now + confirmed]
        ):
            confirmed += 1
        for k in range(1, LONGEST + 1):
            assert drafts.drafted[index, k - 1] == min(k, len(draft))
            assert drafts.accepted[index, k - 1] == min(k, confirmed)


@pytest.mark.parametrize(("seed", "vocabulary", "rule", "drafted", "accepted"), _FIGURES)
def test_suffixes_are_drafted_as_the_library_of_vllm_drafts_them(
    seed: int, vocabulary: int, rule: SuffixRule, drafted: list[int], accepted: list[int]
) -> None:
    drafter = SuffixDrafter(rule)
    found = [drafter.drafts(*pair) for pair in made_up_answers(seed, vocabulary)]
    # Of equally frequent followers the library takes one by the order of its lists; of these answers such ties are one in 200.
    assert sum(one.drafted.sum(0, dtype=int) for one in found) == pytest.approx(np.array(drafted), rel=0.005)
    assert sum(one.accepted.sum(0, dtype=int) for one in found) == pytest.approx(np.array(accepted), rel=0.01)


@given(sequences=st.lists(_texts, min_size=1, max_size=4), depth=st.integers(2, 6))
def test_a_tree_counts_every_text_up_to_its_depth(sequences: list[list[int]], depth: int) -> None:
    tree = SuffixTree(depth)
    for sequence in sequences:
        tree.begin()
        for token in sequence:
            tree.append(token)
    for length in range(1, depth + 1):
        texts = [tuple(s[at : at + length]) for s in sequences for at in range(len(s) - length + 1)]
        for text in set(texts):
            found = tree.find(text)
            count = 1 if isinstance(found, int) else found.count if found is not None else 0
            assert count == texts.count(text)
    last = sequences[-1]
    for length, node in enumerate(tree.ends, start=1):
        assert tree.find(last[len(last) - length :]) is node


def test_a_draft_follows_the_likeliest_path_until_it_is_unlikely() -> None:
    tree = SuffixTree(8)
    for sequence in ([1, 2, 3], [1, 2, 4], [1, 2, 4], [1, 5]):
        tree.begin()
        for token in sequence:
            tree.append(token)
    node = tree.find([1])
    assert node is not None
    assert tree.following(node, 1, 8, 0.1) == ([2, 4], pytest.approx([0.75, 0.5]))
    assert tree.following(node, 1, 8, 0.6) == ([2], pytest.approx([0.75]))
    assert tree.following(node, 1, 1, 0.1) == ([2], pytest.approx([0.75]))


def test_an_answer_drafts_from_the_answers_before_it() -> None:
    drafter = SuffixDrafter(SuffixRule(factor=4.0))
    answer = [7, 8, 9, 10, 11, 12]
    first, second = drafter.drafts([1, 2], answer), drafter.drafts([3, 4], answer)
    assert first.accepted.sum() == 0
    assert second.accepted[0, 3] == 4
    learnt = SuffixDrafter(SuffixRule(factor=4.0))
    learnt.learn(answer)
    assert (learnt.drafts([3, 4], answer).accepted == second.accepted).all()


def test_a_models_drafts_are_accepted_until_its_first_other_choice() -> None:
    drafts = model_drafts([True, True, False, True, False])
    assert drafts.accepted[:, 7].tolist() == [2, 1, 0, 1, 0]
    assert drafts.accepted[:, 0].tolist() == [1, 1, 0, 1, 0]
    assert (drafts.drafted[:, 4] == 5).all()
