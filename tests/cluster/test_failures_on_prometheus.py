"""Requests that fail, as the real Prometheus counts them: two ReplicaSets of one Deployment, scraped by two jobs."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import pytest

from breakeven.planning.roll_experiment import Witness
from breakeven.serving.engine_series import EngineSeries
from breakeven_operator.reconcile.roll_failures import (
    ArmRequests,
    FailureFinding,
    failures_query,
    find_failures,
    find_later,
    later_query,
    read_later,
)
from breakeven_operator.reconcile.roll_metrics import RolledPods, read_roll
from operatorcluster.made_up_prometheus import asked, past_asked, prometheus_of

SCRAPE_S, BLOCK_S, SPAN_S = 15, 60, 1800
OLD, NEW = "chat-7d9f8b6c5d", "chat-64bd5fcf9"
RPS = 4.0


class Scrapes:
    """Samples in the form that promtool makes blocks of; each pod is scraped by two jobs, a few seconds apart."""

    def __init__(self) -> None:
        self.end = int(time.time()) // BLOCK_S * BLOCK_S
        self.http: list[str] = []
        self.finished: list[str] = []

    def pod(
        self, name: str, first_s: int, last_s: int, *, refused: float = 0.0, streamed: float = 0.0
    ) -> None:
        """A pod between two times before the end, that refuses a share of its requests with 400 and one in the stream."""
        for job in ("podmonitor", "servicemonitor"):
            labels = f'namespace="llm",pod="{name}",job="{job}"'
            for at in range(self.end - first_s, self.end - last_s + 1, SCRAPE_S):
                came = RPS * (at - (self.end - first_s))
                posts = {"2xx": came * (1.0 - refused), "4xx": came * refused}
                for status, count in posts.items():
                    shown = f'{labels},handler="/v1/chat/completions",method="POST",status="{status}"'
                    self.http.append(f"http_requests_total{{{shown}}} {count} {at}")
                probes = f'{labels},handler="/tokenize",method="POST",status="2xx"'
                self.http.append(f"http_requests_total{{{probes}}} {100 * came} {at}")
                for reason, share in (("stop", 0.7), ("length", 0.3), ("error", 0.0)):
                    count = came * (1.0 - refused - streamed) * share
                    shown = f'{labels},model_name="chat",engine="0",finished_reason="{reason}"'
                    self.finished.append(f"vllm:request_success_total{{{shown}}} {count} {at}")

    def text(self) -> str:
        parts = [("http_requests", self.http), ("vllm:request_success", self.finished)]
        return (
            "".join(f"# TYPE {name} counter\n" + "\n".join(lines) + "\n" for name, lines in parts) + "# EOF\n"
        )


def found_of(address: str, end: int) -> FailureFinding | str:
    promql = failures_query([("llm", "chat")], EngineSeries(), SPAN_S, BLOCK_S)
    reading = read_roll(past_asked(address, re.sub(r"(\[\d+s:\d+s\])$", rf"\1 @ {end}", promql)))
    return find_failures(reading, RolledPods("llm", "chat", OLD, NEW, datetime.fromtimestamp(end - 600, UTC)))


@pytest.mark.parametrize(
    ("refused", "streamed", "fails"), [(0.4, 0.0, True), (0.0, 0.4, True), (0.0, 0.0, False)]
)
def test_what_the_new_arm_refuses_is_counted_once_whoever_scrapes_it(tmp_path, refused, streamed, fails):
    scrapes = Scrapes()
    scrapes.pod(f"{OLD}-b2c4d", 1700, 0)
    scrapes.pod(f"{NEW}-f5g6h", 500, 0, refused=refused, streamed=streamed)
    with prometheus_of(tmp_path, scrapes.text()) as address:
        one = found_of(address, scrapes.end)
    assert isinstance(one, FailureFinding), one
    assert one.witness is Witness.SIDE_BY_SIDE
    assert one.new.posts == pytest.approx(RPS * 420, rel=0.2), "two jobs scrape it, and it is one pod"
    assert one.new.refusals == pytest.approx(refused * one.new.posts, rel=0.01)
    assert one.share == pytest.approx(refused + streamed, abs=0.02)
    assert one.fails(last_look=False) is fails


def test_what_fails_after_the_last_word_is_counted_once_and_of_the_newest_pods(tmp_path):
    scrapes = Scrapes()
    scrapes.pod(f"{OLD}-b2c4d", 1700, 600)
    for name in ("f5g6h", "j7k8l"):
        scrapes.pod(f"{NEW}-{name}", 1200, 0, refused=0.4)
    with prometheus_of(tmp_path, scrapes.text()) as address:
        reading = read_later(asked(address, later_query([("llm", "chat")], EngineSeries(), 600)))
    now = reading.of("llm", f"{NEW}-f5g6h")
    assert now is not None
    assert now.posts == pytest.approx(2 * RPS * 600, rel=0.15), "two jobs scrape each of two pods"
    assert now.served == pytest.approx(0.6 * now.posts, rel=0.02)
    found = find_later(ArmRequests(posts=1000.0, refusals=0.0, served=1000.0), now)
    assert found is not None
    assert found.fails(last_look=False)
