"""Pods under the labels that a federation gives them: one real Prometheus federates another, and both users of the client read it."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from breakeven.cli import root
from breakeven.serving.promql import EngineSeries, LabelNames
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import fleet_query
from breakeven_operator.observing.live_metrics import read_fleet
from fakes.model_series import RPS, ModelSeries
from operatorcluster.made_up_prometheus import asked, prometheus_of_store, prometheus_scraping, series_of
from operatorcluster.waiting import until

WINDOW_S, AHEAD_S = 60, 300
PODS = ("chat-7d9f8b6c5d-bbbbb", "chat-7d9f8b6c5d-ccccc")
FEDERATED = LabelNames("exported_namespace", "exported_pod")
QUERY = fleet_query(["llm"], EngineSeries(), WINDOW_S, 120)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    # The source is a pod itself, and its target's labels hide those of what it federates: no honorLabels.
    source = {"namespace": "monitoring", "pod": "prometheus-0"}
    series = ModelSeries(end_s=int(time.time()) + AHEAD_S)
    for pod in PODS:
        series.pod(pod)
    with prometheus_of_store(tmp_path_factory.mktemp("source"), series.store) as inner:
        job = {
            "job_name": "federate",
            "metrics_path": "/federate",
            "params": {"match[]": ['{__name__=~"vllm:.+"}']},
            "static_configs": [{"targets": [inner.removeprefix("http://")], "labels": source}],
        }
        with prometheus_scraping(tmp_path_factory.mktemp("federation"), [job]) as outer:
            seen = f"count_over_time(vllm:num_requests_running[{WINDOW_S}s]) >= 4"
            until("a window is federated", lambda: len(series_of(outer, seen)) == len(PODS))
            yield outer


def test_the_operator_reads_the_pods_once_their_labels_are_named(address):
    fleet = read_fleet(asked(address, QUERY))
    assert not fleet.pods.keys() & {NamespacedName("llm", pod) for pod in PODS}
    assert fleet.renamed[NamespacedName("llm", PODS[0])] == (
        f"exported_namespace='llm' and exported_pod='{PODS[0]}'"
    )
    named = read_fleet(asked(address, QUERY, FEDERATED))
    assert named.renamed == {}
    assert named.present == {("llm", pod, "chat") for pod in PODS}
    for pod in PODS:
        (reading,) = named.pods[NamespacedName("llm", pod)].values()
        assert reading.stats["started"] == pytest.approx(RPS * WINDOW_S, rel=0.4)


def test_doctor_does_too(address):
    words = ["doctor", "--prometheus", address, "--model", "chat", "--namespace", "llm"]
    words += ["--window-seconds", str(WINDOW_S), "--json"]
    lost = CliRunner().invoke(root, words, catch_exceptions=False)
    assert "exported_namespace='llm'" in json.loads(lost.stdout)["sentence"]
    labels = [f"--label=namespace={FEDERATED.namespace}", f"--label=pod={FEDERATED.pod}"]
    found = json.loads(CliRunner().invoke(root, [*words, *labels], catch_exceptions=False).stdout)
    assert found["rps"] == pytest.approx(RPS, rel=0.4)
