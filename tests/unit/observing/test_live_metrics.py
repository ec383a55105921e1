"""Figures from the fleet query, or the one reason why there are none."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from breakeven.readers.prometheus import InstantSample
from breakeven.serving.growths import EngineLimits
from breakeven_operator.case import Live
from breakeven_operator.observing.live_metrics import WatchedPods, read_fleet, read_service
from breakeven_operator.resources.metricssource import MetricsSource
from breakeven_operator.workloads.workload import PodState

TIMES = ("first_seen_s", "last_seen_s")
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NO_LIMITS = EngineLimits()


def pod(name, *, age_s=1000.0):
    since = NOW - timedelta(seconds=age_s)
    return PodState(name, name, True, since, 20.0, False, "node", "", None)


def series(pod_name, stats, *, namespace="llm", model="chat", accepted=()):
    labels = {"namespace": namespace, "pod": pod_name, "model_name": model}
    found = [InstantSample({**labels, "stat": stat}, value) for stat, value in stats.items()]
    found += [
        InstantSample({**labels, "stat": "accepted", "position": str(i)}, value)
        for i, value in enumerate(accepted)
    ]
    return found


# 300 s: 600 requests of 100 tokens, TTFT 0.2 s, E2E 1.2 s, 2.5 tokens per step.
STATS = {
    "completed": 600.0,
    "started": 600.0,
    "ttft_s": 120.0,
    "e2e_s": 720.0,
    "e2e_n": 600.0,
    "generated": 60_000.0,
    "steps": 59_400.0 / 2.5,
    "prompt_tokens": 600 * 250.0,
    "output_tokens": 60_000.0,
    "output_n": 600.0,
    "running": 2.4,
    "waiting": 0.0,
    "waiting_min": 0.0,
    "running_growth": 0.0,
    "waiting_growth": 0.0,
    "first_seen_s": NOW.timestamp() - 304.0,
    "last_seen_s": NOW.timestamp() - 4.0,
    "present": 1.0,
}


def seen(age_s):
    return {"first_seen_s": NOW.timestamp() - age_s - 300.0, "last_seen_s": NOW.timestamp() - age_s}


def read(found, pods=("a",), staleness_s=120, limits=NO_LIMITS, now=NOW) -> Live:
    source = MetricsSource(staleness_seconds=staleness_s)
    watched = WatchedPods("llm", "chat", [pod(name) for name in pods], source, limits, now, frozenset(pods))
    return read_service(read_fleet(found), watched)


def test_figures_are_ratios_of_sums_per_replica():
    counted = {name: value / 2 for name, value in STATS.items() if name not in TIMES}
    half = STATS | counted | {"running": 2.4}
    live = read(series("a", STATS) + series("b", half), pods=("a", "b"))
    assert live.usable
    assert live.figures is not None
    figures = live.figures
    assert figures.rps == pytest.approx(1.5)
    assert figures.total_rps == pytest.approx(3.0)
    assert figures.latency_s == pytest.approx(1.2)
    assert figures.ttft_s == pytest.approx(0.2)
    assert figures.tpot_s == pytest.approx(1.0 / 99)
    assert figures.tokens_per_step == pytest.approx(2.5)
    assert (figures.prompt_tokens, figures.output_tokens) == pytest.approx((250.0, 100.0))
    assert figures.inflight == pytest.approx(2.4)


def test_tokens_per_step_is_per_request_step_and_not_per_draft():
    # vLLM 0.32 with n-gram k=3, a captured page: 392 tokens after the first ones in 127 steps of which 96 drafted.
    # 1 + accepted/drafts would say 3.92.
    page = {"generated": 400.0, "started": 8.0, "steps": 127.0, "drafts": 96.0}
    live = read(series("a", STATS | page, accepted=(96.0, 96.0, 88.0)))
    assert live.figures is not None
    assert live.figures.tokens_per_step == pytest.approx(392 / 127)
    assert live.figures.survival == pytest.approx((1.0, 1.0, 88 / 96))


def test_the_prefix_cache_s_share_is_of_the_tokens_that_were_read_and_none_where_it_is_not_counted():
    read_of_two = series("a", STATS | {"prefilled": 1000.0, "hits": 900.0}) + series(
        "b", STATS | {"prefilled": 1000.0, "hits": 100.0}
    )
    counted = read(read_of_two, pods=("a", "b")).figures
    assert counted is not None
    assert counted.prefix_hit_ratio == pytest.approx(0.5)
    silent = read(series("a", STATS)).figures
    assert silent is not None
    assert silent.prefix_hit_ratio is None
    # Hits are counted when a request is admitted, its prompt when it was read.
    early = read(series("a", STATS | {"prefilled": 100.0, "hits": 150.0})).figures
    assert early is not None
    assert early.prefix_hit_ratio == 1.0


def test_offered_load_counts_what_piles_up():
    live = read(
        series(
            "a", STATS | {"running_growth": 30.0, "waiting_growth": 60.0, "waiting": 30.0, "waiting_min": 1.0}
        )
    )
    assert live.figures is not None
    assert live.figures.rps == pytest.approx((600 + 90) / 300)
    assert live.figures.saturated


# vLLM counts requests whose clients give up just before the end in no series of finished requests.
GIVEN_UP = STATS | {
    name: STATS[name] / 2
    for name in ("completed", "e2e_s", "e2e_n", "prompt_tokens", "output_tokens", "output_n")
}


def test_requests_that_clients_give_up_were_offered_and_are_said():
    live = read(series("a", GIVEN_UP))
    assert live.usable
    assert "clients gave up 50% of the requests that began" in live.message
    assert live.figures is not None
    assert live.figures.rps == pytest.approx(2.0)
    assert live.figures.given_up == pytest.approx(0.5)
    assert live.figures.latency_s == pytest.approx(1.2)
    # Answers of all that began: a load of so many tokens.
    assert live.figures.output_tokens == pytest.approx(100.0)


def test_requests_that_are_still_in_the_engine_were_not_given_up():
    live = read(series("a", GIVEN_UP | {"running_growth": 300.0}))
    assert live.figures is not None
    assert live.figures.given_up == 0.0
    assert live.figures.rps == pytest.approx(2.0)
    assert "gave up" not in live.message


def test_who_waits_for_a_first_token_was_offered():
    """Prefilling requests are in the batch, and have begun by no counter."""
    live = read(series("a", STATS | {"started": 500.0, "completed": 550.0, "running_growth": 60.0}))
    assert live.figures is not None
    assert live.figures.rps == pytest.approx(610 / 300)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("e2e_n", "vllm:e2e_request_latency_seconds_count"),
        ("started", "vllm:time_to_first_token_seconds_count"),
        ("completed", "vllm:request_success_total"),
        ("steps", "vllm:inter_token_latency_seconds_count"),
        ("generated", "vllm:generation_tokens_total"),
        ("output_n", "vllm:request_generation_tokens_count"),
        ("waiting", "vllm:num_requests_waiting"),
    ],
)
def test_a_statistic_that_is_missing_is_named_and_is_not_zero(missing, named):
    live = read(series("a", {name: value for name, value in STATS.items() if name != missing}))
    assert live.reason == "MetricsPartial"
    assert named in live.message
    assert live.figures is None


def test_a_pod_with_one_sample_has_gauges_and_no_increases_yet():
    gauges = ("running", "waiting", "waiting_min", "present", *TIMES)
    young = {name: STATS[name] for name in gauges} | {"first_seen_s": NOW.timestamp() - 4.0}
    assert read(series("a", young)).reason == "TooFewRequests"


def test_two_engines_that_no_label_tells_apart_are_named_by_their_labels():
    labels = {"namespace": "llm", "pod": "a", "model_name": "chat", "engine": "0", "stat": "mixed"}
    two = [
        InstantSample({**labels, "container": name, "instance": f"10.0.0.7:{port}"}, 1.0)
        for name, port in (("vllm", 8000), ("second", 8001))
    ]
    live = read([*series("a", STATS), *two])
    assert live.reason == "MetricsImpossible"
    assert '{container="vllm", instance="10.0.0.7:8000"}' in live.message
    assert '{container="second", instance="10.0.0.7:8001"}' in live.message
    assert "engine=" not in live.message


def test_a_page_that_is_scraped_and_has_no_vllm_series_tells_of_the_flag_that_takes_them_away():
    labels = {"namespace": "llm", "siblings": "chat-7d9f8b6c5d-", "stat": "silent"}
    pods = ("chat-7d9f8b6c5d-bbbbb",)
    live = read([InstantSample(labels, 1.0)], pods)
    assert live.reason == "MetricsEmpty"
    assert "--disable-log-stats" in live.message
    assert "chat-7d9f8b6c5d-bbbbb" in live.message
    elsewhere = read([InstantSample({**labels, "namespace": "other"}, 1.0)], pods)
    assert elsewhere.reason == "MetricsEmpty"
    assert "--disable-log-stats" not in elsewhere.message


def test_a_queue_at_one_pod_only_is_no_saturation():
    live = read(
        series("a", STATS | {"waiting": 8.0, "waiting_min": 5.0}) + series("b", STATS), pods=("a", "b")
    )
    assert live.figures is not None
    assert not live.figures.saturated


@pytest.mark.parametrize("ready_s", [1.0, 15.0, 60.0, 149.0, 200.0, 1e6])
@pytest.mark.parametrize(
    ("watched_s", "counted_s"), [(1e6, 300.0), (300.0, 300.0), (240.0, 240.0), (160.0, 160.0)]
)
def test_counters_grew_since_their_series_began_whenever_the_pod_became_ready(ready_s, watched_s, counted_s):
    """A readiness probe that misses moves Ready, and no counter begins again."""
    watched = WatchedPods(
        "llm", "chat", [pod("a", age_s=ready_s)], MetricsSource(), NO_LIMITS, NOW, frozenset({"a"})
    )
    seen = {"first_seen_s": NOW.timestamp() - min(watched_s, 300.0)}
    found = [*series("a", STATS | seen), InstantSample({"stat": "evaluated_s"}, NOW.timestamp())]
    live = read_service(read_fleet(found), watched)
    assert live.usable
    assert live.figures is not None
    assert live.figures.rps == pytest.approx(600.0 / counted_s)


@pytest.mark.parametrize("began_s", [1.0, 60.0, 150.0, 299.0])
def test_an_engine_that_began_again_in_its_container_has_no_figures_until_its_window_is_its_own(began_s):
    again = replace(pod("a"), crashes=1, started=NOW - timedelta(seconds=began_s))
    watched = WatchedPods("llm", "chat", [again], MetricsSource(), NO_LIMITS, NOW, frozenset({"a"}))
    live = read_service(read_fleet(series("a", STATS)), watched)
    assert live.reason == "TooFewRequests"
    assert "the series of pod a begin with those of the engine that ended in it" in live.message
    own = series("a", STATS | {"first_seen_s": NOW.timestamp() - began_s + 1.0})
    young = read_service(read_fleet(own), watched)
    assert "the engine that ended" not in young.message


FAULTS = {
    "MetricsNaN": {"running": math.nan},
    "MetricsStale": seen(500.0),
    "MetricsImpossible": {"steps": 1e13},
    "MetricsPartial": None,
    "TooFewRequests": {"first_seen_s": NOW.timestamp() - 60.0},
}


@pytest.mark.parametrize("word", FAULTS)
@pytest.mark.parametrize(("pods", "faulty"), [(1, 0), (2, 1), (3, 1), (3, 2), (6, 2), (6, 3), (12, 1), (12, 4), (12, 5)])  # fmt: skip
def test_two_thirds_of_the_pods_carry_the_figures_and_fewer_none(word, pods, faulty):
    names = [f"pod-{number:02}" for number in range(pods)]
    found = [one for name in names[faulty:] for one in series(name, STATS)]
    for name in names[:faulty]:
        found += series(name, STATS | FAULTS[word]) if FAULTS[word] is not None else []
    live = read(found, pods=names)
    if 3 * (pods - faulty) < 2 * pods:
        assert live.reason == word
        assert f"{pods - faulty} of {pods} pods can be measured, and two thirds are needed" in live.message
        return
    assert live.usable
    assert live.figures is not None
    assert live.figures.replicas == pods - faulty
    assert live.figures.requests == pytest.approx(600.0 * (pods - faulty))
    assert live.figures.rps == pytest.approx(2.0)
    assert live.figures.total_rps == pytest.approx(2.0 * pods)
    if faulty:
        assert f"{pods - faulty} of {pods} pods measured" in live.message
        assert f"pod-00 ({word})" in live.message
        assert (f"and {faulty - 4} more" in live.message) is (faulty > 4)


@pytest.mark.parametrize(("keep_names", "first_seen_s", "usable"), [
    (True, 400.0, False), (True, 200.0, True), (False, 400.0, True),
])  # fmt: skip
def test_a_pod_has_no_figures_while_its_name_still_shows_those_of_the_pod_before(
    keep_names, first_seen_s, usable
):
    """Made 300 s ago: what was seen earlier is of the pod that it replaced."""
    made = replace(pod("chat-0", age_s=280.0), created=NOW - timedelta(seconds=300))
    watched = WatchedPods(
        "llm", "chat", [made], MetricsSource(), NO_LIMITS, NOW, frozenset({"chat-0"}), keep_names=keep_names
    )
    found = series("chat-0", STATS | {"first_seen_s": NOW.timestamp() - first_seen_s})
    # Series of an arm that has drafts end with the pod that had it.
    found += series("chat-0", {"ended": 1.0}) if not usable else []
    live = read_service(read_fleet(found), watched)
    assert live.usable is usable
    if not usable:
        assert live.reason == "TooFewRequests"
        assert "pod chat-0 begin with those of the pod that it replaced" in live.message


def test_a_pod_that_prometheus_found_late_is_divided_by_the_time_it_was_watched():
    """600 requests were counted in the 200 s since its first scrape, however long it had served before."""
    stats = series("a", STATS | {"first_seen_s": NOW.timestamp() - 200.0})
    asked = InstantSample({"stat": "evaluated_s"}, NOW.timestamp())
    live = read([*stats, asked])
    assert live.figures is not None
    assert live.figures.rps == pytest.approx(3.0)
    assert live.figures.window_s == pytest.approx(200.0)


def test_a_prometheus_that_has_just_begun_to_look_shows_too_little():
    live = read(series("a", STATS | {"first_seen_s": NOW.timestamp() - 104.0}))
    assert live.reason == "TooFewRequests"
    assert "watched for 100 s only" in live.message


def test_without_requests_there_is_no_latency_and_no_zero():
    quiet = dict.fromkeys(STATS, 0.0) | seen(1.0)
    live = read(series("a", quiet))
    assert live.reason == "TooFewRequests"
    assert live.figures is not None
    assert live.figures.latency_s is None
    assert live.figures.tokens_per_step is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_named(bad):
    live = read(series("a", STATS | {"running": bad}))
    assert live.reason == "MetricsNaN"
    assert "running" in live.message
    assert live.figures is None


GONE = {key: value for key, value in STATS.items() if key not in {*TIMES, "present"}}


def test_a_gauge_last_seen_too_long_ago_is_stale_and_so_is_one_beyond_the_lookback():
    stale = read(series("a", STATS | seen(121.0)))
    assert stale.reason == "MetricsStale"
    assert stale.message == "the newest sample of pod a is 121 s old (allowed: 120 s)"
    assert read(series("a", GONE)).reason == "MetricsStale"
    assert read(series("a", STATS | seen(119.0))).usable


def test_one_stale_pod_of_two_holds():
    both = series("a", STATS) + series("b", STATS | seen(500.0))
    assert read(both, pods=("a", "b")).reason == "MetricsStale"
    assert read(series("a", STATS) + series("b", GONE), pods=("a", "b")).reason == "MetricsStale"


def test_an_answer_that_a_cache_gives_again_is_stale_and_says_so():
    answer = [*series("a", STATS), InstantSample({"stat": "evaluated_s"}, NOW.timestamp())]
    assert read(answer, staleness_s=8).usable
    again = read(answer, staleness_s=8, now=NOW + timedelta(seconds=25))
    assert again.reason == "MetricsStale"
    assert "answer was made 25 s ago" in again.message
    assert "a cache" in again.message


def test_old_samples_in_a_new_answer_are_not_laid_at_a_cache_s_door():
    answer = [*series("a", STATS | seen(25.0)), InstantSample({"stat": "evaluated_s"}, NOW.timestamp())]
    stale = read(answer, staleness_s=8)
    assert stale.message == "the newest sample of pod a is 25 s old (allowed: 8 s)"


def test_clocks_that_differ_by_more_than_the_staleness_or_a_minute_ahead_leave_no_figures():
    ahead = [
        *series("a", STATS | seen(-61.0)),
        InstantSample({"stat": "evaluated_s"}, NOW.timestamp() + 65),
    ]
    found = read(ahead, staleness_s=86_400)
    assert found.reason == "MetricsStale"
    assert "61 s after the operator's clock" in found.message
    near = read(series("a", STATS | seen(-30.0)))
    assert near.usable
    assert near.figures is not None
    assert near.figures.age_s == 0


def test_a_ready_pod_without_series_leaves_the_load_unknown():
    live = read(series("a", STATS), pods=("a", "b"))
    assert live.reason == "MetricsPartial"
    assert "1 of 2" in live.message


def test_a_pod_of_another_service_does_not_count():
    live = read(series("a", STATS) + series("other", STATS))
    assert live.figures is not None
    assert live.figures.replicas == 1


def test_the_same_model_in_another_namespace_is_no_relabelling_fault():
    live = read(series("z", STATS, namespace="elsewhere"))
    assert live.reason == "MetricsEmpty"


def test_the_model_under_a_name_that_is_no_pod_is_one():
    assert read(series("exporter-3", STATS)).reason == "MetricsMislabelled"
    assert read(series("", STATS, namespace="")).reason == "MetricsMislabelled"


def test_the_wrong_model_name_says_which_was_found():
    live = read(series("a", STATS, model="org/chat"))
    assert live.reason == "MetricsMislabelled"
    assert "org/chat" in live.message


@pytest.mark.parametrize("name", sorted(set(STATS) - {*TIMES, "present"}))
@pytest.mark.parametrize("value", [1e13, 1e25, -1.0, -1e13])
def test_one_counter_or_gauge_that_jumps_leaves_no_figures(name, value):
    live = read(series("a", STATS | {name: value}), limits=EngineLimits(4.0, 256, 8192))
    if name.endswith("_growth") and value < 0:
        # A queue that shrinks is no news.
        assert live.usable
        return
    assert live.reason == "MetricsImpossible"
    assert live.message.startswith("pod a: ")
    assert live.figures is None


def test_one_impossible_pod_of_many_holds():
    live = read(series("a", STATS) + series("b", STATS | {"steps": 1e13}), pods=("a", "b"))
    assert live.reason == "MetricsImpossible"
    assert "pod b" in live.message


def test_tokens_per_step_are_a_hair_off_at_times_and_never_told_so():
    none, eagle = EngineLimits(1.0), EngineLimits(4.0)
    hair = read(series("a", STATS | {"steps": 59_400.0 * 1.0003}), limits=none)
    assert hair.figures is not None
    assert hair.figures.tokens_per_step == 1.0
    full = read(series("a", STATS | {"steps": 59_400.0 / 4.0012}), limits=eagle)
    assert full.figures is not None
    assert full.figures.tokens_per_step == 4.0
