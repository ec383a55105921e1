"""Without figures to be trusted the operator holds, whatever it knew before, and says which of the reasons it is.

The target's own page is not scraped; a page under the test's control is, under the pod's labels or wrong ones, by the
real Prometheus. It tells of a load at which speculation pays, so that only the trouble keeps the operator from rolling.
"""

import time

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.laws.latency import open_loop_latency
from fakes.notes import memory_of
from operatorcluster import manifests
from operatorcluster.posing import PosedTraffic
from operatorcluster.replaying import Replaying
from operatorcluster.target_engine import EAGLE, law, tokens_per_step

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/cluster/",)

RPS = 2.0
# Of `metricsSource.windowSeconds` in the manifests.
WINDOW_S = 6


class Watched:
    """A target that a roll would do good, and what Prometheus gets to see of it."""

    def __init__(self, place, **changes):
        self.place = place
        place.apply(
            manifests.profile(place.stage.fingerprint),
            manifests.target(scraped=False),
            manifests.service(**changes),
        )
        place.until_service("it serves", lambda status: status.get("target", {}).get("readyReplicas") == 1)
        self.look()

    def look(self):
        (pod,) = [pod for pod in self.place.all("pod") if "deletionTimestamp" not in pod["metadata"]]
        self.pod = pod["metadata"]["name"]

    def told_by(self, page, **labels):
        self.place.stage.posers.pose(
            self.place.name, page, **{"namespace": self.place.name, "pod": self.pod, **labels}
        )

    def holds(self, reason, said=""):
        made = self.place.until_decided(reason, said=said)
        assert made["arm"] == "none"
        assert self.place.writes() == []

    def remembers(self):
        """Live acceptance that the status keeps, E by arm."""
        seen = memory_of(self.place.get("specsvc", "chat")["status"]).get("seen", ())
        return {item["arm"]: float(item["tokensPerStep"]) for item in seen}


@pytest.fixture
def watched(place):
    return Watched(place)


def steady(arm, rps=RPS):
    latency_s = float(open_loop_latency(*law(arm), rps))
    return PosedTraffic(rps, latency_s, time.monotonic(), tokens_per_step=tokens_per_step(arm))


@pytest.fixture
def traffic():
    return steady(NO_SPECULATION)


@pytest.mark.always
def test_with_figures_it_rolls(watched, traffic):
    watched.told_by(traffic.page)
    watched.place.until_settled("eagle/3")
    assert len(watched.place.writes()) == 1


@pytest.mark.always
def test_no_series_of_the_pods(watched):
    watched.holds("MetricsEmpty", "PodMonitor")


@pytest.mark.parametrize("series", ["num_requests_running", "e2e_request_latency_seconds_sum"])
def test_a_figure_that_is_not_a_number(watched, traffic, series):
    watched.told_by(lambda: traffic.page(**{series: "NaN"}))
    watched.holds("MetricsNaN", "is not a number")


@pytest.mark.always
def test_scrapes_that_fail(watched, traffic):
    # One scrape tells no rate, so that nothing can be decided before they fail.
    pages = iter([traffic.page()])
    watched.told_by(lambda: next(pages, None))
    watched.holds("MetricsStale", "allowed: 5 s")


def test_series_under_another_model_s_name(watched, traffic):
    watched.told_by(PosedTraffic(traffic.rps, traffic.latency_s, traffic.began, model="someone-else").page)
    watched.holds("MetricsMislabelled", "metricsSource.servedModelName")


@pytest.mark.parametrize(
    "labels", [{"pod": "no-such-pod"}, {"pod": "", "namespace": ""}], ids=["pod", "none"]
)
def test_series_under_labels_that_are_no_pod_s(watched, traffic, labels):
    watched.told_by(traffic.page, **labels)
    watched.holds("MetricsMislabelled", "relabelling")


@pytest.mark.parametrize(
    ("counters", "contradicted"),
    [
        (("inter_token_latency_seconds_count",), "tokens per step"),
        (("request_success_total",), "requests finished in the same time"),
        (
            (
                "request_success_total",
                "e2e_request_latency_seconds_count",
                "e2e_request_latency_seconds_sum",
                "request_generation_tokens_count",
            ),
            "were seen",
        ),
    ],
    ids=["steps", "completed", "served"],
)
@pytest.mark.parametrize("rate", [1e13, 1e25])
def test_counters_that_no_engine_can_have(watched, traffic, counters, contradicted, rate):
    # They grow by so much every second; that the status says so at all means that it could be written.
    def page():
        grown = rate * (time.monotonic() - traffic.began + 1)
        return traffic.page(**dict.fromkeys(counters, f"{grown}"))

    watched.told_by(page)
    watched.holds("MetricsImpossible", contradicted)


def test_one_impossible_answer_is_neither_acted_upon_nor_remembered(watched, traffic):
    watched.told_by(traffic.page)
    watched.place.until_settled("eagle/3")
    watched.look()
    fast = steady(EAGLE)
    watched.told_by(fast.page)
    watched.place.until_decided("BelowBreakEven", "Stay")
    known = watched.remembers()
    assert list(known) == ["eagle/3"]

    def impossible():
        return fast.page(inter_token_latency_seconds_count=f"{1e13 * (time.monotonic() - fast.began + 1)}")

    watched.told_by(impossible)
    made = watched.place.until_decided(
        "MetricsImpossible", said="tokens per step, where the arm that runs makes 1 to 4"
    )
    assert made["arm"] == "eagle/3"
    between = watched.remembers()["eagle/3"]
    watched.told_by(fast.page)
    watched.place.until_decided("BelowBreakEven", "Stay")
    # A possible figure is averaged into it, slowly; the impossible one would have moved it to the limit of 4 tokens or to 1.
    after = watched.remembers()["eagle/3"]
    assert between == pytest.approx(known["eagle/3"], rel=0.1)
    assert after == pytest.approx(known["eagle/3"], rel=0.1)
    assert len(watched.place.writes()) == 1


def test_acceptance_that_falls_is_noticed_and_one_window_of_it_rolls_nothing(watched, traffic):
    """Over the quarter of an hour in which it is averaged the decision follows (tests/fleet/test_fleet_metrics.py)."""
    watched.told_by(traffic.page)
    watched.place.until_settled("eagle/3")
    watched.look()
    accepting = steady(EAGLE)
    watched.told_by(accepting.page)
    watched.place.until_decided("BelowBreakEven", "Stay")
    rejecting = PosedTraffic(RPS, accepting.latency_s, accepting.began, tokens_per_step=1.0)
    watched.told_by(rejecting.page)

    def live(status):
        return float((status.get("decision") or {}).get("tokensPerStep") or 9.0)

    found = watched.place.until_service("the fall is shown", lambda status: live(status) < 1.1)
    assert found["status"]["current"]["arm"] == "eagle/3"
    (seen,) = memory_of(found["status"])["seen"]
    assert seen["arm"] == "eagle/3"
    assert 1.1 < float(seen["tokensPerStep"]) < tokens_per_step(EAGLE)
    assert found["status"]["decision"]["reason"] == "BelowBreakEven"


def test_an_answer_that_a_cache_repeats(place):
    # In mode Recommend, so that nothing happens before the cache is stuck.
    with Replaying(place.stage.cluster.prometheus_url) as cache:
        watched = Watched(
            place,
            metricsSource={"prometheus": {"address": cache.url}},
            updatePolicy={"mode": "Recommend"},
        )
        watched.told_by(steady(NO_SPECULATION).page)
        place.until_service(
            "its figures are used",
            lambda status: any(
                item["type"] == "MetricsAvailable" and item["status"] == "True"
                for item in status.get("conditions", ())
            ),
        )
        cache.stuck.set()
        # A busy machine scrapes late now and then: stale for that reason is not what is waited for.
        watched.holds("MetricsStale", "a cache in front of it repeats an old one")
        assert cache.repeated > 0
        place.patch("specsvc", "chat", {"spec": {"updatePolicy": {"mode": "RollingUpdate"}}})
        watched.told_by(steady(NO_SPECULATION).page)
        cache.stuck.clear()
        place.until_settled("eagle/3")


def test_a_prometheus_that_does_not_answer(watched, traffic):
    # Of a model that is not the target's, so that nothing happens before Prometheus ends.
    watched.told_by(PosedTraffic(traffic.rps, traffic.latency_s, traffic.began, model="someone-else").page)
    watched.holds("MetricsMislabelled")
    cluster = watched.place.stage.cluster
    cluster.stop_process("prometheus")
    try:
        watched.told_by(traffic.page)
        watched.holds("MetricsMissing", "Prometheus gives no answer")
    finally:
        cluster.restart_process("prometheus")
    # And back: the same target is rolled as soon as its figures can be read.
    watched.place.until_settled("eagle/3")
