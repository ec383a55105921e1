"""The model against published measurements, each goal that is met held as a test; `make validate` shows all."""

from __future__ import annotations

import pytest

from validation import checks, published
from validation.accepted import resampling, tokens_per_step_elsewhere
from validation.simulated import break_even_coverage, verdicts_on_equal_arms

FOLDER = published.data_folder()
needs_data = pytest.mark.skipif(
    FOLDER is None, reason="no published data: set BREAKEVEN_DATA or put it at ../shared/data"
)


@needs_data
def test_the_ramp_share_learned_from_three_cells_is_that_of_the_study() -> None:
    assert published.ramp_share(FOLDER) == pytest.approx(0.69, abs=0.01)


@needs_data
def test_unseen_loads_between_three_measured_ones_are_predicted_within_the_goals() -> None:
    outcomes = {one.dataset: one for one in checks.unseen_loads(FOLDER) if one.goals}
    for dataset in ("Apertus 8B GH200", "DeepSeek-V4 MI355X"):
        assert outcomes[dataset].met, outcomes[dataset]
    # One of 90 cells of the summarization grid is missed by 9.05 %, where the goal is 9.
    eagle = outcomes["Apertus summarization, eagle"].figures
    assert eagle["mean"] <= 0.03
    assert eagle["worst"] <= 0.09
    # The other grid is rebuilt from two-decimal ratios: mean and 90th percentile of all sets hold, the worst does not.
    whole = outcomes["all four"].figures
    assert whole["mean"] <= 0.03
    assert whole["p90"] <= 0.06
    assert whole["worst"] <= 0.12


@needs_data
def test_p95_of_latency_and_tpot_at_unseen_loads_is_within_the_goal() -> None:
    latency, tpot, _ = checks.unseen_loads_p95(FOLDER)
    assert latency.met, latency
    assert tpot.met, tpot


@needs_data
def test_unseen_draft_lengths_are_predicted_within_the_goals() -> None:
    for one in checks.unseen_draft_lengths(FOLDER):
        assert one.figures["mean"] <= 0.035, one
        assert one.figures["worst"] <= 0.09, one
        # One drafter is best at a k that nothing at 1, 3 and 7 shows: choosing costs 2.7 %.
        if "dspark" not in one.dataset:
            assert one.met, one


@needs_data
def test_tokens_per_step_at_other_draft_lengths_come_from_one_profile() -> None:
    judged = [one for one in tokens_per_step_elsewhere(FOLDER) if one.goals]
    assert len(judged) == 6
    for one in judged:
        assert one.met, one


@needs_data
def test_resampled_requests_bound_the_tokens_per_step() -> None:
    assert resampling(FOLDER, samples=120).figures["coverage"] >= 0.8


def test_break_even_bounds_hold_the_truth_as_often_as_they_say() -> None:
    for one in break_even_coverage(runs=40):
        assert one.figures["coverage"] >= 0.89, one


def test_equal_arms_are_rarely_called_different() -> None:
    assert verdicts_on_equal_arms(runs=40).figures["coverage"] >= 0.85
