"""A Prometheus that sends a byte per second, beside the real one: it holds nobody up but the service it watches."""

import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.laws.latency import open_loop_latency
from operatorcluster import manifests
from operatorcluster.posing import PosedTraffic
from operatorcluster.stage import HOME, Place, condition, decision
from operatorcluster.target_engine import law
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/cluster/",)

RPS = 2.0
# Longer than liveness has patience with a loop that does not come round, so that a query without a deadline shows.
BYTES = 400


class Dripping:
    """A server whose answers take minutes.

    Attributes:
        url: of it.
        queries: that came in.
        whole: answers that somebody waited for to their end.
    """

    def __init__(self):
        self.queries = self.whole = 0
        self._end = threading.Event()
        outer = self

        class Drip(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def do_GET(self):
                outer.queries += 1
                self.send_response(200)
                self.send_header("Content-Length", str(BYTES))
                self.end_headers()
                try:
                    for _ in range(BYTES):
                        self.wfile.write(b" ")
                        if outer._end.wait(1.0):
                            return
                except OSError:
                    return
                outer.whole += 1

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Drip)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._server.shutdown()
        # Joins the threads of its connections too.
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def dripping():
    with Dripping() as server:
        yield server


def until_ready(stage):
    """The operator's process and how often it was started again, once it is ready."""

    def look():
        (pod,) = Place(stage, HOME).all("pod")
        (container,) = pod["status"]["containerStatuses"]
        return (stage.operator_pid(), container["restartCount"]) if container["ready"] else None

    return until("the operator is ready", look)


def decisions(place):
    """How often the operator has decided about the services here."""
    found = place.stage.query(f'sum(breakeven_decisions_total{{specsvc_namespace="{place.name}"}})')
    return float(found[0]["value"][1]) if found else 0.0


def test_it_costs_its_own_service_only(stage, place, dripping):
    before = until_ready(stage)
    with stage.place("late") as late:
        late.apply(
            manifests.profile(stage.fingerprint),
            manifests.target(),
            manifests.service(metricsSource={"prometheus": {"address": dripping.url}}),
        )
        # Which of the two depends on what the service was busy with while its first query lasted.
        late.until_service(
            "it says how long it waited",
            lambda status: (
                decision(status).get("reason") == "MetricsMissing"
                and re.search(
                    r"127\.0\.0\.1:\d+ (has not answered within 2|gave no whole answer within 10) s",
                    decision(status)["message"],
                )
            ),
        )
        assert condition(late.get("specsvc", "chat"), "Ready")["status"] == "True"

        # From beginning to end meanwhile: another service's target is seen, measured, decided about and rolled.
        place.apply(
            manifests.profile(stage.fingerprint), manifests.target(scraped=False), manifests.service()
        )
        place.until_service("it serves", lambda status: status.get("target", {}).get("readyReplicas") == 1)
        (pod,) = place.all("pod")
        latency_s = float(open_loop_latency(*law(NO_SPECULATION), RPS))
        labels = {"namespace": place.name, "pod": pod["metadata"]["name"]}
        stage.posers.pose(place.name, PosedTraffic(RPS, latency_s, time.monotonic()).page, **labels)
        place.until_settled("eagle/3")

        # And in every cycle: several of one second each while one query of the slow server lasts.
        asked, decided = dripping.queries, decisions(place)
        # Each time it is asked for counters and for arrivals.
        until("the slow server is given up and asked anew, twice", lambda: dripping.queries >= asked + 4)
        assert decisions(place) >= decided + 5
        assert late.until_decided("MetricsMissing")
    assert dripping.whole == 0
    assert until_ready(stage) == before
