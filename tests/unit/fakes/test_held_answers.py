"""Answers that the Prometheus in memory puts together by itself equal those of the operator's queries over held series."""

from __future__ import annotations

import math
import random

import pytest

from breakeven.readers.prometheus import InstantSample
from breakeven.serving.promql import EngineSeries
from breakeven_operator.kinds import PODS, NamespacedName
from breakeven_operator.observing.fleet_query import (
    EVALUATED,
    SAMPLED,
    STAT,
    fleet_query,
    roll_query,
    siblings_of,
    sums_query,
)
from breakeven_operator.observing.latency_metrics import latency_query
from breakeven_operator.observing.roll_metrics import read_roll
from fakes.engine_pages import Grown, Scrapes, SteadyPage
from fakes.fleet_metrics import PodTraffic, summed
from fakes.fleet_world import FleetWorld
from fakes.held_series import STALE, SeriesStore
from fakes.promql_evaluation import evaluate, evaluate_range
from fakes.promql_values import RefusedQueryError, Value
from fakes.vllm_buckets import vllm_buckets

NOW_S = 1_800_000_000.0
NAMES = ("chat-7d9f8b6c5d-bbbbb", "chat-7d9f8b6c5d-ccccc", "code-64bd5fcf9-ddddd")


def page(rps, waiting=2.0, **how):
    rates = {
        "completed": rps,
        "started": rps,
        "ttft_s": 0.1 * rps,
        "e2e_s": 1.5 * rps,
        "e2e_n": rps,
        "generated": 99 * rps,
        "drafts": 30.0,
    }
    positions = [Grown("accepted", rps / (2.0 + place), (("position", str(place)),)) for place in range(2)]
    return SteadyPage(
        (*(Grown(stat, per_s) for stat, per_s in rates.items()), *positions),
        running=rps * 1.5, waiting=waiting, running_per_s=0.01, window_s=300.0, scrapes=Scrapes(**how),
    )  # fmt: skip


def labels(pod):
    return {"namespace": "llm", "pod": pod, "model_name": "chat"}


def samples(found):
    return [InstantSample(dict(one.labels), one.value) for one in found]


def test_sums_over_pods_are_those_of_the_query_of_sums():
    store = SeriesStore()
    for pod, rps in zip(NAMES, (1.0, 3.0, 7.0), strict=True):
        page(rps, waiting=rps).scraped(store, labels(pod), NOW_S)
    by_pod = samples(evaluate(store, fleet_query(["llm"], EngineSeries(), 300, 120), NOW_S))
    expected = {tuple(sorted(one.labels.items())): one.value for one in summed(by_pod)}
    found = {
        tuple(sorted(one.labels.items())): one.value
        for one in evaluate(store, sums_query(["llm"], EngineSeries(), 300, 120), NOW_S)
    }
    assert found == pytest.approx(expected)
    assert {dict(key)[STAT] for key in found} >= {"accepted", "waiting_min", EVALUATED}


def test_latencies_are_the_buckets_that_the_query_adds_up():
    world = FleetWorld()
    took_s = [0.05, 0.3, 0.3, 4.0]
    world.prometheus.traffic.latencies = {"e2e": took_s}
    store = SeriesStore()
    pods = [pod["metadata"]["name"] for pod in world.cluster.of(PODS)]
    for pod in pods:
        for edge, count in vllm_buckets("e2e", took_s).items():
            for at in range(0, 400, 15):
                held = 1000.0 + count * at / 300.0
                store.add(
                    "vllm:e2e_request_latency_seconds_bucket",
                    {**labels(pod), "le": edge},
                    NOW_S - 390 + at,
                    held,
                )
    asked = latency_query([NamespacedName("llm", "chat-vllm")], EngineSeries(), 300)
    found = {dict(one.labels)["le"]: one.value for one in evaluate(store, asked, NOW_S)}
    assert found == pytest.approx(
        {edge: len(pods) * count for edge, count in vllm_buckets("e2e", took_s).items()}
    )
    assert {siblings_of(pod) for pod in pods} == {
        dict(one.labels)["siblings"] for one in evaluate(store, asked, NOW_S)
    }


async def test_blocks_of_a_roll_are_those_that_the_query_reads_of_counters():
    world = FleetWorld()
    world.load(4.0)
    for _ in range(40):
        world.clock.advance(15.0)
        world.prometheus.count()
    asked = roll_query([("llm", "chat-vllm")], EngineSeries(), 300, 60)
    told = read_roll(await world.prometheus.query_past(None, asked))
    store, now_s = SeriesStore(), world.clock.now().timestamp()
    for (namespace, pod), seen in world.prometheus.counted.items():
        own = {"namespace": namespace, "pod": pod, "model_name": "chat"}
        for one in seen:
            store.add("vllm:time_to_first_token_seconds_sum", own, one.time_s, one.ttft_s)
            store.add("vllm:time_to_first_token_seconds_count", own, one.time_s, one.started)
            store.add("vllm:inter_token_latency_seconds_sum", own, one.time_s, one.step_s)
            store.add("vllm:generation_tokens_total", own, one.time_s, one.generated)
            store.add("vllm:prompt_tokens_total", own, one.time_s, one.prefilled)
            store.add("vllm:num_requests_waiting", own, one.time_s, one.waiting)
    for block in evaluate_range(store, asked, now_s):
        if block.labels[STAT] == SAMPLED:
            continue
        (stats,) = [found for owner, found in told.pods.items() if owner.pod == block.labels["pod"]]
        grown = [later - before for before, later in zip(block.values, block.values[1:], strict=False)]
        blocks = [
            later - before
            for before, later in zip(stats[block.labels[STAT]], stats[block.labels[STAT]][1:], strict=False)
        ]
        # Here a counter stands at the time that is asked about, there at the scrape before it.
        assert grown[-4:] == pytest.approx(blocks[-4:], rel=0.3)


def test_copies_engines_and_forms_of_histograms_leave_the_figures_as_they_are():
    plain: dict[tuple[str, str | None], Value] = {}
    asked = fleet_query(["llm"], EngineSeries(), 300, 120)
    for how in (
        {},
        {"histograms": "both"},
        {"histograms": "native"},
        {"copies": ((), (("job", "b"),)), "engines": 2},
    ):
        store = SeriesStore()
        page(3.0, **how).scraped(store, labels(NAMES[0]), NOW_S)
        found = {
            (one.labels[STAT], one.labels.get("position")): one.value
            for one in evaluate(store, asked, NOW_S)
            if one.labels[STAT] not in {"engines", "present"}
        }
        plain = plain or found
        assert found == pytest.approx(plain, rel=0.03)


@pytest.mark.parametrize(
    "promql",
    [
        "rate(x[5m])", "sum without(a)(x)", "topk(3, x)", "x * 2", "x @ 1", "x[5m:]", "quantile_over_time(0.5, x[5m])",
        "a + on(b) group_left c", "a == bool 1", "absent(x)", "1 + x", "stddev(x)", "a > ignoring(b) c",
    ],
)  # fmt: skip
def test_what_no_query_of_ours_asks_is_refused_and_not_guessed(promql):
    with pytest.raises(RefusedQueryError):
        evaluate(SeriesStore(), promql, NOW_S)


def test_two_elements_with_the_same_labels_are_an_error_as_they_are_to_prometheus():
    store = SeriesStore()
    for job in "ab":
        store.add("x", {"job": job}, NOW_S, 1.0)
    with pytest.raises(RefusedQueryError, match="same labels"):
        evaluate(store, 'label_replace(x,"job","","job",".*")', NOW_S)


def test_a_marker_of_staleness_hides_a_series_and_ends_no_range():
    store = SeriesStore()
    for at, value in ((-45, 1.0), (-30, 2.0), (-15, STALE)):
        store.add("x", {}, NOW_S + at, value)
    assert evaluate(store, "x", NOW_S) == []
    assert [one.value for one in evaluate(store, "max_over_time(x[1m])", NOW_S)] == [2.0]


def test_a_page_of_random_traffic_is_answered_with_the_traffic():
    draw = random.Random(1)
    for _ in range(20):
        traffic = PodTraffic(
            rps=draw.uniform(0.1, 30), latency_s=draw.uniform(0.1, 9), tokens_per_step=draw.uniform(1, 4)
        )
        world = FleetWorld()
        world.prometheus.traffic = traffic
        (pod, *_) = world.cluster.of(PODS)
        found = {one.labels[STAT]: one.value for one in world.prometheus.series_of(pod)}
        assert found["completed"] == pytest.approx(300 * traffic.rps)
        assert found["e2e_s"] / found["e2e_n"] == pytest.approx(traffic.latency_s)
        assert (found["generated"] - found["started"]) / found["steps"] == pytest.approx(
            traffic.tokens_per_step
        )
        assert found["running"] == pytest.approx(traffic.rps * traffic.latency_s)
        assert math.isclose(found["engines"], 1.0)
