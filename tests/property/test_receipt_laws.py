"""Receipts: sums do not depend on cuts, a gap claims nothing, and claims hold what is known to be true."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.past.courses import TimeGrid
from breakeven.past.receipts import Receipt, added, receipts
from breakeven.readers.prometheus import Samples
from draws import draws
from fakes.known_savings import STEP_S, Known, KnownPast, known_past

END_S = 1_798_804_800
"""New Year of 2027 (UTC) and half a day; some pasts hold two months."""
pasts = st.builds(
    lambda kind, seed, half_days: known_past(kind, seed, END_S - 43_200 * half_days, days=1),
    st.sampled_from(KnownPast),
    st.integers(0, 10_000),
    st.integers(0, 2),
)


def whole(parts: tuple[Receipt, ...]) -> Receipt:
    """All months as one."""
    (one,) = added(replace(part, month="all") for part in parts)
    return one


def without(known: Known, first_s: int, last_s: int) -> list[Samples]:
    """The series with a gap after `first_s` until `last_s`."""
    return [
        replace(one, values=tuple(at for at in one.values if not first_s < at.time_s <= last_s))
        for one in known.on_grid()
    ]


@draws(15)
@given(pasts, st.integers(1, 287))
def test_sums_do_not_depend_on_where_the_range_is_cut(known, cut):
    samples, grid = list(known.on_grid()), known.grid
    parts = (
        TimeGrid(grid.first_s, STEP_S, cut + 1),
        TimeGrid(grid.first_s + cut * STEP_S, STEP_S, grid.times - cut),
    )
    found = added(one for part in parts for one in receipts(samples, part))
    for one, other in zip(receipts(samples, grid), found, strict=True):
        assert (one.month, one.first_s, one.last_s, one.against) == (
            other.month,
            other.first_s,
            other.last_s,
            other.against,
        )
        for name in ("request_saved_s", "gpu_hours_saved"):
            ends = [(getattr(each, name).value, getattr(each, name).bounds) for each in (one, other)]
            assert ends[0][0] == pytest.approx(ends[1][0])
            assert ends[0][1] == pytest.approx(ends[1][1])
        assert one.calibration_gpu_hours == pytest.approx(other.calibration_gpu_hours)
        assert one.unclaimed_hours == pytest.approx(other.unclaimed_hours)


@draws(15)
@given(pasts, st.integers(0, 210), st.integers(1, 70))
def test_a_gap_claims_nothing_and_takes_nothing_else_away(known, begin, windows):
    first_s = known.grid.first_s + begin * STEP_S
    last_s = first_s + windows * STEP_S
    lost = whole(receipts(known.on_grid(), TimeGrid(first_s, STEP_S, windows + 1)))
    before, after = (
        whole(receipts(samples, known.grid)) for samples in (known.on_grid(), without(known, first_s, last_s))
    )
    assert after.claimed_hours == pytest.approx(before.claimed_hours - lost.claimed_hours)
    saved = (before.request_saved_s.value or 0.0) - (lost.request_saved_s.value or 0.0)
    assert (after.request_saved_s.value or 0.0) == pytest.approx(saved, abs=1e-3)
    # A cost is no claim: what was spent in the gap is seen after it.
    assert after.calibration_gpu_hours <= before.calibration_gpu_hours + 1e-9


@draws(30)
@given(pasts)
def test_hours_are_claimed_that_events_allow_and_no_lower_bound_is_above_the_truth(known):
    found = whole(receipts(known.on_grid(), known.grid))
    assert found.claimed_hours == pytest.approx(known.claimable_hours)
    assert found.calibration_gpu_hours == pytest.approx(known.spent_gpu_hours)
    total = found.claimed_hours + sum(found.unclaimed_hours.values())
    assert total == pytest.approx((known.grid.last_s - known.grid.first_s) / 3600)
    if found.claimed_hours:
        assert found.request_saved_s.lower <= known.upper_s
        assert found.gpu_hours_saved.lower <= known.truth_gpu_hours + 1e-6
