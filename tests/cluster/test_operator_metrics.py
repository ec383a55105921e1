"""Without figures to be trusted the operator holds, whatever it knew before, and says which of the reasons it is.

The target's own page is not scraped; a page under the test's control is, under the pod's labels or wrong ones, by the
real Prometheus. It tells of a load at which speculation pays, so that only the trouble keeps the operator from rolling.
"""

import time

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.latency import open_loop_latency
from operatorcluster import manifests
from operatorcluster.engine import law
from operatorcluster.posing import Traffic

RPS = 2.0


class Watched:
    """A target that a roll would do good, and what Prometheus gets to see of it."""

    def __init__(self, place):
        self.place = place
        place.apply(
            manifests.profile(place.stage.fingerprint), manifests.target(scraped=False), manifests.service()
        )
        place.until_service("it serves", lambda status: status.get("target", {}).get("readyReplicas") == 1)
        (pod,) = place.all("pod")
        self.pod = pod["metadata"]["name"]

    def told_by(self, page, **labels):
        self.place.stage.posers.pose(
            self.place.name, page, **{"namespace": self.place.name, "pod": self.pod, **labels}
        )

    def holds(self, reason):
        made = self.place.until_decided(reason)
        assert made["arm"] == "none"
        assert self.place.writes() == []
        return made["message"]


@pytest.fixture
def watched(place):
    return Watched(place)


@pytest.fixture
def traffic():
    latency_s = float(open_loop_latency(*law(NO_SPECULATION), RPS))
    return Traffic(RPS, latency_s, time.monotonic())


def test_with_figures_it_rolls(watched, traffic):
    watched.told_by(traffic.page)
    watched.place.until_settled("eagle/3")
    assert len(watched.place.writes()) == 1


def test_no_series_of_the_pods(watched):
    assert "PodMonitor" in watched.holds("MetricsEmpty")


@pytest.mark.parametrize("series", ["num_requests_running", "e2e_request_latency_seconds_sum"])
def test_a_figure_that_is_not_a_number(watched, traffic, series):
    watched.told_by(lambda: traffic.page(**{series: "NaN"}))
    assert "is not a number" in watched.holds("MetricsNaN")


def test_scrapes_that_fail(watched, traffic):
    # One scrape tells no rate, so that nothing can be decided before they fail.
    pages = iter([traffic.page()])
    watched.told_by(lambda: next(pages, None))
    assert "allowed: 5 s" in watched.holds("MetricsStale")


def test_series_under_another_model_s_name(watched, traffic):
    watched.told_by(Traffic(traffic.rps, traffic.latency_s, traffic.began, model="someone-else").page)
    assert "metricsSource.servedModelName" in watched.holds("MetricsMislabelled")


@pytest.mark.parametrize(
    "labels", [{"pod": "no-such-pod"}, {"pod": "", "namespace": ""}], ids=["pod", "none"]
)
def test_series_under_labels_that_are_no_pod_s(watched, traffic, labels):
    watched.told_by(traffic.page, **labels)
    assert "relabelling" in watched.holds("MetricsMislabelled")


def test_a_prometheus_that_does_not_answer(watched, traffic):
    # Of a model that is not the target's, so that nothing happens before Prometheus ends.
    watched.told_by(Traffic(traffic.rps, traffic.latency_s, traffic.began, model="someone-else").page)
    watched.holds("MetricsMislabelled")
    cluster = watched.place.stage.cluster
    cluster.stop_process("prometheus")
    try:
        watched.told_by(traffic.page)
        assert "Prometheus gives no answer" in watched.holds("MetricsMissing")
    finally:
        cluster.restart_process("prometheus")
    # And back: the same target is rolled as soon as its figures can be read.
    watched.place.until_settled("eagle/3")
