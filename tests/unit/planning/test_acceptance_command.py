"""`breakeven acceptance`: what it prints, and what it refuses."""

import json

import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.cli import root
from breakeven.errors import InputError
from breakeven.laws.acceptance_numbers import survival_bounds
from draws import draws


def run(*arguments):
    return CliRunner().invoke(root, ["acceptance", *map(str, arguments)], standalone_mode=False)


def document(*arguments):
    result = run(*arguments, "--json")
    assert result.exception is None, result.exception
    return json.loads(result.output)


def test_the_published_profile():
    found = document("--per-position", ".5732,.2821,.1313,.0620,.0296")
    assert found["acceptance_rate"] == pytest.approx(0.2156, abs=5e-5)
    assert found["tokens_per_step"] == pytest.approx(2.0782)
    assert found["alpha"] == pytest.approx(0.529, abs=5e-4)
    assert found["survival"] == [0.5732, 0.2821, 0.1313, 0.062, 0.0296]
    assert found["tokens_per_step_ci"] is None
    assert found["extrapolated"] is False
    assert found["confidence"] == 0.9


def test_drafts_give_an_interval_that_shrinks_with_their_root():
    narrow, wide = (
        document("--per-position", ".67,.44,.28", "--drafts", n)["tokens_per_step_ci"] for n in (40000, 10000)
    )
    assert (wide[1] - wide[0]) == pytest.approx(2 * (narrow[1] - narrow[0]))
    sure = document("--per-position", ".67,.44,.28", "--drafts", 10000, "--confidence", 0.99)[
        "tokens_per_step_ci"
    ]
    assert sure[1] - sure[0] > wide[1] - wide[0]
    chat = document("--per-position", ".67,.44,.28", "--drafts", 10000, "--design-effect", 300)[
        "tokens_per_step_ci"
    ]
    assert (chat[1] - chat[0]) == pytest.approx(10 * (wide[1] - wide[0]))


def test_another_draft_length_carries_the_bounds_of_the_profile():
    # Recorded EAGLE on maths: 2.7697 tokens per step at k = 7, 1.6972 at k = 1.
    up = document("--per-position", ".6731,.4395,.2811", "--method", "eagle3", "--for-k", 7)
    assert up["extrapolated"] is True
    assert up["tokens_per_step"] == pytest.approx(2.7697, rel=0.02)
    assert up["tokens_per_step_ci"][0] <= 2.7697 <= up["tokens_per_step_ci"][1]
    assert len(up["survival"]) == 7
    assert 1 + sum(up["survival"]) == pytest.approx(up["tokens_per_step"])
    down = document("--per-position", ".6731,.4395,.2811", "--method", "eagle3", "--for-k", 1)
    assert down["tokens_per_step_ci"][0] <= 1.6972 <= down["tokens_per_step_ci"][1]


def test_lookup_does_not_decay_with_depth():
    profile = ("--per-position", ".1605,.1284,.1067", "--for-k", 7)
    lookup, model = (
        document(*profile, "--method", method)["tokens_per_step"] for method in ("ngram", "eagle3")
    )
    assert lookup == pytest.approx(1.48, rel=0.006)
    assert lookup > model


def test_fewer_than_three_positions_are_wide_and_say_so():
    found = document("--per-position", ".6608", "--for-k", 7)
    low, high = found["tokens_per_step_ci"]
    assert high / low > 1.2
    assert low <= 2.5833 <= high
    assert any("fewer than three" in warning for warning in found["warnings"])


def test_counts():
    found = document("--accepted", 265, "--drafts", 127, "--k", 3)
    assert found["tokens_per_step"] == pytest.approx(1 + 265 / 127)
    assert found["acceptance_rate"] == pytest.approx(265 / 127 / 3)
    assert found["survival"] is None
    assert found["tokens_per_step_ci"][0] < found["tokens_per_step"] < found["tokens_per_step_ci"][1]


def test_alpha():
    found = document("--alpha", 0.7, "--k", 4, "--for-k", 2)
    assert found["tokens_per_step"] == pytest.approx(1 + 0.7 + 0.49)
    assert found["alpha"] == pytest.approx(0.7)
    assert found["survival"] == pytest.approx([0.7, 0.49])
    assert found["extrapolated"] is True
    assert document("--alpha", 1, "--k", 4)["tokens_per_step"] == 5.0
    assert document("--alpha", 0, "--k", 4)["tokens_per_step"] == 1.0


def test_the_table_says_the_same():
    text = run("--per-position", ".5732,.2821,.1313,.0620,.0296").output
    assert "2.08" in text
    assert "0.216" in text
    assert "0.529" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--per-position", ".5,.6"], "--per-position, position 2: 0.6 after 0.5; expected"),
        (["--per-position", "57,28"], "--per-position, position 1: 57; expected a share between 0 and 1"),
        (["--per-position", "nan"], "--per-position, position 1: nan; expected"),
        (["--per-position", ".5,.3", "--k", "3"], "--k: 3 with 2 positions; expected"),
        (
            ["--accepted", "500", "--drafts", "100", "--k", "3"],
            "--accepted: 500 of 100 drafts of 3; expected at most 300",
        ),
        (["--alpha", "1.2", "--k", "3"], "--alpha: 1.2; expected a rate between 0 and 1"),
        (["--alpha", "nan", "--k", "3"], "--alpha: nan; expected a rate between 0 and 1"),
    ],
)
def test_impossible_figures_are_refused_in_one_line(arguments, message):
    error = run(*arguments).exception
    assert isinstance(error, InputError)
    assert str(error).startswith(message)
    assert "\n" not in str(error)


SURVIVAL = (0.67, 0.44, 0.28)


@pytest.mark.parametrize(
    ("arguments", "positions"),
    [
        (["--conditional", "0.67,0.6567164,0.6363636"], True),
        (["--histogram", "3300,2300,1600,2800"], True),
        (["--length", 2.39, "--bonus", "included", "--k", 3], False),
        (["--length", 1.39, "--bonus", "excluded", "--k", 3], False),
        (["--length", 0.7, "--k", 3], False),
        (["--length", 3.2, "--k", 3], False),
        (["--rate", 1.39 / 3, "--k", 3], False),
        (["--accepted", 1390, "--drafts", 1000, "--k", 3], False),
    ],
)
def test_each_spelling_gives_the_same_figures(arguments, positions):
    found = document(*arguments)
    expected = {0.7: 1.7, 3.2: 3.2}.get(arguments[1], 2.39)
    assert found["tokens_per_step"] == pytest.approx(expected, abs=1e-6)
    assert found["acceptance_rate"] == pytest.approx((expected - 1) / 3, abs=1e-6)
    if positions:
        assert found["survival"] == pytest.approx(SURVIVAL, abs=1e-6)
        assert found["survival_bounds"] is None
    else:
        assert found["survival"] is None
        assert len(found["survival_bounds"]) == 3


def test_a_histogram_has_its_own_number_of_drafts():
    found = document("--histogram", "33,23,16,28")
    same = document("--per-position", ".67,.44,.28", "--drafts", 100)
    assert found["tokens_per_step_ci"] == pytest.approx(same["tokens_per_step_ci"])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
@draws(60)
def test_bounds_hold_every_survival_with_the_same_mean(shares):
    survival = sorted(shares, reverse=True)
    bounds = survival_bounds(1.0 + sum(survival), len(survival))
    for share, (lower, upper) in zip(survival, bounds, strict=True):
        assert lower - 1e-9 <= share <= upper + 1e-9


@given(st.floats(1, 9), st.integers(1, 8))
@draws(60)
def test_each_bound_is_reached_by_some_survival(tokens, k):
    assume(tokens <= k + 1)
    gained = tokens - 1
    for place, (lower, upper) in enumerate(survival_bounds(tokens, k), start=1):
        # The most: the first `place` positions share it evenly; the least: ones before, the rest even.
        assert upper == pytest.approx(min(gained / place, 1.0))
        before = min(gained, place - 1)
        assert lower == pytest.approx((gained - before) / (k - place + 1), abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--length", "2.1", "--k", "3"],
            "--length: 2.1 at k = 3, which may or may not count the bonus token; expected --bonus included",
        ),
        (["--length", "4.1", "--k", "3"], "--length: 4.1 at k = 3; expected 0 to 4"),
        (
            ["--length", "0.5", "--bonus", "included", "--k", "3"],
            "--length: 0.5 at k = 3 with the bonus token included; expected 1 to 4",
        ),
        (
            ["--length", "3.5", "--bonus", "excluded", "--k", "3"],
            "--length: 3.5 at k = 3 with the bonus token excluded; expected 0 to 3",
        ),
        (["--rate", "36", "--k", "3"], "--rate: 36; expected a share between 0 and 1"),
        (["--conditional", ".6,1.2"], "--conditional, position 2: 1.2; expected a share"),
        (["--histogram", "5"], "--histogram: 5; expected steps with 0, 1, ..., k"),
        (["--histogram", "5,-1"], "--histogram: 5,-1; expected steps"),
        (["--histogram", "5,1", "--drafts", "7"], "--drafts: 7 with a histogram of 6 steps"),
    ],
)
def test_what_cannot_be_read_is_one_line(arguments, line):
    refused = run(*arguments).exception
    assert isinstance(refused, InputError)
    assert str(refused).startswith(line)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--length", "2"],
        ["--rate", ".3"],
        ["--rate", ".3", "--k", "3", "--bonus", "included"],
        ["--length", "2", "--k", "3", "--bonus", "maybe"],
        ["--alpha", ".5", "--k", "3", "--per-position", ".5"],
        ["--alpha", ".5"],
        ["--accepted", "5", "--k", "3"],
        ["--per-position", ".5,x"],
        ["--per-position", ".5", "--for-k", "0"],
    ],
)
def test_wrong_usage_exits_with_2(arguments):
    assert CliRunner().invoke(root, ["acceptance", *arguments]).exit_code == 2
