"""A Prometheus is asked about few enough pods at a time, and its answers are one."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from breakeven.readers.prometheus import InstantSample
from breakeven.serving.promql import SAME_LABELS, EngineSeries, LabelNames
from breakeven_operator.cluster.prometheus_questions import FLEET, Runner, Watch, parted, prometheus_of
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import EVALUATED, PRESENT, STAT
from breakeven_operator.ports import PrometheusAccess
from breakeven_operator.resources import SpeculativeService
from fakes.manual_clock import FakeClock

WATCH = Watch(PrometheusAccess("http://prometheus:9090"), EngineSeries(), 60, 120)


class Asked:
    """Answers with one pod for each namespace that a query names; each answer is a second younger than the one before."""

    def __init__(self):
        self.queries = []

    async def query(self, _source, promql):
        self.queries.append(promql)
        names = re.search(r'namespace=~"([^"]*)"', promql)[1].split("|")
        rows = [
            InstantSample({"namespace": name, "pod": f"pod-{name}", "model_name": "chat", STAT: stat}, 1.0)
            for name in names
            for stat in ("running", PRESENT)
        ]
        return [*rows, InstantSample({STAT: EVALUATED}, 1000.0 + len(self.queries))]


async def read(pods):
    metrics = Asked()
    counted: list[str] = []
    present = Runner(FLEET, metrics, FakeClock(), counted.append)
    found = await present.read({WATCH: pods})
    await present.close()
    return found[WATCH], metrics.queries, counted


async def test_few_pods_are_one_query_and_many_are_several_that_are_read_as_one():
    _, queries, counted = await read({"a": 230, "b": 230})
    assert (len(queries), counted) == (1, ["ok"])
    reading, queries, counted = await read({"a": 230, "b": 230, "c": 230, "d": 1700, "e": 1})
    assert [re.search(r'namespace=~"([^"]*)"', query)[1] for query in queries] == ["a|b", "c", "d", "e"]
    assert counted == ["ok"]
    assert set(reading.pods) == {NamespacedName(name, f"pod-{name}") for name in "abcde"}
    assert {owner.namespace for owner in reading.present} == set("abcde")
    # Whatever is decided on them is as old as the oldest.
    assert reading.evaluated_s == 1001.0


async def test_what_lies_elsewhere_in_a_prometheus_is_asked_once():
    _, queries, _ = await read({"a": 500, "b": 500, "c": 500})
    everywhere = [
        bool(re.search(r"count by ?\([^)]*\) ?\(vllm:num_requests_running\)", query)) for query in queries
    ]
    assert everywhere == [True, False, False]


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(0, 4000), max_size=30))
def test_every_namespace_is_in_one_part_and_no_part_could_take_the_next(pods):
    parts = list(parted(pods, 1500))
    assert [name for part in parts for name in part] == sorted(pods)
    sizes = [sum(pods[name] for name in part) for part in parts]
    for part, size, following in zip(parts, sizes, parts[1:], strict=False):
        assert len(part) == 1 or size <= 1500
        assert size + pods[following[0]] > 1500


def test_a_service_s_server_has_the_names_of_labels_that_the_service_gives():
    def labels(**given):
        prometheus = {"address": "http://prometheus:9090", **given}
        spec = {
            "targetRef": {"name": "chat"},
            "candidates": {"methods": [{"name": "ngram", "method": "ngram"}]},
            "metricsSource": {"prometheus": prometheus},
        }
        body = {"metadata": {"name": "chat", "namespace": "llm"}, "spec": spec}
        return prometheus_of(SpeculativeService.read(body, "chat")).labels

    assert labels() == SAME_LABELS
    assert labels(labelNames={"pod": "exported_pod"}) == LabelNames(pod="exported_pod")
    assert labels(labelNames={"namespace": "ns", "pod": "name"}) == LabelNames("ns", "name")
