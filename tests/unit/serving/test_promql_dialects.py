"""Questions as servers understand them that are not Prometheus: without native histograms, and with the times of a subquery."""

from __future__ import annotations

import re

import promql_parser
import pytest
from hypothesis import given, strategies

from breakeven.serving.promql import PREFIX, EngineSeries, Matcher, RangeQuestion, classic_only, quoted
from fakes.held_series import SeriesStore
from fakes.model_series import END_S, WINDOW_S, ModelSeries
from fakes.promql_evaluation import evaluate, evaluate_range

TEXTS = strategies.sampled_from(
    ["llm", 'x) or histogram_count(y "', " or histogram_sum(", "\\", '"', ") (", "histogram_count"]
) | strategies.text(max_size=12)


def question(*texts: str) -> str:
    engines = EngineSeries(tuple(Matcher("job", "!=", text) for text in texts), PREFIX)
    stats = ("started", "steps", "completed", "generated")
    return engines.counted_once("max", {stat: engines.increase(stat, WINDOW_S) for stat in stats})


@given(texts=strategies.lists(TEXTS, max_size=3))
def test_what_is_asked_of_native_histograms_is_left_out_and_the_text_of_users_stays(texts):
    asked = question(*texts)
    classic = classic_only(asked)
    # Without its literals, which are the users'.
    literals = re.compile(r'"(?:\\.|[^"\\])*"')
    assert "histogram_" in literals.sub("", asked)
    assert "histogram_" not in literals.sub("", classic)
    assert {quoted(text) for text in texts} <= set(literals.findall(classic))
    assert classic_only(classic) == classic
    promql_parser.parse(classic)


def test_it_means_the_same_where_no_histogram_is_native():
    store = ModelSeries().pod("a").store
    found = evaluate(store, question(), END_S)
    assert len(found) == 4
    assert evaluate(store, classic_only(question()), END_S) == found


@given(
    span_s=strategies.integers(1, 2000),
    step_s=strategies.integers(1, 120),
    now_s=strategies.integers(8_000, 40_000).map(lambda quarters: quarters / 4),
    fixed=strategies.booleans(),
)
def test_a_range_query_has_the_times_of_a_subquery(span_s, step_s, now_s, fixed):
    store = SeriesStore()
    for time_s in range(0, 10_200, 60):
        store.add("vllm:x", {"pod": "a"}, time_s, 1.0)
    modifier = f" @ {int(now_s)}" if fixed else ""
    promql = f"(vllm:x)[{span_s}s:{step_s}s]{modifier}"
    times_s = [time_ms / 1000 for one in evaluate_range(store, promql, now_s) for time_ms in one.times_ms]
    found = RangeQuestion.of_subquery(promql, 0.0 if fixed else now_s)
    assert found is not None
    assert found.promql == "vllm:x"
    assert list(range(found.first_s, found.last_s + 1, step_s)) == times_s


@pytest.mark.parametrize("promql", ["up", "up[1h:5m]", "max_over_time((up)[60s:5s])", "(up)[60s:5s] or up"])
def test_other_questions_are_no_subqueries(promql):
    assert RangeQuestion.of_subquery(promql, 100.0) is None
