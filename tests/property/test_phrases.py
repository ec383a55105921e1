"""Words of figures: whatever the number, no exponent, no minus zero, no bounds that say nothing, one plural."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION
from breakeven.estimate import Estimate
from breakeven.phrases import (
    NOT_KNOWN,
    between,
    change_text,
    column,
    counted,
    duration_text,
    figure,
    fixed,
    latency_text,
    percent,
    ratio_column,
    ratio_text,
    saved_text,
    spoken,
    through,
)
from draws import draws

NUMBERS = st.floats(-1e15, 1e15, allow_nan=False)
POSITIVE = st.floats(1e-9, 1e9)
ENDS = st.one_of(st.none(), st.floats(0.0, 1e9))
UGLY = re.compile(r"e[+-]\d|-0(?![.\d])|-0\.0*(?!\d)|\bnone\b|\b1 \w+s\b")


@draws(200)
@given(NUMBERS, st.integers(2, 4))
def test_a_number_has_no_exponent_and_zero_no_sign(value, digits):
    for text in (figure(value, digits), fixed(value), fixed(value, 2), percent(value), column(value)):
        number = float(text.removesuffix(" %"))
        assert "e" not in text
        assert number != 0.0 or not text.startswith("-")
    assert math.isclose(float(figure(value, digits)), value, rel_tol=0.6 * 10.0 ** (1 - digits))


@draws(200)
@given(POSITIVE, ENDS, ENDS)
def test_bounds_beyond_a_factor_of_four_are_not_known(value, lower, upper):
    far = (lower is not None and 4.0 * lower < value) or (upper is not None and upper > 4.0 * value)
    for text in (through(value, lower, upper), through(value, lower, upper, 2)):
        assert (text == NOT_KNOWN) is (far or lower is upper is None)
        assert not UGLY.search(text)
    assert (ratio_column(value, (lower, upper)) == NOT_KNOWN) is far
    assert not UGLY.search(ratio_text(Estimate(value, lower, upper)))


@draws(100)
@given(st.floats(-1e6, 1.0))
def test_a_saving_is_a_percentage_or_a_multiple(share):
    text = saved_text(share)
    assert not UGLY.search(text)
    assert ("times" in text) is (share < -9.0)
    assert text.startswith("saves" if share >= 0.0 else "takes")


@draws(60)
@given(st.integers(0, 10_000), st.sampled_from(["pod", "request", "window", "replica", "GPU", "arm"]))
def test_one_is_no_plural(count, noun):
    assert counted(count, noun).endswith("s") is (count != 1)


@draws(60)
@given(st.floats(0.0, 1e9))
def test_times_have_no_exponent(seconds):
    assert not re.search(r"e[+-]", f"{duration_text(seconds)} {latency_text(seconds)}")


def test_no_speculation_is_never_called_none_and_every_other_arm_keeps_its_name():
    assert spoken(NO_SPECULATION) == spoken("none") == "no speculation"
    assert (spoken("eagle/3"), spoken(None)) == ("eagle/3", "?")
    assert change_text("none", "eagle/3") == "no speculation -> eagle/3"
    assert between(None, None) == NOT_KNOWN
