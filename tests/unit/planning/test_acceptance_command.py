"""`breakeven acceptance`: what it prints, and what it refuses."""

import json

import pytest
from click.testing import CliRunner

from breakeven.cli import root
from breakeven.errors import InputError


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
    assert found["tokens_per_step_range"] is None
    assert found["extrapolated"] is False


def test_another_draft_length_carries_the_bounds_of_the_profile():
    # Recorded EAGLE on maths: 2.7697 tokens per step at k = 7, 1.6972 at k = 1.
    up = document("--per-position", ".6731,.4395,.2811", "--method", "eagle3", "--for-k", 7)
    assert up["extrapolated"] is True
    assert up["tokens_per_step"] == pytest.approx(2.7697, rel=0.02)
    assert up["tokens_per_step_range"][0] <= 2.7697 <= up["tokens_per_step_range"][1]
    assert len(up["survival"]) == 7
    assert 1 + sum(up["survival"]) == pytest.approx(up["tokens_per_step"])
    down = document("--per-position", ".6731,.4395,.2811", "--method", "eagle3", "--for-k", 1)
    assert down["tokens_per_step_range"][0] <= 1.6972 <= down["tokens_per_step_range"][1]


def test_lookup_does_not_decay_with_depth():
    profile = ("--per-position", ".1605,.1284,.1067", "--for-k", 7)
    lookup, model = (
        document(*profile, "--method", method)["tokens_per_step"] for method in ("ngram", "eagle3")
    )
    assert lookup == pytest.approx(1.48, rel=0.006)
    assert lookup > model


def test_fewer_than_three_positions_are_wide_and_say_so():
    found = document("--per-position", ".6608", "--for-k", 7)
    low, high = found["tokens_per_step_range"]
    assert high / low > 1.2
    assert low <= 2.5833 <= high
    assert any("fewer than three" in warning for warning in found["warnings"])


def test_counts():
    found = document("--accepted", 265, "--drafts", 127, "--k", 3)
    assert found["tokens_per_step"] == pytest.approx(1 + 265 / 127)
    assert found["acceptance_rate"] == pytest.approx(265 / 127 / 3)
    assert found["survival"] is None


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
    ],
)
def test_impossible_figures_are_refused_in_one_line(arguments, message):
    error = run(*arguments).exception
    assert isinstance(error, InputError)
    assert str(error).startswith(message)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--length", 2.39, "--bonus", "included", "--k", 3],
        ["--length", 1.39, "--bonus", "excluded", "--k", 3],
        ["--length", 0.7, "--k", 3],
        ["--length", 3.2, "--k", 3],
        ["--rate", 1.39 / 3, "--k", 3],
        ["--accepted", 1390, "--drafts", 1000, "--k", 3],
    ],
)
def test_each_spelling_gives_the_same_figures(arguments):
    found = document(*arguments)
    expected = {0.7: 1.7, 3.2: 3.2}.get(arguments[1], 2.39)
    assert found["tokens_per_step"] == pytest.approx(expected, abs=1e-6)
    assert found["acceptance_rate"] == pytest.approx((expected - 1) / 3, abs=1e-6)
    assert found["survival"] is None


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
        ["--rate", ".5", "--k", "3", "--per-position", ".5"],
        ["--rate", ".5", "--k", "3", "--drafts", "7"],
        ["--accepted", "5", "--k", "3"],
        ["--per-position", ".5,x"],
        ["--per-position", ".5", "--for-k", "0"],
    ],
)
def test_wrong_usage_exits_with_2(arguments):
    assert CliRunner().invoke(root, ["acceptance", *arguments]).exit_code == 2
