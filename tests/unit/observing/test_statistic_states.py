"""Statistic by statistic: what is said where one is absent, stale, not a number or impossible, over held series."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest

from breakeven.readers.prometheus import InstantSample
from breakeven.serving.growths import EngineLimits
from breakeven.serving.promql import COUNTED, RUNNING, WAITING, EngineSeries
from breakeven_operator.case import Live
from breakeven_operator.observing.fleet_query import NEEDED, fleet_query
from breakeven_operator.observing.live_metrics import WatchedPods, read_fleet, read_service
from breakeven_operator.resources.metricssource import MetricsSource
from breakeven_operator.workloads.workload import PodState
from fakes.engine_pages import Grown, Scrapes, State, SteadyPage
from fakes.held_series import NativeHistogram, SeriesStore
from fakes.promql_evaluation import evaluate

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
POD = "chat-7d9f8b6c5d-bbbbb"
RPS, E, TOKENS, LATENCY_S = 2.0, 2.5, 100.0, 1.2
RATES = {
    "completed": RPS, "started": RPS, "ttft_s": 0.2 * RPS, "e2e_s": LATENCY_S * RPS, "e2e_n": RPS, "generated": TOKENS * RPS,
    "steps": (TOKENS - 1) * RPS / E, "prompt_tokens": 250.0 * RPS, "output_tokens": TOKENS * RPS, "output_n": RPS, "drafts": 70.0,
}  # fmt: skip
GAUGES = {"running": RUNNING, "waiting": WAITING}
STATS = (*NEEDED, "drafts", "accepted")
WORDS = {
    State.ABSENT: "MetricsPartial",
    State.STALE: "MetricsStale",
    State.NAN: "MetricsNaN",
    State.IMPOSSIBLE: "MetricsImpossible",
}
# An engine that does not speculate has no drafts.
OTHERWISE = {("drafts", State.ABSENT): "MetricsAvailable", ("accepted", State.ABSENT): "MetricsAvailable"}


# Of the last one no sum is asked for.
FAMILIES = (
    "time_to_first_token_seconds",
    "e2e_request_latency_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "inter_token_latency_seconds",
)


def live(*states: tuple[str, State], histograms: Literal["classic", "native"] = "classic") -> Live:
    accepted = [Grown("accepted", 60.0 / (1 + place), (("position", str(place)),)) for place in range(3)]
    counters = (*(Grown(stat, per_s) for stat, per_s in RATES.items()), *accepted)
    scrapes = Scrapes(
        states=tuple((GAUGES.get(stat, stat), state) for stat, state in states), histograms=histograms
    )
    page = SteadyPage(counters, RPS * LATENCY_S, 0.0, 0.0, 300.0, scrapes=scrapes)
    store = SeriesStore()
    page.scraped(store, {"namespace": "llm", "pod": POD, "model_name": "chat"}, NOW.timestamp())
    found = evaluate(store, fleet_query(["llm"], EngineSeries(), 300, 120), NOW.timestamp())
    pod = PodState(POD, POD, True, NOW - timedelta(hours=1), 20.0, False, "node", "", None)
    return read_service(
        read_fleet(InstantSample(dict(one.labels), one.value) for one in found),
        WatchedPods(
            "llm", "chat", [pod], MetricsSource(), EngineLimits(tokens_per_step=4.0), NOW, frozenset({POD})
        ),
    )


@pytest.mark.parametrize("histograms", ["classic", "native"])
def test_where_all_are_present_the_figures_are_those_of_the_page(histograms):
    found = live(histograms=histograms)
    assert found.reason == "MetricsAvailable"
    assert found.figures is not None
    assert found.figures.rps == pytest.approx(RPS)
    assert found.figures.latency_s == pytest.approx(LATENCY_S)
    assert found.figures.tokens_per_step == pytest.approx(E)
    assert found.figures.survival == pytest.approx((60 / 70, 30 / 70, 20 / 70))


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("stat", STATS)
def test_each_statistic_in_each_state_has_its_word(stat, state):
    found = live((stat, state))
    expected = OTHERWISE.get((stat, state), WORDS[state])
    assert found.reason == expected, found.message
    if expected == "MetricsAvailable":
        assert found.figures is not None
        assert found.figures.survival == (), "not zero"
        return
    assert found.figures is None
    assert POD in found.message
    if state in {State.ABSENT, State.STALE} and stat != "running":
        name = GAUGES[stat] if stat in GAUGES else COUNTED[stat].name
        assert f"vllm:{name}" in found.message


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_native_histogram_in_each_state_has_the_same_word(family, state):
    found = live((family, state), histograms="native")
    unread = state is State.NAN and family == FAMILIES[-1]
    assert found.reason == ("MetricsAvailable" if unread else WORDS[state]), found.message
    if state in {State.ABSENT, State.STALE}:
        assert f"vllm:{family}" in found.message


@pytest.mark.parametrize("native", [False, True])
def test_a_counter_that_began_again_counts_what_it_counted_before(native):
    """A process that was restarted 100 s ago had counted 200 requests of this window."""
    store, family = SeriesStore(), FAMILIES[0]
    labels = {"namespace": "llm", "pod": POD, "model_name": "chat", "engine": "0"}
    for age_s in range(600, -1, -15):
        count = 5000.0 + (600 - age_s) if age_s > 100 else 100.0 - age_s
        at_s = NOW.timestamp() - age_s
        if native:
            store.add(f"vllm:{family}", labels, at_s, NativeHistogram(count, count, 0, 0, (count,)))
        else:
            store.add(f"vllm:{family}_count", labels, at_s, count)
    found = evaluate(store, fleet_query(["llm"], EngineSeries(), 300, 120), NOW.timestamp())
    (started,) = [one.value for one in found if one.labels["stat"] == "started"]
    assert started == pytest.approx(295.0, rel=0.05)
