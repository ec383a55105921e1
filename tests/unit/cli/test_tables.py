"""Tables in a terminal and in a pipe."""

from __future__ import annotations

import pytest

from breakeven.cli.output import bounds, figure, print_table, print_text, print_warnings


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1.1, "1.10"), (12, "12.0"), (99.96, "100"), (1234.5, "1234"), (0.06199, "0.0620"), (2e-7, "2.0e-07"), (None, "-"), (float("inf"), "unbounded")],
)  # fmt: skip
def test_a_figure_has_three_digits_zeros_included(value, text):
    assert figure(value) == text


def test_bounds_have_an_open_end():
    assert bounds(1.0, (0.9, None)) == "1.00 [0.900,-]"


def test_columns_align_and_nothing_trails(capsys):
    print_table(("arm", "latency s", "SLO"), [("none", "1.00 [0.900, 1.10]", "-"), ("eagle3/3", "-", "")])
    assert capsys.readouterr().out == (
        "arm       latency s           SLO\nnone      1.00 [0.900, 1.10]  -\neagle3/3  -\n"
    )


def test_long_sentences_go_on_below_and_indented(capsys):
    print_text("word " * 40)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 100
    assert all(line.startswith("  word") for line in lines[1:])


def test_what_holds_for_several_arms_is_warned_of_once(capsys):
    print_warnings(["none: bends", "eagle3/3: bends", "two words: stay", "none: bends", "eagle3/3: other"])
    assert capsys.readouterr().out.splitlines() == [
        "! none, eagle3/3: bends",
        "! two words: stay",
        "! eagle3/3: other",
    ]
