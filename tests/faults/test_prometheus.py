"""A Prometheus that is down, slow, empty, stuck or lying: the operator holds with a word, writes nothing, and recovers."""

from __future__ import annotations

import shutil

import pytest

from faults.client import Ledger, streaming
from faults.conftest import RPS
from operatorcluster import manifests
from operatorcluster.stage import decision

DISTRUST = ("Metrics", "Scrape")


def trusts(place):
    return place.until_service(
        "it decides by figures",
        lambda status: decision(status).get("reason") and not distrusts(status),
    )


def distrusts(status):
    return str(decision(status).get("reason", "")).startswith(DISTRUST)


@pytest.fixture(scope="module")
def watched(stage):
    with stage.place("prometheus") as place:
        place.managed()
        with streaming(place, RPS, manifests.TARGET, Ledger()):
            # By live figures: at this load speculation pays.
            place.until_settled("eagle/3")
        yield place


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("down", ["MetricsMissing"]),
        # Its last answer grows old first.
        pytest.param("slow", ["MetricsStale", "MetricsMissing"], marks=pytest.mark.table),
        pytest.param("dripping", ["MetricsStale", "MetricsMissing"], marks=pytest.mark.table),
        pytest.param("empty", ["MetricsEmpty"], marks=pytest.mark.table),
        pytest.param("nan", ["MetricsNaN"], marks=pytest.mark.table),
        pytest.param("stuck", ["MetricsStale"], marks=pytest.mark.table),
    ],
)
def test_it_holds_with_a_word_and_recovers(watched, prometheus, facing, mode, words):
    with facing(watched, f"Prometheus {mode}", f"Hold, {' or '.join(words)}; no write") as row:
        trusts(watched)
        with prometheus.being(mode):
            found = decision(watched.until_service("it holds", distrusts)["status"])
            assert found["action"] == "Hold"
            assert found["reason"] in words, found
        row.over()
        trusts(watched)
        row.recovered()
        row.seen = f"{found['action']}, {found['reason']}"


@pytest.mark.table
def test_restarted_without_its_history(watched, stage, facing):
    with facing(
        watched, "Prometheus restarted, its data lost", "Hold until a window is full; no write"
    ) as row:
        trusts(watched)
        stage.cluster.stop_process("prometheus")
        shutil.rmtree(stage.cluster.state_dir / "prometheus" / "data")
        watched.until_service("it holds", distrusts)
        stage.cluster.restart_process("prometheus")
        row.over()
        trusts(watched)
        row.recovered()
        row.seen = "held, then decided by new figures"
