"""Questions in the words of a server that calls the labels of a pod otherwise, and its answers in ours."""

from __future__ import annotations

import math
import re

import promql_parser
import pytest
from hypothesis import given, strategies

from breakeven.past.courses import questions
from breakeven.past.pod_facts import fact_questions
from breakeven.serving.model_watch import ModelWatch
from breakeven.serving.promql import SAME_LABELS, EngineSeries, LabelNames, Matcher, quoted
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import (
    arrivals_query,
    fleet_query,
    past_query,
    roll_query,
    sums_query,
)
from breakeven_operator.observing.latency_metrics import latency_query
from breakeven_operator.rolls.roll_failures import failures_query, later_query
from fakes.held_series import SeriesStore
from fakes.model_series import END_S, WINDOW_S, ModelSeries
from fakes.promql_evaluation import evaluate, evaluate_range

FEDERATED = LabelNames("exported_namespace", "exported_pod")
NAMES = (FEDERATED, LabelNames(pod="kubernetes_pod_name"), LabelNames("k8s_namespace_name", "k8s_pod_name"))
PODS = ("chat-7d9f8b6c5d-bbbbb", "chat-7d9f8b6c5d-ccccc")
LITERAL = re.compile(r'"(?:\\.|[^"\\])*"')
RANGE = re.compile(r"\[\d+s:\d+s\]$")


def doctor_s(prefix=None):
    """Every question of `breakeven doctor`."""
    asked = []

    def ask(promql):
        asked.append(promql)
        return [({"namespace": "llm", "replica": "a", "position": "0", "status": "2xx"}, 1.0)]

    watch = ModelWatch.of(
        ask, (Matcher("model_name", "=", "chat"), Matcher("namespace", "=", "llm")), prefix, WINDOW_S
    )
    watch.with_events(watch.snapshot())
    return asked


ENGINES, CHAT = EngineSeries(), [("llm", "chat")]
QUESTIONS = [
    fleet_query(["llm"], ENGINES, WINDOW_S, 120),
    fleet_query(["llm"], ENGINES, WINDOW_S, 120, workloads=["chat"], anywhere=False),
    sums_query(["llm"], ENGINES, WINDOW_S, 120),
    past_query(["llm"], ENGINES, 600, 300),
    roll_query(CHAT, ENGINES, 300, 60),
    arrivals_query(CHAT, ENGINES, WINDOW_S),
    failures_query(CHAT, ENGINES, 300, 60),
    later_query(CHAT, ENGINES, 300),
    latency_query([NamespacedName("llm", "chat")], ENGINES, WINDOW_S),
    *questions(ENGINES, WINDOW_S).values(),
    *doctor_s(),
]  # fmt: skip


def stored(names):
    """Pods of a model under some names of their labels, scraped through a server that is a pod itself."""
    series = ModelSeries()
    for pod in PODS:
        series.pod(pod, posts=1.0, refused=0.1)
    if names == SAME_LABELS:
        return series.store
    renamed = SeriesStore()
    for one in series.store.series:
        labels = {"namespace": "monitoring", "pod": "prometheus-0"}
        theirs = {"namespace": names.namespace, "pod": names.pod}
        labels |= {theirs.get(label, label): value for label, value in one.labels.items()}
        name = labels.pop("__name__")
        for time_ms, value in zip(one.times_ms, one.values, strict=True):
            renamed.add(name, labels, time_ms / 1000, value)
    return renamed


def answered(store, promql, names):
    """Elements by labels in our names."""
    asked = names.asked(promql)
    if RANGE.search(promql):
        found = {key(names, one.labels): one.values for one in evaluate_range(store, asked, END_S)}
    else:
        found = {key(names, one.labels): one.value for one in evaluate(store, asked, END_S)}
    return {
        one: "NaN" if isinstance(value, float) and math.isnan(value) else value
        for one, value in found.items()
    }


def test_most_questions_have_an_answer():
    store = stored(SAME_LABELS)
    answers = [answered(store, promql, SAME_LABELS) for promql in QUESTIONS]
    assert sum(map(bool, answers)) > 0.8 * len(answers)


def key(names, labels):
    return frozenset(names.given(labels).items())


@pytest.mark.parametrize("names", NAMES, ids=repr)
@pytest.mark.parametrize("promql", QUESTIONS)
def test_the_answer_is_that_of_a_server_with_the_labels_of_scrapes(promql, names):
    expected = answered(stored(SAME_LABELS), promql, SAME_LABELS)
    assert answered(stored(names), promql, names) == expected


@given(
    text=strategies.sampled_from(["pod", "namespace", ',"pod",', 'x",pod="y', "\\"])
    | strategies.text(max_size=9)
)
def test_text_of_users_stays(text):
    asked = fleet_query(
        ["llm"], EngineSeries((Matcher("job", "=", text), Matcher("job", "!=", text))), WINDOW_S, 120
    )
    theirs = FEDERATED.asked(asked)
    promql_parser.parse(theirs)
    assert theirs.count(f"job={quoted(text)}") == asked.count(f"job={quoted(text)}") > 0
    assert not {"namespace", "pod"} & set(re.findall(r"[a-zA-Z_]+", LITERAL.sub("", theirs)))


def test_series_of_other_exporters_keep_their_labels():
    facts = fact_questions([("llm", PODS[0])], ENGINES, WINDOW_S)
    assert {fact for fact, promql in facts.items() if FEDERATED.asked(promql) != promql} == {"arguments"}


@pytest.mark.parametrize(
    "pairs", [["pod"], ["engine=x"], ["pod=a-b"], ["pod="], ["pod=namespace"], ["pod=a", "namespace=a"]]
)
def test_names_that_are_none(pairs):
    with pytest.raises(ValueError, match="namespace=LABEL or pod=LABEL"):
        LabelNames.of(pairs)


def test_names_that_are_given_one_by_one():
    assert LabelNames.of([]) == SAME_LABELS
    assert LabelNames.of(["pod=exported_pod"]) == LabelNames(pod="exported_pod")
    assert LabelNames.of(["pod=exported_pod", "namespace=exported_namespace"]) == FEDERATED
