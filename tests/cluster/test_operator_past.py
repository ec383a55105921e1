"""Loads of the past as the real Prometheus tells them: made-up days, then pods that really came and went."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from breakeven.serving.promql import EngineSeries, Matcher
from breakeven_operator.cluster.prometheus_api import PrometheusClient
from breakeven_operator.observing.fleet_query import past_query, roll_query
from breakeven_operator.observing.past_metrics import read_past
from breakeven_operator.observing.roll_metrics import RolledPods, both_arms, read_roll
from breakeven_operator.ports import PrometheusAccess
from operatorcluster import manifests
from operatorcluster.made_up_prometheus import prometheus_of
from operatorcluster.stage import decision
from operatorcluster.users import users

# Product files whose change runs these tests at the next landing.
COVERS = ("tuner/breakeven/past/",)

STEP_S, SCRAPE_S = 300, 15
HOURS = 3
# A pod's last sample counts as present for five minutes: blocks made of a text hold no mark that a series has ended.
UNMARKED_H = 5 / 60
LONG = "a-deployment-with-a-name-of-fifty-letters-and-more"
_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_DONE = "vllm:request_success_total"
_WAITED, _BEGUN = "vllm:time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_count"
_STEPPED, _TOKENS = "vllm:inter_token_latency_seconds_sum", "vllm:generation_tokens_total"
_COUNTED = (_WAITED, _BEGUN, _STEPPED, _TOKENS)
BLOCK_S = 60


class Day:
    """Scrapes of made-up pods, in the form that promtool makes blocks of."""

    def __init__(self):
        self.end = int(time.time()) // STEP_S * STEP_S
        self.begin = self.end - HOURS * 3600
        self.samples: dict[str, list[Any]] = {name: [] for name in (_DONE, *_GAUGES, *_COUNTED)}

    def pod(
        self,
        name,
        rate,
        *,
        first_h=0.0,
        last_h=HOURS,
        model="chat",
        waiting=lambda _hour: 0.0,
        latency_s=1.0,
        **labels,
    ):
        """A pod that serves `rate(hour)` requests per second from one hour to another; half of them end by length."""
        shown = ",".join(
            f'{k}="{v}"' for k, v in {"namespace": "llm", "pod": name, "model_name": model, **labels}.items()
        )
        done = 0.0
        for at in range(self.begin + int(first_h * 3600), self.begin + int(last_h * 3600) + 1, SCRAPE_S):
            hour = (at - self.begin) / 3600
            done += rate(hour) * SCRAPE_S
            for reason in ("stop", "length"):
                self.samples[_DONE].append(f'{_DONE}{{{shown},finished_reason="{reason}"}} {done / 2} {at}')
            spent_s = (0.1 * done * latency_s, done, 0.9 * done * latency_s, 101.0 * done)
            for counter, value in zip(_COUNTED, spent_s, strict=True):
                self.samples[counter].append(f"{counter}{{{shown}}} {value} {at}")
            self.samples[_GAUGES[0]].append(f"{_GAUGES[0]}{{{shown}}} 2 {at}")
            self.samples[_GAUGES[1]].append(f"{_GAUGES[1]}{{{shown}}} {waiting(hour)} {at}")

    def text(self):
        # Of a histogram promtool wants all parts; each of the two that are asked for does as well alone.
        kinds = {_DONE: "counter"} | dict.fromkeys((*_GAUGES, *_COUNTED), "gauge")
        lines = []
        for name, samples in self.samples.items():
            lines += [f"# TYPE {name.removesuffix('_total')} {kinds[name]}", *samples]
        return "\n".join([*lines, "# EOF", ""])


def the_day():
    day = Day()
    steady = lambda rps: lambda _hour: rps  # noqa: E731
    # Two replicas, replaced by two of another ReplicaSet after an hour, and joined by two more after two: 2, 5, 2.5 each.
    for suffix in ("b2c4d", "f5g6h"):
        day.pod(f"chat-7d9f8b6c5d-{suffix}", steady(2.0), last_h=1.0 - UNMARKED_H, latency_s=1.2)
        day.pod(f"chat-64bd5fcf9-{suffix}", lambda hour: 5.0 if hour < 2 else 2.5, first_h=1.0, latency_s=0.8)
        day.pod(f"chat-64bd5fcf9-x{suffix[1:]}", steady(2.5), first_h=2.0)
    # Workloads with the same beginning of their names: another Deployment, calibrations of `chat` and of a run, a Job, a bare pod.
    day.pod("chat-large-7d9f8b6c5d-b2c4d", steady(40.0))
    day.pod("chat-3fa21-none-b2c4d", steady(50.0))
    day.pod("chat-3fa21-eagle-7-b2c4d", steady(50.0))
    day.pod("chat-nightly-b2c4d", steady(60.0))
    day.pod("chat", steady(60.0))
    # A StatefulSet of the same name, whose one pod is replaced under its name; and one whose name goes on.
    day.pod("chat-0", steady(3.0), last_h=1.0 - UNMARKED_H, latency_s=1.2, instance="10.0.0.1:8000")
    day.pod("chat-0", steady(4.0), first_h=1.0, latency_s=0.8, instance="10.0.0.2:8000")
    day.pod("chat-large-0", steady(45.0))
    # Its name leaves the pod's last dash no room.
    day.pod(f"{LONG}-7d9f8bb2c4d"[:63], steady(7.0))
    # Under other labels.
    day.pod("chat-7d9f8b6c5d-b2c4d", steady(70.0), model="other")
    day.pod("chat-7d9f8b6c5d-b2c4d", steady(80.0), namespace="other")
    # Asked for 6, serves 4: a queue grows by 2 a second for an hour, and then is worked off.
    day.pod(
        "queue-7d9f8b6c5d-b2c4d",
        steady(4.0),
        waiting=lambda hour: (
            7200 * (hour - 1) if 1 <= hour <= 2 else 7200 * max(3 - hour, 0) if hour > 2 else 0
        ),
    )
    # One works off more than it serves, which is no negative load: 4 of the two together.
    day.pod("drained-7d9f8b6c5d-b2c4d", steady(4.0))
    day.pod("drained-7d9f8b6c5d-f5g6h", steady(4.0), waiting=lambda hour: 7 * 3600 * (HOURS - hour))
    day.pod("broken-7d9f8b6c5d-b2c4d", lambda hour: float("nan") if hour > 2.5 else 1.0)
    return day


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    """(address, end of the day) of a Prometheus that holds it and scrapes nothing."""
    made = the_day()
    with prometheus_of(tmp_path_factory.mktemp("prometheus"), made.text()) as address:
        yield address, made.end


def asked_of(address, end, promql):
    """A range vector, as of the day's end, whenever the test looks."""
    asked = re.sub(r"(\[\d+s:\d+s\])$", rf"\1 @ {end}", promql)
    assert asked != promql

    async def ask():
        prometheus = PrometheusClient(None, allowed=("127.0.0.0/8",))
        try:
            return await prometheus.query_past(PrometheusAccess(address), asked)
        finally:
            await prometheus.close()

    return asyncio.run(ask())


def past(address, end, *matchers, namespaces=("llm",), hours=HOURS):
    promql = past_query(namespaces, EngineSeries(matchers), hours * 3600, STEP_S)
    return {key: rates.rps for key, rates in read_past(asked_of(address, end, promql)).rates.items()}


def settled(rates):
    """Without the steps of the day in which pods came or went."""
    return [round(rate, 1) for rate in rates]


def test_a_service_s_past_is_that_of_its_deployment_s_pods_per_replica(day):
    rates = settled(past(*day)["llm", "Deployment chat", "chat"])
    # Of thirty-six the one in which the pods change has no two samples of any of them.
    assert len(rates) == 35
    assert [rates[6], rates[18], rates[30]] == [2.0, 5.0, 2.5]
    # Nobody's load is in it twice, and nobody else's: a change of pods shows for one step at most.
    assert sum(rate not in {2.0, 5.0, 2.5} for rate in rates) <= 3
    assert min(rates[1:]) >= 1.9
    assert max(rates) <= 5.1


def test_a_past_load_is_the_fleet_s_on_any_replicas(day):
    """Two pods at 2 rps, two at 5 and four at 2.5: loads of 4, 10 and 10 rps, whichever pods serve them tomorrow."""
    address, end = day
    asked = past_query(("llm",), EngineSeries(), HOURS * 3600, STEP_S)
    found = read_past(asked_of(address, end, asked)).rates["llm", "Deployment chat", "chat"]
    assert [found.replicas[place] for place in (6, 18, 30)] == [2.0, 2.0, 4.0]
    assert [settled(found.on(1).rps)[place] for place in (6, 18, 30)] == [4.0, 10.0, 10.0]
    assert [settled(found.on(8).rps)[place] for place in (6, 18, 30)] == [0.5, 1.2, 1.2]


def test_the_blocks_of_a_roll_are_what_its_pods_counted(day):
    """Two pods that were replaced by two of another ReplicaSet: every block whole, none of anybody else's."""
    address, end = day
    began = end - (HOURS - 1) * 3600
    reading = read_roll(
        asked_of(address, end, roll_query([("llm", "chat")], EngineSeries(), HOURS * 3600, BLOCK_S))
    )
    started = datetime.fromtimestamp(began - 2 * BLOCK_S, UTC)
    found = both_arms(reading, RolledPods("llm", "chat", "chat-7d9f8b6c5d", "chat-64bd5fcf9", started))
    times_s = np.array(reading.times_s)
    for blocks, rps, latency_s, here in (
        (found[0], 2.0, 1.2, times_s < began - 600),
        (found[1], 5.0, 0.8, (times_s > began + 120) & (times_s < began + 3600)),
    ):
        pods = blocks.begun[np.nansum(blocks.begun, axis=1) > 0][:2, here]
        counted = pods[np.isfinite(pods)]
        assert counted.size > 60
        assert np.allclose(counted, rps * BLOCK_S)
        ratio = (blocks.waited_s + blocks.stepped_s)[:2, here] / blocks.begun[:2, here]
        assert np.allclose(ratio[np.isfinite(ratio)], latency_s)
        assert np.nanmax(blocks.tokens[:2, here]) == pytest.approx(100.0 * rps * BLOCK_S)
        assert np.nanmax(blocks.watched_s[:, here]) == BLOCK_S
    assert found[0].begun.shape[0] == 2


def test_the_blocks_of_a_roll_are_told_apart_by_time_if_a_pod_leaves_its_name_to_the_next_one(day):
    address, end = day
    began = end - (HOURS - 1) * 3600
    reading = read_roll(
        asked_of(address, end, roll_query([("llm", "chat")], EngineSeries(), HOURS * 3600, BLOCK_S))
    )
    started = datetime.fromtimestamp(began - 600, UTC)
    pods = {"chat-0": ("chat-new", began - 30.0)}
    found = both_arms(reading, RolledPods("llm", "chat", "chat-old", "chat-new", started, pods))
    for blocks, rps, latency_s in ((found[0], 3.0, 1.2), (found[1], 4.0, 0.8)):
        assert blocks.begun.shape[0] == 1
        counted = blocks.begun[np.isfinite(blocks.begun)]
        assert counted.size > 40
        assert np.allclose(counted, rps * BLOCK_S)
        ratio = (blocks.waited_s + blocks.stepped_s) / blocks.begun
        assert np.allclose(ratio[np.isfinite(ratio)], latency_s)


def test_workloads_of_two_kinds_may_have_one_name(day):
    found = past(*day)
    rates = settled(found["llm", "StatefulSet chat", "chat"])
    assert [rates[6], rates[18], rates[30]] == [3.0, 4.0, 4.0]
    assert set(settled(found["llm", "StatefulSet chat-large", "chat"][1:])) == {45.0}


def test_names_that_begin_alike_are_others(day):
    found = past(*day)
    assert set(settled(found["llm", "Deployment chat-large", "chat"][1:])) == {40.0}
    assert {rate for rates in found.values() for rate in settled(rates[1:])}.isdisjoint({60.0})
    assert ("llm", "Deployment chat-3fa21-none", "chat") not in found
    assert ("llm", f"Deployment {LONG}", "chat") in found
    assert set(settled(found["llm", f"Deployment {LONG}", "chat"][1:])) == {7.0}


def test_namespaces_model_names_and_matchers_tell_apart(day):
    found = past(*day, namespaces=("llm", "other"))
    assert settled(found["llm", "Deployment chat", "other"])[5] == 70.0
    assert settled(found["other", "Deployment chat", "chat"])[5] == 80.0
    assert {key[0] for key in past(*day)} == {"llm"}
    assert past(*day, Matcher("pod", "=~", "nobody.*")) == {}
    assert past(*day, namespaces=("nowhere",)) == {}


def test_what_queued_was_offered_too(day):
    rates = settled(past(*day)["llm", "Deployment queue", "chat"])
    assert [rates[6], rates[18], rates[30]] == [4.0, 6.0, 2.0]


def test_old_demand_that_is_served_is_no_new_one(day):
    assert set(settled(past(*day)["llm", "Deployment drained", "chat"])) == {2.0}


def test_what_is_not_a_number_is_no_load(day):
    rates = past(*day)["llm", "Deployment broken", "chat"]
    assert len(rates) == 30
    assert set(settled(rates[1:])) == {1.0}


def test_a_shorter_past_is_its_end(day):
    rates = settled(past(*day, hours=1)["llm", "Deployment chat", "chat"])
    assert len(rates) == 12
    assert set(rates[1:]) == {2.5}


def test_the_past_of_pods_that_are_gone_reaches_the_decision(place):
    """Users, then another ReplicaSet: what the pods before it served is still known."""
    # Windows of 48 requests: of 24 one of four rounds would see half as many again.
    place.managed(
        updatePolicy={"mode": "Recommend", "lookbackSeconds": 120}, metricsSource={"windowSeconds": 12}
    )
    with users(place, 4.0):
        found = place.until_service(
            "it knows some past", lambda status: decision(status).get("expectedObservations", 0) >= 2
        )
        assert 2.0 < float(decision(found["status"])["expectedPeakRps"]) < 6.0
        before = {pod["metadata"]["name"] for pod in place.all("pod")}
        place.kubectl("rollout", "restart", f"deployment/{manifests.TARGET}")
        place.kubectl("rollout", "status", f"deployment/{manifests.TARGET}", "--timeout=180s")
        known = decision(found["status"])["expectedObservations"]
        found = place.until_service(
            "it knows more",
            lambda status: (
                decision(status).get("expectedObservations", 0) >= known + 2
                and not before & {pod["metadata"]["name"] for pod in place.all("pod")}
            ),
        )
    made = decision(found["status"])
    assert 2.0 < float(made["expectedPeakRps"]) < 8.0
    assert made["arm"] == "eagle/3"
