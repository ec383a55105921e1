"""Latencies of a service's pods out of one answer, or the one reason why there are none."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.readers.prometheus import Bucket, InstantSample
from breakeven.serving.growths import EngineLimits
from breakeven.serving.promql import EngineSeries, Matcher
from breakeven_operator.case import LatencyReading, Live
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.latency_metrics import latencies_of, latency_query, read_latencies
from breakeven_operator.observing.live_metrics import WatchedPods
from breakeven_operator.resources.metricssource import MetricsSource
from breakeven_operator.workloads.workload import PodState
from fakes.vllm_buckets import vllm_buckets

FRESH = Live(ClusterReason.METRICS_AVAILABLE, "fresh")
_LITERAL = re.compile(r'"((?:[^"\\\n]|\\[\\"nrt]|\\x[0-9a-f]{2})*)"')


def pod(name):
    return PodState(name, name, True, None, 20.0, False, "node", "", None)


def answer(siblings, figure, took_s, model="chat", **wrong):
    labels = {"namespace": "llm", "siblings": siblings, "model_name": model, "stat": figure}
    counts = vllm_buckets(figure, took_s) | wrong
    return [InstantSample({**labels, "le": edge}, count) for edge, count in counts.items()]


def watched(*pods):
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    return WatchedPods("llm", "chat", [pod(name) for name in pods], MetricsSource(), EngineLimits(), now)


def read(series, pods=("chat-5f-abcde",), live=FRESH):
    return latencies_of(read_latencies(series), watched(*pods), live)


def test_pods_of_one_replica_set_are_one_series_and_those_that_are_replaced_do_not_count():
    series = [*answer("chat-5f-", "ttft", [0.1] * 8), *answer("chat-6a-", "ttft", [9.0] * 5)]
    found = read(series, ("chat-5f-abcde", "chat-5f-fghij"))
    assert found.reason is ClusterReason.METRICS_AVAILABLE
    assert (found.histograms["ttft"].requests, found.histograms["ttft"].missed(1.0)) == (8.0, 0.0)


def native(siblings, figure, buckets, count=None):
    labels = {"namespace": "llm", "siblings": siblings, "model_name": "chat", "stat": figure}
    found = tuple(Bucket(*one) for one in buckets)
    return InstantSample(labels, sum(one.values for one in found) if count is None else count, found)


def test_a_native_histogram_says_what_the_classic_one_of_the_same_requests_does():
    """Buckets that are empty are left out: (0.04, 0.06] and (1.0, 2.5]."""
    took_s = [0.05] * 3 + [2.0] * 2
    converted = native("chat-5f-", "ttft", [(0.04, 0.06, 3.0), (1.0, 2.5, 2.0)], 5.0 + 1e-12)
    # The count differs from the sum of the buckets in its last digits.
    alone, classic = (
        read(one).histograms["ttft"] for one in ([converted], answer("chat-5f-", "ttft", took_s))
    )
    assert alone.requests == classic.requests == 5.0
    for limit_s in (0.04, 0.06, 1.0, 2.5, 99.0):
        assert alone.missed(limit_s) == classic.missed(limit_s)


def test_pods_with_native_histograms_and_pods_with_classic_ones_add_up():
    series = [*answer("chat-5f-", "ttft", [0.05] * 3), native("chat-5f-", "ttft", [(1.0, 2.5, 2.0)])]
    found = read(series).histograms["ttft"]
    assert found.requests == 5.0
    assert (found.missed(0.06), found.missed(2.5)) == (2.0, 0.0)
    # Where the two lie between these edges only the native one's pods know.
    assert 2.0 not in found.edges_s


def test_edges_that_lie_within_another_histograms_bucket_are_left_out():
    found = read([native("chat-5f-", "ttft", [(0.5, 0.7, 4.0)]), *answer("chat-5f-", "ttft", [0.6])])
    edges_s = found.histograms["ttft"].edges_s
    assert {0.5, 0.75} <= set(edges_s)
    assert not [edge for edge in edges_s if 0.5 < edge < 0.7]


def test_another_model_of_the_same_pods_does_not_count():
    assert read(answer("chat-5f-", "ttft", [0.1], model="other")).reason is ClusterReason.METRICS_EMPTY


@pytest.mark.parametrize(
    ("series", "reason", "said"),
    [
        ([], ClusterReason.METRICS_EMPTY, "vllm:e2e_request_latency_seconds_bucket"),
        (answer("chat-5f-", "ttft", [0.1], **{"0.25": math.nan}), ClusterReason.METRICS_NAN, "up to 0.25 s is not a number"),
        (answer("chat-5f-", "ttft", [0.1] * 99, **{"1.0": 3.0}), ClusterReason.METRICS_IMPOSSIBLE, "99 requests took at most 0.75 s, and 3 at most 1 s"),
        (answer("chat-5f-", "ttft", [], **{"+Inf": -9.0}), ClusterReason.METRICS_IMPOSSIBLE, "-9 at most inf s"),
    ],
)  # fmt: skip
def test_what_is_no_histogram_is_told_by_its_word(series, reason, said):
    found = read(series)
    assert (found.reason, found.histograms) == (reason, {})
    assert said in found.message


def test_what_is_wrong_with_the_figures_is_wrong_with_the_latencies_but_for_few_requests():
    series = answer("chat-5f-", "ttft", [0.1])
    stale = Live(ClusterReason.METRICS_STALE, "an hour old")
    assert read(series, live=stale).reason is ClusterReason.METRICS_STALE
    assert read(series, live=Live(ClusterReason.TOO_FEW_REQUESTS, "1")).histograms
    failed = latencies_of(LatencyReading(error="too many samples"), watched(), FRESH)
    assert failed is not None
    assert (failed.reason, "too many samples" in failed.message) == (ClusterReason.METRICS_MISSING, True)
    assert latencies_of(None, watched(), FRESH) is None


def test_buckets_that_sampling_moved_a_little_are_a_histogram():
    found = read(answer("chat-5f-", "ttft", [0.1] * 99, **{"1.0": 96.0}))
    assert found.histograms["ttft"].within(1.0).value == 1.0


def test_the_query_asks_per_replica_set_for_three_histograms_and_never_for_the_time_between_tokens():
    query = latency_query([NamespacedName("llm", "chat"), NamespacedName("code", "c.x")], EngineSeries(), 300)
    # Of each classic and native, and whether there is a classic one.
    assert query.count("_bucket{") == 6
    assert query.count("[300s]") == 9
    assert query.startswith("sum by(namespace,siblings,model_name,stat,le)(")
    assert 'namespace=~"code|llm"' in query
    assert 'pod=~"(c\\\\.x|chat)-.+"' in query
    assert "inter_token" not in query
    assert query.isascii()


@given(st.text(), st.sampled_from(["=", "!=", "=~", "!~"]))
def test_a_matchers_value_cannot_leave_its_quotes(value, operator):
    target = [NamespacedName("llm", "chat")]
    query, harmless = (
        latency_query(target, EngineSeries((Matcher("cluster", operator, text),)), 300)
        for text in (value, "X")
    )
    assert re.sub(_LITERAL, "S", query) == re.sub(_LITERAL, "S", harmless)
