"""Laws of the prior: for any rows, facts and loads."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.arm import Arm
from breakeven.methods import METHODS
from breakeven.prior.calibration_worth import SeenLoads, WorthWord, calibration_worth
from breakeven.prior.expected_ratios import AskedArm, expected_ratios
from breakeven.prior.public_table import RatioRow, ServiceFacts, public_ratios, read_ratios, written_ratios
from breakeven.profile.fits import ArmFit, LawFit
from draws import draws

NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=12)
FACTS = st.builds(
    ServiceFacts,
    st.none() | st.floats(0.1, 2000.0).map(lambda value: float(f"{value:.3g}")),
    st.none() | st.booleans(),
    st.none() | st.sampled_from(["H100", "H200", "A100", "NVIDIA-B200", "Abacus 3"]),
    st.none() | st.sampled_from(["bf16", "fp8", "awq"]),
)
RATIO = st.floats(0.05, 20.0).map(lambda value: float(f"{value:.3g}"))
ARMS = st.builds(Arm, st.sampled_from([*METHODS, "other"]), st.integers(1, 12))


@st.composite
def rows(draw):
    """One row with anything in it that a table may hold."""
    arm = draw(ARMS)
    return RatioRow(
        draw(FACTS),
        arm.method,
        arm.k,
        lone_ratio=draw(st.none() | RATIO),
        slope_ratio=draw(st.none() | RATIO),
        tokens_per_step=draw(
            st.none() | st.floats(1.0, arm.k + 1.0).map(lambda e: math.floor(e * 100) / 100)
        ),
        stack=draw(NAMES),
        source=draw(NAMES.filter(bool)),
    )


@st.composite
def asked(draw):
    arm = draw(ARMS)
    return AskedArm(arm, draw(st.none() | st.floats(1.0, arm.k + 1.0)))


def widths(facts, one, table):
    return [
        math.log(found.upper / found.lower) for found in expected_ratios(facts, [one], table).ratios(0, 0.9)
    ]


@draws(60)
@given(st.lists(rows(), max_size=6))
def test_a_table_is_read_as_it_was_written(table):
    assert read_ratios(written_ratios(table), "x.csv") == tuple(table)


@draws(60)
@given(FACTS, st.lists(asked(), min_size=1, max_size=3), st.lists(rows(), max_size=8))
def test_ratios_are_finite_and_lie_between_their_bounds(facts, arms, more):
    found = expected_ratios(facts, arms, [*public_ratios(), *more])
    for place in range(len(arms)):
        for one in found.ratios(place, 0.9):
            assert 0.0 < one.lower < one.value < one.upper < math.inf
    assert np.all(np.isfinite(found.draws(50)))


@draws(60)
@given(FACTS, asked(), st.lists(rows(), min_size=1, max_size=8))
def test_rows_that_are_added_to_known_sources_never_widen_the_bounds(facts, one, more):
    known = public_ratios()
    added = [replace(row, source=known[0].source) for row in more]
    for before, after in zip(widths(facts, one, known), widths(facts, one, [*known, *added]), strict=True):
        assert after <= before * (1 + 1e-9)


@draws(60)
@given(FACTS, ARMS, st.floats(0.0, 1.0))
def test_tokens_per_step_that_are_known_never_widen_the_bounds(facts, arm, share):
    steps = 1.0 + share * arm.k
    known = widths(facts, AskedArm(arm, steps), public_ratios())
    for before, after in zip(widths(facts, AskedArm(arm), public_ratios()), known, strict=True):
        assert after <= before * (1 + 1e-9)


@draws(30)
@given(FACTS, asked(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(facts, one, random):
    table = list(public_ratios())
    before = expected_ratios(facts, [one], table).ratios(0, 0.9)
    random.shuffle(table)
    after = expected_ratios(facts, [one], table).ratios(0, 0.9)
    for first, second in zip(before, after, strict=True):
        assert (first.value, first.lower, first.upper) == pytest.approx(
            (second.value, second.lower, second.upper), rel=1e-6
        )


def none_of(c1_s, share, error, dof) -> ArmFit:
    c2_s = c1_s * share
    variances = ((0.0, 0.0), (0.0, (error * c2_s) ** 2))
    return ArmFit(
        "none", 0, c1_s=c1_s, c2_s=c2_s, believable=True, fit=LawFit(c1_s, c2_s, variances, dof, 0.01, 0.01)
    )


@draws(60)
@given(
    st.floats(0.01, 100.0),
    st.floats(1e-4, 1.0),
    st.floats(0.0, 2.0),
    st.integers(0, 30),
    st.lists(st.tuples(st.floats(1e-4, 1e3), st.floats(0.0, 1e6)), min_size=1, max_size=40),
    st.lists(asked(), min_size=1, max_size=3),
)
def test_a_gain_is_a_share_within_its_bounds_at_any_load(c1_s, share, error, dof, loads, arms):
    seen = SeenLoads(tuple(rate for rate, _ in loads), tuple(span + 1.0 for _, span in loads))
    expected = expected_ratios(ServiceFacts(), arms, public_ratios())
    found = calibration_worth(none_of(c1_s, share, error, dof), seen, expected)
    for one in (found.gain, *(arm.gain for arm in found.arms)):
        assert 0.0 <= one.lower <= one.upper <= 1.0
        assert 0.0 <= one.value <= 1.0
    assert all(0.0 <= arm.chance <= 1.0 and arm.adds >= 0.0 for arm in found.arms)
    assert sorted(map(str, (arm.arm for arm in found.arms))) == sorted(str(one.arm) for one in arms)
    assert (found.word is WorthWord.CALIBRATION_PAYS_NOTHING) == (not found.buy)


@draws(30)
@given(st.floats(0.01, 100.0), st.floats(1e-4, 1.0), st.floats(0.05, 0.9), st.floats(0.1, 10.0))
def test_a_gain_does_not_depend_on_the_unit_of_time(c1_s, share, used, unit):
    expected = expected_ratios(ServiceFacts(), [AskedArm(Arm("mtp", 2))], public_ratios())

    def gain(scale):
        none = none_of(c1_s * scale, share, 0.1, 8)
        seen = SeenLoads((used / none.c2_s,), (1.0,))
        return calibration_worth(none, seen, expected).gain

    assert (gain(1.0).value, gain(1.0).upper) == pytest.approx((gain(unit).value, gain(unit).upper), rel=1e-9)
