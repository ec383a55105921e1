"""Requests that fail, as the real Prometheus counts them: two ReplicaSets of one Deployment, scraped by two jobs."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import pytest

from breakeven.reasons import Witness
from breakeven.serving.promql import EngineSeries
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import siblings_of
from breakeven_operator.observing.roll_metrics import RolledPods, read_roll
from breakeven_operator.resources.memorystatus import RequestsBefore
from breakeven_operator.rolls.roll_failures import (
    FailureFinding,
    failures_query,
    find_failures,
    find_later,
    later_query,
    read_later,
)
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
        self.begun: list[str] = []

    def pod(self, name: str, first_s: int, last_s: int, **shares: float) -> None:
        """A pod between two times before the end.

        Args:
            name: of the pod.
            first_s, last_s: before the end.
            shares: of its requests: refused (with 400), streamed (refused in the stream), left (by the client after the first
                token: counted as 2xx), broken (an error of the engine: 500), away (503 of a full queue), unkeyed (401).
        """
        of = {
            "refused": 0.0,
            "streamed": 0.0,
            "left": 0.0,
            "broken": 0.0,
            "away": 0.0,
            "unkeyed": 0.0,
            **shares,
        }
        begun = 1.0 - of["refused"] - of["streamed"] - of["away"] - of["unkeyed"]
        statuses = {"4xx": of["refused"], "5xx": of["broken"] + of["away"], "401": of["unkeyed"]}
        statuses["2xx"] = 1.0 - sum(statuses.values())
        answered = begun - of["left"] - of["broken"]
        reasons = {"stop": 0.7 * answered, "length": 0.3 * answered, "abort": 0.0, "error": of["broken"]}
        for job in ("podmonitor", "servicemonitor"):
            labels = f'namespace="llm",pod="{name}",job="{job}"'
            engine = f'{labels},model_name="chat",engine="0"'
            for at in range(self.end - first_s, self.end - last_s + 1, SCRAPE_S):
                came = RPS * (at - (self.end - first_s))
                for status, share in statuses.items():
                    shown = f'{labels},handler="/v1/chat/completions",method="POST",status="{status}"'
                    self.http.append(f"http_requests_total{{{shown}}} {came * share} {at}")
                probes = f'{labels},handler="/tokenize",method="POST",status="2xx"'
                self.http.append(f"http_requests_total{{{probes}}} {100 * came} {at}")
                for reason, share in reasons.items():
                    shown = f'{engine},finished_reason="{reason}"'
                    self.finished.append(f"vllm:request_success_total{{{shown}}} {came * share} {at}")
                for suffix, per in (("count", 1.0), ("sum", 0.1)):
                    self.begun.append(
                        f"vllm:time_to_first_token_seconds_{suffix}{{{engine}}} {came * begun * per} {at}"
                    )

    def text(self) -> str:
        parts = [
            ("http_requests", "counter", self.http),
            ("vllm:request_success", "counter", self.finished),
            ("vllm:time_to_first_token_seconds", "summary", self.begun),
        ]
        return (
            "".join(f"# TYPE {name} {kind}\n" + "\n".join(lines) + "\n" for name, kind, lines in parts)
            + "# EOF\n"
        )


def found_of(address: str, end: int) -> FailureFinding | str:
    promql = failures_query([("llm", "chat")], EngineSeries(), SPAN_S, BLOCK_S)
    reading = read_roll(past_asked(address, re.sub(r"(\[\d+s:\d+s\])$", rf"\1 @ {end}", promql)))
    return find_failures(reading, RolledPods("llm", "chat", OLD, NEW, datetime.fromtimestamp(end - 600, UTC)))


@pytest.mark.parametrize(
    ("shares", "lost", "fails"),
    [
        ({"refused": 0.4}, 0.4, True),
        ({"streamed": 0.4}, 0.4, True),
        ({"broken": 0.2}, 0.2, True),
        ({"refused": 0.05, "left": 0.4, "away": 0.2}, 0.05 / 0.8, True),
        ({"left": 0.4, "unkeyed": 0.3}, 0.0, False),
        ({"away": 0.3}, 0.0, False),
        ({}, 0.0, False),
    ],
    ids=str,
)
def test_what_the_new_arm_refuses_is_counted_once_whoever_scrapes_it(tmp_path, shares, lost, fails):
    scrapes = Scrapes()
    scrapes.pod(f"{OLD}-b2c4d", 1700, 0)
    scrapes.pod(f"{NEW}-f5g6h", 500, 0, **shares)
    with prometheus_of(tmp_path, scrapes.text()) as address:
        one = found_of(address, scrapes.end)
    assert isinstance(one, FailureFinding), one
    assert one.witness is Witness.SIDE_BY_SIDE
    came = (one.new.posts + one.new.turned_away) / (1.0 - shares.get("unkeyed", 0.0))
    assert came == pytest.approx(RPS * 420, rel=0.2), "two jobs scrape it, and it is one pod"
    for name, found in (
        ("refused", one.new.refusals),
        ("broken", one.new.failed),
        ("left", one.new.abandoned),
    ):
        assert found == pytest.approx(shares.get(name, 0.0) * came, rel=0.01, abs=0.03 * came), name
    assert one.share == pytest.approx(lost, abs=0.02)
    assert one.fails(last_look=False) is fails


def test_what_fails_after_the_last_word_is_counted_once_and_of_the_newest_pods(tmp_path):
    scrapes = Scrapes()
    scrapes.pod(f"{OLD}-b2c4d", 1700, 600)
    for name in ("f5g6h", "j7k8l"):
        scrapes.pod(f"{NEW}-{name}", 1200, 0, refused=0.4)
    with prometheus_of(tmp_path, scrapes.text()) as address:
        reading = read_later(asked(address, later_query([("llm", "chat")], EngineSeries(), 600)))
    now = reading.requests.get(NamespacedName("llm", siblings_of(f"{NEW}-f5g6h")))
    assert now is not None
    assert now.posts == pytest.approx(2 * RPS * 600, rel=0.15), "two jobs scrape each of two pods"
    assert now.served == pytest.approx(0.6 * now.posts, rel=0.03)
    before = RequestsBefore(arm="eagle/3", posts=1000, refusals=0, served=1000)
    found = find_later(before, now)
    assert found is not None
    assert found.fails(last_look=False)
