"""Tokens per step with bounds, parameters that are searched, and what a calibration promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.drafters.answers_file import FinishedAnswer
from breakeven.drafters.ranking import Ranked, Tally, promise_of, ranked
from breakeven.drafters.replay import LONGEST, model_drafts
from breakeven.prior.public_table import ServiceFacts, costs_error, public_ratios
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


def test_parameters_are_judged_on_answers_that_they_were_not_chosen_on() -> None:
    answers = _answers()
    found = ranked(answers)
    searched = [one for one in found if one.searched]
    assert {one.method for one in found} == {"ngram", "suffix"}
    assert searched
    for one in searched:
        assert len(one.tally.steps) == len(answers) // 2
        default = next(other for other in found if other.method == one.method and not other.searched)
        assert one.options
        assert (one.tally.tokens_per_step(8).value or 0.0) > (default.tally.tokens_per_step(8).value or 0.0)
    assert set(found[0].groups) == {"code", "chat"}


def test_a_measured_e_halves_the_doubt_of_others_ratios() -> None:
    rows = [row for row in public_ratios() if row.lone_ratio and row.tokens_per_step and not row.adaptive]
    ratios = [math.log(row.lone_ratio or 1.0) for row in rows]
    assert costs_error() < 2.0 / 3.0 * float(np.std(ratios))


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
