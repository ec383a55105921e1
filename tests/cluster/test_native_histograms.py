"""Native histograms on a real Prometheus: it scrapes one simulated engine as classic, as native, and as both.

Native ones come from the text page by conversion, with the edges of the classic ones, and from a page in protobuf, exponential.
"""

from __future__ import annotations

import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest

from breakeven.cli import root
from breakeven.planning.objective import Histogram
from breakeven.serving.promql import EngineSeries
from breakeven_operator.case import SeriesOwner
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import NEEDED, fleet_query, past_query, roll_query, sums_query
from breakeven_operator.observing.latency_metrics import latency_query, read_latencies
from breakeven_operator.observing.live_metrics import read_fleet
from breakeven_operator.observing.past_metrics import read_past
from breakeven_operator.observing.roll_metrics import read_roll
from breakeven_sim.engine.configuration import DraftLengths, engine_config
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.costs import parse_costs
from breakeven_sim.engine.exposition import CacheInfo, EngineMetrics
from breakeven_sim.engine.requests import Request
from fakes.protobuf_page import CONTENT_TYPE, protobuf_page
from operatorcluster.made_up_prometheus import asked, past_asked, prometheus_scraping, series_of
from operatorcluster.page_server import PageServer

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/observing/fleet_query.py",)

COSTS = Path(__file__).parents[2] / "examples" / "engine-costs" / "demo.json"
WINDOW_S = 15
RPS = 8.0
SIBLINGS = "chat-7d9f8b6c5d-"
CLASSIC, NATIVE, BOTH = (f"{SIBLINGS}{letters}" for letters in ("ccccc", "nnnnn", "bbbbb"))
EXPONENTIAL = "expo-7d9f8b6c5d-eeeee"
# Where two scrapes of one engine begin and end is a second apart, of a window of fifteen.
NEAR = 0.15


class EnginePage:
    """An engine on the event clock that is as far as the wall's clock, with a request every eighth of a second."""

    def __init__(self):
        costs = parse_costs(COSTS.read_text(), "NVIDIA-H100-80GB-HBM3", str(COSTS))
        self._engine = Engine(engine_config(costs, None, DraftLengths(0), kv_pool_tokens=10**6))
        self._metrics = EngineMetrics(self._engine, "chat", CacheInfo(16, 10**6, 1.0, 0.9, 4096, None), 0.0)
        self._began, self._sent, self._lock = time.monotonic(), 0, threading.Lock()
        self._registry = CollectorRegistry()
        self._registry.register(self._metrics)

    def text(self):
        with self._lock:
            self._go_on()
            return generate_latest(self._registry)

    def protobuf(self):
        with self._lock:
            self._go_on()
            return protobuf_page(self._metrics.collect())

    def _go_on(self):
        until_s = time.monotonic() - self._began
        while self._sent / RPS < until_s:
            self._sent += 1
            self._engine.submit(Request(self._sent, self._sent / RPS, 100, 20 + self._sent % 50))
        while self._engine.outstanding and self._engine.clock_s < until_s:
            report = self._engine.step()
            self._metrics.record_step(report)
            for gain in report.progress:
                gain.request.last_token_s = report.end_s
            for request in report.finished:
                self._metrics.record_finished(request, "length", request.output_tokens)


@pytest.fixture(scope="module")
def target():
    page = EnginePage()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            pages = {
                "/metrics": (page.text, "text/plain; version=0.0.4"),
                "/protobuf": (page.protobuf, CONTENT_TYPE),
                # Of an engine that counts nothing (--disable-log-stats).
                "/bare": (lambda: b"python_info 1.0\n", "text/plain; version=0.0.4"),
            }
            made, content_type = pages[self.path]
            body = made()
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = PageServer(Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def job(pod, target, **more):
    labels = {"namespace": "llm", "pod": pod}
    return {"job_name": pod, "static_configs": [{"targets": [target], "labels": labels}], **more}


@pytest.fixture(scope="module")
def address(tmp_path_factory, target):
    converted = {"convert_classic_histograms_to_nhcb": True, "scrape_native_histograms": True}
    jobs = [
        job(CLASSIC, target),
        job(NATIVE, target, **converted),
        job(BOTH, target, always_scrape_classic_histograms=True, **converted),
        job("mute-7d9f8b6c5d-sssss", target, metrics_path="/bare"),
        job(
            EXPONENTIAL,
            target,
            metrics_path="/protobuf",
            scrape_protocols=["PrometheusProto"],
            scrape_native_histograms=True,
        ),
    ]
    with prometheus_scraping(tmp_path_factory.mktemp("prometheus"), jobs) as found:
        deadline = time.monotonic() + 300
        # Two whole windows: the newest step of the past ends a window ago at most. A busy machine loses a scrape.
        seen = f"count_over_time(vllm:num_requests_running[{2 * WINDOW_S + 3}s]) > {2 * WINDOW_S - 2}"
        while len(series_of(found, seen)) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield found


def test_prometheus_holds_what_the_names_say(address):
    classic, native = (
        {
            pod
            for pod in (CLASSIC, NATIVE, BOTH, EXPONENTIAL)
            for text in series_of(address, name)
            if pod in text
        }
        for name in ("vllm:time_to_first_token_seconds_count", "vllm:time_to_first_token_seconds")
    )
    assert (classic, native) == ({CLASSIC, BOTH}, {NATIVE, BOTH, EXPONENTIAL})


def test_pods_give_the_same_figures_however_their_histograms_are_stored(address):
    pods = read_fleet(asked(address, fleet_query(["llm"], EngineSeries(), WINDOW_S, 120))).pods
    stats = {pod.name: reading.stats for pod, readings in pods.items() for reading in readings.values()}
    assert (
        stats[CLASSIC].keys()
        == stats[NATIVE].keys()
        == stats[BOTH].keys()
        == stats[EXPONENTIAL].keys()
        >= set(NEEDED)
    )
    assert stats[CLASSIC]["started"] == pytest.approx(RPS * WINDOW_S, rel=NEAR)
    for stat in set(NEEDED) - {"running", "waiting"}:
        for pod in (NATIVE, BOTH, EXPONENTIAL):
            assert stats[pod][stat] == pytest.approx(stats[CLASSIC][stat], rel=NEAR, abs=0.01), stat


def test_a_page_without_vllm_series_is_told_from_no_page(address):
    found = read_fleet(asked(address, fleet_query(["llm"], EngineSeries(), WINDOW_S, 120)))
    assert found.silent == {NamespacedName("llm", "mute-7d9f8b6c5d-")}


def test_sums_past_and_blocks_count_them_once(address):
    sums = read_fleet(asked(address, sums_query(["llm"], EngineSeries(), WINDOW_S, 120))).pods[
        NamespacedName("llm", SIBLINGS)
    ]
    assert sums["chat"].stats["started"] == pytest.approx(3 * RPS * WINDOW_S, rel=NEAR)
    past = read_past(past_asked(address, past_query(["llm"], EngineSeries(), WINDOW_S, WINDOW_S))).rates
    assert past[SeriesOwner("llm", "Deployment chat", "chat")].rps[-1] == pytest.approx(RPS, rel=2 * NEAR)
    blocks = read_roll(past_asked(address, roll_query([("llm", "chat")], EngineSeries(), 6, 3)))
    for pod in (NATIVE, BOTH):
        for stat in ("ttft_s", "started", "step_s"):
            found, classic = (
                blocks.pods[SeriesOwner("llm", one, "chat")][stat][-1] for one in (pod, CLASSIC)
            )
            assert found == pytest.approx(classic, rel=NEAR), stat


def test_latencies_are_those_of_all_pods_and_their_edges_are_the_same(address):
    answer = asked(address, latency_query([NamespacedName("llm", "chat")], EngineSeries(), WINDOW_S))
    assert any(one.buckets for one in answer), "the native one answers with buckets of its own"
    counts = read_latencies(answer).counts[SeriesOwner("llm", SIBLINGS, "chat")]
    alone = read_latencies([one for one in answer if not one.buckets])
    classic = alone.counts[SeriesOwner("llm", SIBLINGS, "chat")]
    for figure in ("e2e", "ttft", "tpot"):
        assert counts[figure].keys() == classic[figure].keys()
        for edge_s, count in classic[figure].items():
            assert counts[figure][edge_s] == pytest.approx(1.5 * count, rel=NEAR, abs=10.0), (figure, edge_s)


def test_latencies_of_exponential_histograms_have_edges_of_their_own(address):
    answer = asked(
        address, latency_query([NamespacedName("llm", n) for n in ("chat", "expo")], EngineSeries(), WINDOW_S)
    )
    counts = read_latencies(answer).counts
    (classic, expo) = (counts[SeriesOwner("llm", one, "chat")]["e2e"] for one in (SIBLINGS, EXPONENTIAL[:-5]))
    assert expo[math.inf] == pytest.approx(classic[math.inf] / 3, rel=NEAR)
    # Values of the page lie at the classic upper edges, and buckets are a twelfth wide.
    for share in (0.5, 0.9):
        bands = [Histogram.of(one).quantile(share) for one in (classic, expo)]
        assert bands[1].value == pytest.approx(bands[0].upper, rel=0.6)


def test_doctor_reads_them(address):
    said = CliRunner().invoke(
        root,
        ["doctor", "--prometheus", address, "--model", "chat", "--window-seconds", "30", "--match", f"pod={NATIVE}", "--json"],
        catch_exceptions=False,
    )  # fmt: skip
    found = json.loads(said.stdout)
    assert "SeriesMissing" not in {one["cause"] for one in found["findings"]}
    assert found["rps"] > 0.0
