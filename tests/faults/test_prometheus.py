"""A Prometheus that is down, slow, empty, stuck or lying: the operator holds with a word, writes nothing, and recovers."""

from __future__ import annotations

import shutil
import statistics

import pytest
import yaml

from faults.client import Ledger, streaming
from faults.conftest import RPS
from operatorcluster import manifests
from operatorcluster.stage import decision
from operatorcluster.waiting import until

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


@pytest.mark.always
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
            # Not the first word of distrust: a busy machine scrapes late, and says so for a moment.
            held = watched.until_service(
                f"it holds for {words}", lambda status: decision(status).get("reason") in words
            )
            found = decision(held["status"])
            assert found["action"] == "Hold"
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


@pytest.mark.table
def test_every_pod_scraped_by_a_second_job(watched, stage, facing):
    """A ServiceMonitor beside a PodMonitor does so: sums over series would see twice the load, beyond the break-even."""
    file = stage.cluster.state_dir / "prometheus" / "prometheus.yaml"
    before = file.read_text()
    configuration = yaml.safe_load(before)
    pods = configuration["scrape_configs"][0]
    # By its job alone a series of the second one differs.
    relabelled = [*pods["relabel_configs"], {"target_label": "job", "replacement": "again"}]
    configuration["scrape_configs"].append({**pods, "job_name": "again", "relabel_configs": relabelled})
    running = f'vllm:num_requests_running{{namespace="{watched.name}"}}'
    with facing(watched, "Prometheus scrapes each pod twice", "the load counts once; no write") as row:
        trusts(watched)
        file.write_text(yaml.safe_dump(configuration))
        stage.cluster.restart_process("prometheus")
        try:
            until("each pod has two series", lambda: len(stage.query(running)) == 2)
            until("a window has passed", lambda: len(stage.query(f"min_over_time({running}[8s])")) == 2)
            answered = row.users.answered
            loads = []
            while row.users.answered < answered + 60:
                found = decision(watched.until_service("it decides", trusted)["status"])
                loads.append(float(found["loadRps"]))
            # The first windows reach back to before the restart.
            mean_rps = statistics.fmean(loads[len(loads) // 2 :])
            # Of a doubled load it would be twice the users' rate.
            assert mean_rps < 1.5 * RPS, loads
        finally:
            file.write_text(before)
            stage.cluster.restart_process("prometheus")
        row.over()
        trusts(watched)
        row.recovered()
        row.seen = f"{mean_rps:.1f} rps in the mean; users send {RPS:.0f}"


def trusted(status):
    return decision(status).get("loadRps") and not distrusts(status)
