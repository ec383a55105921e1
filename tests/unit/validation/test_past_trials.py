"""Bounds of a past's break-even are held against a truth that was measured itself."""

from __future__ import annotations

import math

import pytest

from validation.past_trials import Crossing, PastTrial
from validation.pasts import PastOf


def trial(
    true: Crossing, bounds_rps: tuple[float | None, float | None], found_rps: float | None = 5.0
) -> PastTrial:
    return PastTrial("dense", PastOf.TWO_ARMS, 7, (), true, found_rps, bounds_rps)


@pytest.mark.parametrize(
    ("true_rps", "error_rps", "held"),
    [
        (5.09, 0.0, True),
        (5.11, 0.0, False),
        (4.89, 0.0, False),
        # Half-widths of the bounds and of the truth's own, 1.645 errors, add up as squares: 0.1 and 0.082.
        (5.12, 0.05, True),
        (5.14, 0.05, False),
    ],
)
def test_an_error_of_the_truth_widens_the_bounds(true_rps, error_rps, held):
    assert trial(Crossing(true_rps, error_rps), (4.9, 5.1)).held is held


def test_an_open_end_holds_everything_beyond_it():
    assert trial(Crossing(9.0, 0.0), (4.9, None)).held is True
    assert trial(Crossing(4.0, 0.0), (4.9, None)).held is False


def test_without_a_claim_or_a_truth_nothing_is_judged():
    assert trial(Crossing(5.0, 0.0), (4.9, 5.1), found_rps=None).held is None
    assert trial(Crossing(math.nan, math.nan), (4.9, 5.1)).held is None
