"""No text of a user can end a string, a matcher or the query."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.serving.promql import EngineSeries, Matcher, any_of, quoted
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import (
    block_s,
    fleet_query,
    past_query,
    past_step_s,
    roll_query,
    sums_query,
)
from breakeven_operator.observing.latency_metrics import latency_query
from breakeven_operator.workloads.known import NAMING

_LITERAL = re.compile(r'"((?:[^"\\\n]|\\[\\"nrt]|\\x[0-9a-f]{2})*)"')


def read_literal(text: str) -> str:
    """The text that PromQL (Go's escapes) reads in a whole string literal."""
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
    query = fleet_query(["llm"], EngineSeries((Matcher("cluster", operator, value),)), 300, 120)
    harmless = fleet_query(["llm"], EngineSeries((Matcher("cluster", operator, "X"),)), 300, 120)
    assert re.sub(_LITERAL, "S", query) == re.sub(_LITERAL, "S", harmless)


@given(st.text(), st.sampled_from(["=", "!=", "=~", "!~"]))
def test_nor_can_it_in_the_query_of_the_past(value, operator):
    query = past_query(["llm"], EngineSeries((Matcher("cluster", operator, value),)), 86400, 300)
    harmless = past_query(["llm"], EngineSeries((Matcher("cluster", operator, "X"),)), 86400, 300)
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
    query = fleet_query(["b", "a"], EngineSeries(), 300, 120)
    named = re.findall(r'"stat","(\w+)","",""', query)
    # One more for each kind puts the siblings' label on.
    assert len(named) == len(set(named)) == query.count("label_replace(") - len(NAMING) == 30
    assert 'namespace=~"a|b"' in query
    assert "[300s]" in query
    assert query.isascii()


@pytest.mark.parametrize(
    ("lookback_s", "window_s", "step_s"),
    [
        (86400, 300, 300),
        (86400, 15, 300),
        (604800, 300, 2100),
        (3600, 300, 300),
        (60, 6, 6),
        (1, 1, 1),
        (289, 1, 2),
    ],
)
def test_a_day_has_a_load_every_five_minutes_and_no_rate_is_over_less_than_the_window(
    lookback_s, window_s, step_s
):
    assert past_step_s(lookback_s, window_s) == step_s


def test_the_query_of_the_past_is_one_subquery_over_whole_seconds_and_every_matcher():
    query = past_query(["b", "a"], EngineSeries((Matcher("cluster", "=", "c1"),)), 86400, 300)
    assert query.endswith(")[86400s:300s]")
    assert query.count('{namespace=~"a|b",cluster="c1"}') == query.count("vllm:") == 7
    assert query.count("[300s]") == 5
    assert query.isascii()


def test_the_query_of_a_roll_is_one_subquery_of_counters_at_whole_multiples_of_a_block():
    query = roll_query(
        [("b", "chat"), ("a", "x" * 60)], EngineSeries((Matcher("cluster", "=", "c1"),)), 1800, 60
    )
    assert query.endswith(")[1800s:60s]")
    chosen = f'{{namespace=~"a|b",pod=~"(chat|{"x" * 40}).*",cluster="c1"}}'
    assert query.count(chosen) == query.count("vllm:") == 11
    assert "increase" not in query
    assert query.isascii()


@pytest.mark.parametrize(("window_s", "expected_s"), [(300, 60), (6, 1), (1, 1), (86400, 17280)])
def test_a_block_is_a_fifth_of_the_window_and_a_second_at_least(window_s, expected_s):
    assert block_s(window_s) == expected_s


def test_a_prefix_begins_every_name():
    queries = (
        fleet_query(["a"], EngineSeries(prefix="vllm_"), 300, 120),
        sums_query(["a"], EngineSeries(prefix="vllm_"), 300, 120),
        past_query(["a"], EngineSeries(prefix="vllm_"), 86400, 300),
        roll_query([("a", "chat")], EngineSeries(prefix="vllm_"), 1800, 60),
        latency_query([NamespacedName("a", "chat")], EngineSeries(prefix="vllm_"), 300),
    )
    for query in queries:
        assert "vllm:" not in query
        assert "vllm_num_requests_running" in query or "vllm_e2e_request_latency_seconds_bucket" in query
