"""Answers of both arms of a roll: how they end and how long they are, in the same time alone."""

from __future__ import annotations

import pytest

from breakeven.readers.prometheus import Samples, TimedValue
from breakeven.serving.promql import EngineSeries
from breakeven_operator.observing.fleet_query import STAT
from breakeven_operator.observing.roll_metrics import read_roll
from breakeven_operator.rolls.roll_failures import (
    ABORTED,
    BRIEF,
    CUT,
    SERVED,
    TOKENS,
    AnswerShift,
    failures_query,
    find_answers,
)
from unit.rolls.test_roll_failures import BEGAN, NEW, OLD, ROLLED, STEP_S

SOUND = {SERVED: 300.0, CUT: 30.0, ABORTED: 3.0, BRIEF: 1.0, TOKENS: 60_000.0}


def served(pod: str, first: int, wobble: float = 0.02, until: int = 8, **changes: float) -> list[Samples]:
    """Counters of one pod from a block on, with mean lengths that scatter a little from block to block."""
    per_block = SOUND | changes
    samples = []
    for stat, growth in per_block.items():
        total, values = 0.0, []
        for block in range(first, until):
            values.append(TimedValue(BEGAN.timestamp() + STEP_S * block, total))
            total += growth * (
                1.0 + (wobble * (-1) ** block * (2 if pod == NEW else 1) if stat == TOKENS else 0.0)
            )
        samples.append(Samples({"namespace": "llm", "pod": pod, STAT: stat}, tuple(values)))
    return samples


def shift(**changes: float) -> AnswerShift:
    found = find_answers(read_roll([*served(OLD, -6), *served(NEW, 0, **changes)]), ROLLED)
    assert found is not None
    return found


def test_like_answers_are_said_and_none_differs():
    found = shift()
    assert found.differing == ()
    assert "201 tokens, 10 % ended at max_tokens, 1 % aborted, 0.33 % of one token at most" in found.said


def test_blocks_of_the_same_time_alone_are_compared():
    before = served(f"{OLD[:-1]}z", -6, until=0, **{CUT: 300.0})
    found = find_answers(read_roll([*served(OLD, -6), *before, *served(NEW, 0)]), ROLLED)
    assert found is not None
    assert found.said == shift().said


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({CUT: 90.0}, ("cut",)),
        ({CUT: 1.0}, ("cut",)),
        ({ABORTED: 40.0}, ("aborted",)),
        ({ABORTED: 0.0}, ()),
        ({BRIEF: 40.0}, ("brief",)),
        ({TOKENS: 90_000.0}, ("tokens",)),
        ({TOKENS: 61_000.0}, ()),
        # Their scatter is taken from five blocks on.
        ({TOKENS: 90_000.0, "until": 6}, ("tokens",)),
        ({TOKENS: 90_000.0, "until": 5}, ()),
        ({CUT: 31.0}, ()),
        # One client's answers come four at a time: a change of 7 % in 2,100 answers is chance, one of 8 % is not.
        ({CUT: 51.0}, ()),
        ({CUT: 55.0}, ("cut",)),
    ],
)
def test_what_differs_by_more_than_chance_and_a_percent_is_named(changes, differing):
    found = shift(**changes)
    assert found.differing == differing
    assert ("differ significantly" in found.said) == bool(differing)


def test_nothing_is_said_of_few_answers_or_without_their_lengths():
    few = {name: count / 50 for name, count in SOUND.items()}
    assert find_answers(read_roll([*served(OLD, -6), *served(NEW, 0, **few)]), ROLLED) is None
    silent = [one for one in [*served(OLD, -6), *served(NEW, 0)] if one.labels[STAT] != TOKENS]
    assert find_answers(read_roll(silent), ROLLED) is None
    assert find_answers(None, ROLLED) is None
    assert find_answers(read_roll(served(OLD, -6)), None) is None


def test_the_roll_query_asks_for_them():
    query = failures_query([("llm", "chat-vllm")], EngineSeries(), 300, 60)
    assert 'finished_reason="length"' in query
    assert "vllm:request_generation_tokens_sum" in query
    assert 'le=~"1(\\\\.0)?"' in query
