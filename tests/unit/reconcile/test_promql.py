"""No text of a user can end a string, a matcher or the query."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.serving.promql import Matcher, any_of, quoted
from breakeven_operator.reconcile.promql import fleet_query

_LITERAL = re.compile(r'"((?:[^"\\\n]|\\[\\"nrt]|\\x[0-9a-f]{2})*)"')


def read_literal(text: str) -> str:
    """What PromQL (Go's escapes) makes of a whole string literal."""
    match = _LITERAL.fullmatch(text)
    assert match, text
    named = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
    return re.sub(
        r"\\(x([0-9a-f]{2})|.)",
        lambda m: chr(int(m.group(2), 16)) if m.group(2) else named[m.group(1)],
        match.group(1),
    )


@given(st.text())
def test_a_quoted_text_is_one_literal_that_means_the_text(text):
    assert read_literal(quoted(text)) == text


@given(st.text(), st.sampled_from(["=", "!=", "=~", "!~"]))
def test_a_matchers_value_cannot_leave_its_quotes(value, operator):
    query = fleet_query(["llm"], [Matcher("cluster", operator, value)], 300, 120)
    harmless = fleet_query(["llm"], [Matcher("cluster", operator, "X")], 300, 120)
    assert re.sub(_LITERAL, "S", query) == re.sub(_LITERAL, "S", harmless)


@pytest.mark.parametrize("label", ["", "a b", 'a"', "a}", "1a", "a-b", "a=b", "ä"])
def test_a_label_that_is_none_is_refused(label):
    with pytest.raises(ValueError, match="label name"):
        Matcher(label, "=", "x").render()


def test_an_operator_that_is_none_is_refused():
    with pytest.raises(ValueError, match="operator"):
        Matcher("cluster", "==", "x").render()


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4), st.text())
def test_any_of_matches_these_texts_and_no_others(values, other):
    pattern = any_of(values)
    assert all(re.fullmatch(pattern, value) for value in values)
    if other not in values:
        assert not re.fullmatch(pattern, other)


def test_one_query_holds_every_statistic_and_only_whole_seconds():
    query = fleet_query(["b", "a"], [], 300, 120)
    assert query.count("label_replace(") == query.count("\nor ") + 1
    assert 'namespace=~"a|b"' in query
    assert "[300s]" in query
    assert query.isascii()
