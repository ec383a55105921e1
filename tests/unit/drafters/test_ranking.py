"""Tokens per step with bounds, parameters that are searched, and what a calibration promises."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.drafters.answers_file import FinishedAnswer
from breakeven.drafters.ranking import Ranked, Tally, conversations, judged, promise_of, ranked
from breakeven.drafters.replay import LONGEST, model_drafts
from breakeven.prior.public_table import ServiceFacts
from unit.drafters.made_up_answers import made_up_answers


def _answers(count: int = 40) -> list[FinishedAnswer]:
    return [
        FinishedAnswer(tuple(prompt), tuple(answer), ("code", "chat")[index % 2])
        for index, (prompt, answer) in enumerate(made_up_answers(5, 300, count))
    ]


@given(hits=st.lists(st.booleans(), min_size=2, max_size=60), k=st.integers(1, LONGEST))
def test_steps_and_survival_are_those_of_a_walk(hits: list[bool], k: int) -> None:
    hits[-1] = False
    tally = Tally.of([model_drafts(hits)])
    place, accepted = 0, []
    while place < len(hits) - 1:
        run = 0
        while run < k and hits[place + run]:
            run += 1
        accepted.append(run)
        place += run + 1
    assert tally.steps[0, k - 1] == len(accepted)
    assert tally.survival(k) == pytest.approx(
        [sum(run >= i for run in accepted) / len(accepted) for i in range(1, k + 1)]
    )
    assert tally.tokens_per_step(k).value == pytest.approx(1.0 + sum(accepted) / len(accepted))
    assert tally.drafted_share(k) == 1.0


def test_bounds_hold_where_answers_differ_more_than_their_steps() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(100):
        rates = rng.beta(4, 2, size=30)
        tally = Tally.of(model_drafts([*(rng.random(50) < rate), False]) for rate in rates)
        # Steps are counted, so the E that a long log tends to is a mean over steps.
        drawn = rng.beta(4, 2, size=200_000)
        steps = 1.0 / (1.0 + drawn)
        true = 1.0 + float((steps * drawn).sum() / steps.sum())
        known = tally.tokens_per_step(1)
        assert known.lower is not None
        assert known.upper is not None
        held += known.lower <= true <= known.upper
    assert 83 <= held <= 97


def _turns(seed: int, people: int, turns: int) -> list[FinishedAnswer]:
    """Rows of a log in which each prompt of a conversation repeats what was said before."""
    rng, found = np.random.default_rng(seed), []
    for person in range(people):
        said: tuple[int, ...] = (1, 2, 3, 100 + person)
        for turn in range(turns):
            answer = tuple(rng.integers(200, 300, size=8).tolist())
            found.append(FinishedAnswer(said, answer))
            said = (*said, *answer, 400 + turn)
    return found


def test_turns_are_one_conversation_and_stay_in_one_half() -> None:
    answers = _turns(1, 12, 4)
    of_each = conversations(answers)
    assert {len(set(of_each[start : start + 4].tolist())) for start in range(0, 48, 4)} == {1}
    assert len(set(of_each.tolist())) == 12
    halves = judged(of_each)
    assert {len(set(halves[start : start + 4].tolist())) for start in range(0, 48, 4)} == {1}
    assert halves.sum() == 24
    assert (ranked(answers)[0].tally.conversations == of_each[halves]).all()
    # Prompts of one template differ before they end, and one token begins too many others.
    apart = [FinishedAnswer((7, 8, number), (1, 2)) for number in range(5)]
    assert len(set(conversations([*apart, FinishedAnswer((7,), (1, 2))]).tolist())) == 6


def test_bounds_hold_where_turns_are_rows_of_their_own() -> None:
    rng, held = np.random.default_rng(8), [0, 0]
    drawn = rng.beta(4, 2, size=200_000)
    steps = 1.0 / (1.0 + drawn)
    true = 1.0 + float((steps * drawn).sum() / steps.sum())
    for _ in range(100):
        rates = np.repeat(rng.beta(4, 2, size=30), 6)
        hits = [model_drafts([*(rng.random(30) < rate), False]) for rate in rates]
        for place, each in enumerate((np.repeat(np.arange(30), 6), None)):
            known = Tally.of(hits, each).tokens_per_step(1)
            held[place] += (known.lower or 0.0) <= true <= (known.upper or 0.0)
    assert 83 <= held[0] <= 97
    assert held[1] < 70


def test_all_drafters_are_judged_on_answers_that_no_parameter_was_chosen_on() -> None:
    answers = _answers()
    found = ranked(answers)
    assert [one.method for one in found] == ["ngram", "ngram", "suffix", "suffix"]
    last = judged(conversations(answers))
    assert last.sum() == len(answers) // 2
    assert all(len(one.tally.steps) == last.sum() for one in found)
    kept = [answer.group for answer, is_judged in zip(answers, last, strict=True) if is_judged]
    assert {name: len(tally.steps) for name, tally in found[0].groups.items()} == Counter(kept)
    # The answers on which it was chosen count for nothing but as a source of suffixes.
    blind = [
        answer if is_judged else replace(answer, tokens=answer.tokens[::-1])
        for answer, is_judged in zip(answers, last, strict=True)
    ]
    assert ranked(blind)[0].tally.tokens_per_step(8) == found[0].tally.tokens_per_step(8)


def test_of_a_few_answers_nothing_is_searched_and_a_lone_one_promises_little() -> None:
    assert [one.options for one in ranked(_answers(7))] == [{}, {}]
    lone = Tally.of([model_drafts([True] * 20 + [False])])
    known = promise_of(Ranked("ngram", {}, lone), ServiceFacts.of_name("Llama-3.1-8B"))
    assert known is not None
    assert known.speedup.lower is not None
    assert lone.tokens_per_step(3).bounds is None
    assert known.probability < 1.0


def test_no_draft_length_is_promised_far_beyond_a_measured_one() -> None:
    tally = Tally.of(model_drafts([*([True] * 40), False]) for _ in range(30))
    known = promise_of(Ranked("ngram", {}, tally), ServiceFacts.of_name("Llama-3.1-8B"))
    assert known is not None
    assert known.k <= 2 * known.row.k + 1


def test_what_it_is_worth_follows_from_the_measured_tokens() -> None:
    rng = np.random.default_rng(1)
    often = Tally.of(model_drafts([*(rng.random(60) < 0.9), False]) for _ in range(30))
    seldom = Tally.of(model_drafts([*(rng.random(60) < 0.02), False]) for _ in range(30))
    facts = ServiceFacts.of_name("Llama-3.1-8B", "H100")
    good, bad = (promise_of(Ranked("ngram", {}, tally), facts) for tally in (often, seldom))
    assert good is not None
    assert bad is not None
    assert good.probability > 0.9
    assert bad.probability < 0.6
    assert good.speedup.lower is not None
    assert good.speedup.lower > 1.0
    assert promise_of(Ranked("custom_class", {}, often), facts) is None
