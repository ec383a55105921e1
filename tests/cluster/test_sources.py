"""The operator's questions to VictoriaMetrics and Thanos: the figures are Prometheus' own, and a store that is down is no low load."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from breakeven.serving.growths import EngineLimits
from breakeven.serving.promql import EngineSeries
from breakeven_operator.case import FleetReading, Live
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.observing.fleet_query import arrivals_query, fleet_query, past_query, roll_query
from breakeven_operator.observing.live_metrics import WatchedPods, read_fleet, read_service
from breakeven_operator.observing.roll_metrics import read_roll
from breakeven_operator.ports import MetricsError
from breakeven_operator.resources.metricssource import MetricsSource
from breakeven_operator.workloads.workload import PodState
from operatorcluster.made_up_prometheus import asked, past_asked, series_of
from operatorcluster.sources import (
    REPLICA_LABEL,
    SOURCES,
    VICTORIA_METRICS,
    needs_thanos,
    needs_victoria_metrics,
    source_of,
    store_of,
    thanos_over,
    victoria_metrics_of,
)
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/cluster/",)

SECONDS, SCRAPE_S, WINDOW_S, OFFSET_S = 1200, 15, 300, 30
FIRST, SECOND = PODS = ("chat-7d9f8b6c5d-bbbbb", "chat-7d9f8b6c5d-ccccc")
RPS = 2.0


def requests_of(age_s: float) -> float:
    """Requests of an engine since the beginning; their rate doubles over the whole time."""
    return RPS * (age_s + age_s**2 / (2 * SECONDS))


def samples(pods: Sequence[str], end_s: float, later_s: int = 0) -> str:
    """Engines whose load grows, until a moment, as text.

    Args:
        pods: their names.
        end_s: Unix time of the newest samples.
        later_s: how long after the beginning the first scrape is.
    """
    per_request = {
        "request_success_total": (1.0, 'finished_reason="stop"'),
        "time_to_first_token_seconds_count": (1.0, ""),
        "time_to_first_token_seconds_sum": (0.1, ""),
        "e2e_request_latency_seconds_count": (1.0, ""),
        "e2e_request_latency_seconds_sum": (1.5, ""),
        "generation_tokens_total": (100.0, ""),
        "inter_token_latency_seconds_count": (99.0, ""),
        "inter_token_latency_seconds_sum": (1.4, ""),
        "request_prompt_tokens_count": (1.0, ""),
        "request_prompt_tokens_sum": (50.0, ""),
        "request_generation_tokens_count": (1.0, ""),
        "request_generation_tokens_sum": (100.0, ""),
    }
    lines = []
    ages_s = range(later_s, SECONDS + 1, SCRAPE_S)
    gauges: Mapping[str, tuple[float, str]] = {
        "num_requests_running": (3.0, ""),
        "num_requests_waiting": (0.0, ""),
    }
    for name, (each, more) in {**per_request, **gauges}.items():
        for pod in pods:
            own = f'namespace="llm",pod="{pod}",model_name="chat",engine="0"{"," if more else ""}{more}'
            for age_s in ages_s:
                value = each if name in gauges else each * requests_of(age_s)
                lines.append(f"vllm:{name}{{{own}}} {value:.10g} {end_s - SECONDS + age_s:.0f}")
    return "\n".join([*lines, "# EOF", ""])


def live(fleet: FleetReading) -> Live:
    """Figures that the operator takes from an answer, or the word with which it holds."""
    now = datetime.now(UTC)
    since = now - timedelta(seconds=SECONDS)
    serving = [PodState(name, name, True, since, 20.0, False, "node", "", since) for name in PODS]
    return read_service(fleet, WatchedPods("llm", "chat", serving, MetricsSource(), EngineLimits(), now))


def looked(address: str) -> Live:
    """The same by asking a server now; an error is an answer."""
    try:
        return live(read_fleet(asked(address, fleet_query(["llm"], EngineSeries(), WINDOW_S, 120))))
    except MetricsError as error:
        return live(FleetReading({}, frozenset(), str(error)))


@pytest.fixture(scope="module", params=SOURCES)
def source(request, tmp_path_factory):
    end_s = time.time()
    with source_of(request.param, tmp_path_factory.mktemp("source"), samples(PODS, end_s)) as address:
        yield request.param, address, end_s


def test_the_live_window_is_the_same_but_half_a_minute_older_at_victoria_metrics(source):
    kind, address, end_s = source
    found = looked(address)
    assert found.reason is ClusterReason.METRICS_AVAILABLE, found.message
    assert found.figures is not None
    offset_s = OFFSET_S if kind == VICTORIA_METRICS else 0
    age_s = min(time.time() - offset_s - end_s, 0.0) + SECONDS
    grown = requests_of(age_s) - requests_of(age_s - WINDOW_S)
    assert found.figures.requests == pytest.approx(2 * grown, rel=0.02)
    assert found.figures.latency_s == pytest.approx(1.5, rel=0.01)
    assert found.figures.age_s == pytest.approx(time.time() - end_s + offset_s, abs=SCRAPE_S + 2)


def test_blocks_of_a_roll_and_arrivals_have_the_same_times_and_counters(source):
    kind, address, end_s = source
    blocks = read_roll(past_asked(address, roll_query([("llm", "chat")], EngineSeries(), 900, 60)))
    assert [time_s % 60 for time_s in blocks.times_s] == [0.0] * len(blocks.times_s)
    assert len(blocks.times_s) >= 14
    arrivals = read_roll(past_asked(address, arrivals_query([("llm", "chat")], EngineSeries(), WINDOW_S)))
    assert {time_s % 15 for time_s in arrivals.times_s} == {0.0}
    for reading, stat in ((blocks, "started"), (arrivals, "asked")):
        for stats in reading.pods.values():
            for time_s, count in zip(reading.times_s, stats[stat], strict=True):
                age_s = SECONDS - (end_s - time_s)
                if math.isfinite(count) and age_s <= SECONDS:
                    # The newest sample is at most one scrape old.
                    assert requests_of(age_s - SCRAPE_S - 1) <= count <= requests_of(age_s + 1), (
                        kind,
                        time_s,
                    )


@contextlib.contextmanager
def two_stores(folder, texts: Sequence[str]) -> Iterator[list[str]]:
    """Stores of two Prometheus servers that are replicas of each other by their labels."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(store_of(folder / letter, text, {REPLICA_LABEL: letter}))
            for letter, text in zip("ab", texts, strict=True)
        ]


@needs_thanos
@pytest.mark.parametrize(
    ("killed", "reason", "said"),
    [
        ("sidecar", ClusterReason.METRICS_PARTIAL, f"Ready pod {SECOND} has no vLLM series"),
        ("prometheus", ClusterReason.METRICS_MISSING, "refused the query"),
    ],
    ids=["forgotten", "broken"],
)
def test_a_store_of_thanos_that_is_down_holds_with_a_word(killed, reason, said, tmp_path):
    """One store per pod: without the second one half of the load is not seen. Thanos forgets about a store whose gRPC is gone."""
    end_s = time.time()
    texts = [samples([pod], end_s) for pod in PODS]
    with two_stores(tmp_path, texts) as stores, thanos_over(tmp_path / "q", stores) as address:
        until("both stores are seen", lambda: looked(address).usable)
        os.kill(int((tmp_path / "b" / killed / "pid").read_text()), signal.SIGKILL)
        seen: list[Live] = []

        def settled() -> bool:
            seen.append(looked(address))
            return seen[-1].reason is reason

        until("the answer lacks a store", settled, seen=lambda: seen)
        if reason is ClusterReason.METRICS_MISSING:
            # A lower load in the past would be none that anybody notices.
            with pytest.raises(MetricsError, match="refused the query"):
                past_asked(address, past_query(["llm"], EngineSeries(), 600, 300))
    assert said in seen[-1].message
    assert {one.reason for one in seen} <= {ClusterReason.METRICS_MISSING, ClusterReason.METRICS_PARTIAL}


@needs_thanos
@pytest.mark.parametrize("deduplicates", [True, False], ids=["deduplicated", "twice"])
def test_replicas_count_once_whether_thanos_deduplicates_or_not(deduplicates, tmp_path):
    end_s = time.time()
    texts = [samples(PODS, end_s, later_s) for later_s in (0, 7)]
    with (
        two_stores(tmp_path, texts) as stores,
        thanos_over(tmp_path / "q", stores, deduplicates=deduplicates) as address,
    ):
        copies = 1 if deduplicates else 2
        running = f'vllm:num_requests_running{{pod="{FIRST}"}}'
        until("both stores are seen", lambda: len(series_of(address, running)) == copies)
        found = looked(address)
    assert found.usable, found.message
    assert found.figures is not None
    grown = requests_of(SECONDS) - requests_of(SECONDS - WINDOW_S)
    assert found.figures.requests == pytest.approx(2 * grown, rel=0.03)
    assert found.figures.inflight == pytest.approx(3.0, rel=0.01)


@needs_victoria_metrics
def test_a_question_that_is_too_long_for_victoria_metrics_names_its_flag(tmp_path):
    with victoria_metrics_of(tmp_path, samples(PODS, time.time())) as address:
        query = fleet_query(
            [f"a-team-with-a-name-{number}" for number in range(40)], EngineSeries(), WINDOW_S, 120
        )
        with pytest.raises(MetricsError, match=r"flag -search\.maxQueryLen is below the question's length"):
            asked(address, query)
