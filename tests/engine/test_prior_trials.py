"""Leaving one source out: what is promised, and what is shown."""

from __future__ import annotations

import math

import numpy as np
import pytest

from breakeven.prior.public_table import RatioRow, ServiceFacts, public_ratios
from validation.prior_trials import (
    BREAK_EVEN,
    FIGURES,
    KNOWLEDGE,
    PRIOR_HEADER,
    PriorTrial,
    by_source,
    prior_rows,
    prior_trials,
)


def made_up(seed: int, sources: int = 14) -> list[RatioRow]:
    """Rows whose sources differ by 20 %, and arms of one source by 5 %."""
    random = np.random.default_rng(seed)
    found = []
    for source in range(sources):
        lone, slope = np.exp(random.normal((-0.5, 0.1), 0.2))
        for k in (1, 3, 5):
            noise = np.exp(random.normal(0.0, 0.05, 2))
            found.append(
                RatioRow(ServiceFacts(), "mtp", k, lone * noise[0], slope * noise[1], source=f"s{source}")
            )
    return found


@pytest.mark.parametrize("figure", FIGURES)
def test_bounds_of_the_table_hold_what_a_source_measured_that_they_have_not_seen(figure):
    trials = list(prior_trials(figure, KNOWLEDGE[1], public_ratios()))
    assert by_source(trials, "held") >= 0.84
    assert np.mean([one.held for one in trials]) >= 0.9


def test_facts_and_tokens_per_step_narrow_the_lone_ratio():
    widths = [
        by_source(list(prior_trials("lone_ratio", known, public_ratios())), "width") for known in KNOWLEDGE
    ]
    assert widths == sorted(widths, reverse=True)
    assert widths[2] < 0.7 * widths[0]


def test_knowing_nothing_holds_what_it_promises_where_sources_are_drawn_from_one_world():
    held = [
        by_source(list(prior_trials("lone_ratio", KNOWLEDGE[0], made_up(seed))), "held_blindly")
        for seed in range(12)
    ]
    assert np.mean(held) == pytest.approx(0.9, abs=0.06)


def test_a_row_is_judged_by_other_sources_alone():
    odd = [RatioRow(ServiceFacts(), "mtp", k, 9.0, 9.0, source="odd") for k in (1, 3, 5)]
    trials = [
        one for one in prior_trials("lone_ratio", KNOWLEDGE[0], [*made_up(1), *odd]) if one.source == "odd"
    ]
    assert [one.held for one in trials] == [False] * 3


def test_break_evens_are_shares_of_saturation():
    trials = list(prior_trials(BREAK_EVEN, KNOWLEDGE[0], made_up(2)))
    assert all(0.0 <= one.width <= 1.0 for one in trials)
    assert by_source(trials, "held") >= 0.8


def test_each_source_counts_once():
    trials = [PriorTrial("a", held, held, 1.0, 1.0) for held in (True, True, True)]
    assert by_source([*trials, PriorTrial("b", False, False, 3.0, 1.0)], "held") == 0.5
    assert by_source([*trials, PriorTrial("b", False, False, 3.0, 1.0)], "width") == 2.0


def test_the_table_has_a_line_for_each_figure_and_state_of_knowledge():
    found = list(prior_rows(public_ratios()))
    assert len(found) == 3 * len(KNOWLEDGE)
    assert {len(line) for line in found} == {len(PRIOR_HEADER)}
    assert (
        found[0][5]
        == f"x{math.exp(by_source(list(prior_trials('lone_ratio', KNOWLEDGE[0], public_ratios())), 'width')):.2f}"
    )
