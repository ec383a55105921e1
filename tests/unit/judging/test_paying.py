"""One figure decides whether speculation pays, and the same one is shown."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.estimate import Estimate
from breakeven_operator.outcome.formatting import overruling, pays_now, speedup, with_measured
from draws import draws


def judged(by_profile, known, windows=3):
    """A verdict with the profile's speedup and what live latency has made of it, each with bounds."""
    value, bounds = by_profile[0], by_profile[1:]
    comparison = SimpleNamespace(
        speedup=value, speedup_ci=bounds, known=Estimate.of(value, bounds), how_known="expected"
    )
    known = Estimate(*known) if known is not None else None
    return SimpleNamespace(against_none=comparison, speedup=known, windows=windows)


def row(verdict):
    return pays_now(verdict), speedup(verdict.against_none, overruling(verdict))


@st.composite
def bounded(draw):
    value = draw(st.floats(0.05, 20.0))
    return value, value / draw(st.floats(1.0, 8.0)), value * draw(st.floats(1.0, 8.0))


@draws(400)
@given(bounded(), st.one_of(st.none(), bounded()))
def test_no_row_says_yes_or_no_beside_a_speedup_that_says_the_opposite(by_profile, known):
    pays, shown = row(judged(by_profile, known))
    figures = re.fullmatch(r"([\d.]+) \[([\d.]+),([\d.]+)\] (?:measured|expected)", shown)
    assert figures or shown == "not known yet"
    if figures:
        value, lower, upper = map(float, figures.groups())
        assert pays is not True or lower >= 1.0
        assert pays is not False or upper <= 1.0
        assert pays is not None or lower <= 1.0 <= upper
        if known is not None and max(known[0] / known[1], known[2] / known[0]) <= 4.0:
            assert (value >= 1.0) is (round(known[0], 2) >= 1.0), "the side that decisions are on"


@pytest.mark.parametrize(
    ("by_profile", "known", "pays", "shown"),
    [
        ((1.28, 1.17, 1.39), (0.35, 0.24, 0.52), False, "0.35 [0.24,0.52] measured"),
        ((0.79, 0.66, 0.95), (1.04, 0.85, 1.27), None, "1.04 [0.85,1.27] measured"),
        ((1.29, 1.10, 1.50), (0.80, 0.55, 1.16), None, "0.80 [0.55,1.16] measured"),
        ((1.29, 1.10, 1.50), (1.35, 1.25, 1.46), True, "1.29 [1.10,1.50] expected"),
        ((1.29, 1.10, 1.50), (1.90, 1.70, 2.12), True, "1.90 [1.70,2.12] measured"),
        ((1.28, 1.17, 1.39), (0.35, 0.02, 6.10), True, "1.28 [1.17,1.39] expected"),
        ((0.79, 0.66, 0.95), None, False, "0.79 [0.66,0.95] expected"),
    ],
)
def test_measured_latency_overrules_the_profile_where_decisions_go_by_it(by_profile, known, pays, shown):
    verdict = judged(by_profile, known)
    assert row(verdict) == (pays, shown)
    assert ("by measured latency" in with_measured("it is so", verdict)) is shown.endswith("measured")


@pytest.mark.parametrize("windows", [0, 1, 2])
def test_fewer_than_three_windows_overrule_no_profile(windows):
    verdict = judged((1.28, 1.17, 1.39), (0.35, 0.24, 0.52), windows)
    assert row(verdict) == (True, "1.28 [1.17,1.39] expected")
