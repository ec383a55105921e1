"""Doctor's questions about one model, over made-up series; `cluster/test_doctor_on_prometheus.py` asks a real Prometheus the same."""

from __future__ import annotations

import math

import pytest

from breakeven.serving.diagnosis import diagnose
from breakeven.serving.model_watch import ModelWatch
from breakeven.serving.promql import Matcher
from fakes.model_series import END_S, RPS, WINDOW_S, ModelSeries
from fakes.promql_evaluation import evaluate

MODEL = (Matcher("model_name", "=", "chat"),)


def seen(series: ModelSeries, prefix: str | None = None, matchers=MODEL):
    def ask(promql: str):
        return [(one.labels, one.value) for one in evaluate(series.store, promql, END_S)]

    watch = ModelWatch.of(ask, matchers, prefix, WINDOW_S)
    return watch.with_events(watch.snapshot())


def causes(series: ModelSeries):
    return {one.cause: one.evidence for one in diagnose(seen(series), None, None).findings}


def test_figures_are_those_of_pods_that_go_on_and_gone_ones_are_named():
    series = ModelSeries().pod("a").pod("b").pod("c", until_s=END_S - 100)
    snapshot = seen(series)
    assert snapshot.pods == 2
    assert snapshot.window.rps == pytest.approx(RPS, rel=0.03)
    assert snapshot.gone == {"c": pytest.approx(105, abs=15)}
    assert "the series of c ended within the window" in causes(series)["PodsGone"]
    assert "those of the other 2" in causes(series)["PodsGone"]
    assert "PodsGone" not in causes(ModelSeries().pod("a"))


def test_a_model_whose_pods_are_all_gone_is_no_model_without_series():
    series = ModelSeries().pod("a", until_s=END_S - 60)
    found = diagnose(seen(series), None, None)
    assert [one.cause for one in found.findings] == ["PodsGone"]
    assert "no pod of this model has any" in found.sentence
    assert [*causes(ModelSeries())] == ["NoSeries"]
    assert [*causes(ModelSeries().pod("a", until_s=END_S - 2 * WINDOW_S))] == ["NoSeries"]


def test_old_samples_are_not_those_of_pods_that_are_gone():
    series = ModelSeries().pod("a").pod("b", until_s=END_S - 150, marked=False)
    assert causes(series) == {"SeriesStale": "the newest samples of b are old, those of b 150 s"}


def test_a_series_that_ended_is_neither_missing_nor_a_pod_that_is_gone():
    series = ModelSeries().pod("a").pod("b", ended={"e2e_request_latency_seconds_sum": END_S - 120})
    assert list(causes(series)) == ["SeriesEnded"]
    assert "vllm:e2e_request_latency_seconds_sum of b ended" in causes(series)["SeriesEnded"]
    missing = ModelSeries().pod("a", without={"e2e_request_latency_seconds_sum"})
    assert list(causes(missing)) == ["SeriesMissing"]


@pytest.mark.parametrize(
    ("wrong", "cause", "evidence"),
    [
        (math.nan, "SeriesNotANumber", "steps is not a number"),
        (1e6, "SeriesImpossible", "tokens per step, where the arm that runs makes at least 1"),
    ],
)
def test_counts_that_cannot_be_are_named_and_nothing_is_judged_by_them(wrong, cause, evidence):
    series = ModelSeries().pod("a").pod("b")

    def ask(promql: str):
        steps = "inter_token_latency_seconds_count" in promql and promql.startswith("sum(")
        found = evaluate(series.store, promql, END_S)
        return [(one.labels, one.value * (wrong if steps else 1.0)) for one in found]

    watch = ModelWatch.of(ask, MODEL, None, WINDOW_S)
    found = diagnose(watch.with_events(watch.snapshot()), None, None)
    assert [one.cause for one in found.findings] == [cause]
    assert evidence in found.sentence


@pytest.mark.parametrize(
    ("posts", "refused", "finished", "evidence"),
    [
        (
            1.0,
            0.2,
            0.8,
            "120 of 600 HTTP requests were answered with 4xx or 5xx; 120 were finished by no engine",
        ),
        (
            1.0,
            0.0,
            0.7,
            "0 of 600 HTTP requests were answered with 4xx or 5xx; 180 were finished by no engine",
        ),
        (1.05, 0.05, 1.0, "30 of 630 HTTP requests were answered with 4xx or 5xx"),
        (1.0, 0.0, 1.0, None),
        (1.0, 0.005, 0.995, None),
        (0.5, 0.0, 1.0, None),
        (0.0, 0.0, 0.5, None),
    ],
)
def test_requests_that_fail_are_counted_against_those_that_came(posts, refused, finished, evidence):
    series = ModelSeries().pod("a", finished=finished, began=finished, posts=posts, refused=refused)
    found = causes(series).get("RequestsFail")
    assert found is None if evidence is None else found == evidence


def test_clients_that_give_up_do_not_count_as_failures():
    found = causes(ModelSeries().pod("a", finished=0.6, posts=1.0))
    assert "ClientsGiveUp" in found
    assert "RequestsFail" not in found


@pytest.mark.parametrize("prefix", ["kserve_vllm:", "ray_vllm:", "ray_vllm_", "vllm_"])
def test_other_prefixes_and_labels_give_the_same_figures(prefix):
    series = ModelSeries(prefix).pod("a").pod("10.0.0.7:8000", label="instance").pod("c", until_s=END_S - 60)
    snapshot = seen(series)
    assert (snapshot.pods, set(snapshot.gone)) == (2, {"c"})
    assert snapshot.window.rps == pytest.approx(RPS, rel=0.03)
    assert seen(series, "vllm:").pods == 0


def test_two_replicas_of_prometheus_count_once_and_native_histograms_as_classic_ones():
    series = ModelSeries().pod("a", copies=("x", "y")).pod("b", native=True)
    snapshot = seen(series)
    assert snapshot.pods == 2
    assert snapshot.window.rps == pytest.approx(RPS, rel=0.03)
    assert snapshot.missing == ()
    assert snapshot.window.latency_s == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize(
    ("matchers", "said"),
    [
        ((*MODEL, Matcher("namespace", "=", "other")), "there are some with namespace='llm' pod='a', namespace='llm' pod='b'"),
        ((Matcher("model_name", "=", "caht"),), "there are some with model_name='chat'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["vllm:", "kserve_vllm:"])
def test_labels_that_were_wrongly_asked_for_are_told_from_no_series(matchers, said, prefix):
    series = ModelSeries(prefix).pod("a").pod("b")
    (finding,) = diagnose(seen(series, matchers=matchers), None, None).findings
    assert finding.cause == "NoSeries"
    assert finding.evidence.endswith(said)
    (none,) = diagnose(seen(ModelSeries(), matchers=matchers), None, None).findings
    assert none.evidence == "Prometheus holds no vLLM series of this model"
