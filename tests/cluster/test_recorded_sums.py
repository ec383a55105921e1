"""The chart's recording rule on a real Prometheus: its series mean what the operator's own query means, or do not count."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import time
from pathlib import Path
from typing import cast

import pytest
import yaml

from breakeven.serving.engine_series import EngineSeries
from breakeven_operator.adapters.clock import SystemClock
from breakeven_operator.adapters.present_loads import PresentSums
from breakeven_operator.adapters.prometheus_answers import Watch
from breakeven_operator.adapters.prometheus_api import PrometheusClient
from breakeven_operator.adapters.recording_servers import RecordingServers
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Cluster, PrometheusAccess
from breakeven_operator.reconcile.fleet_query import LAST_SEEN, REPORTING, sums_query
from breakeven_operator.reconcile.live_metrics import read_fleet
from breakeven_operator.reconcile.recorded_sums import RECORD, read_recorded, recorded_query, recording_rule
from operatorcluster.made_up_prometheus import asked, asked_at, prometheus_of
from operatorcluster.waiting import until

RULES = Path(__file__).parents[2] / "charts" / "breakeven" / "files" / "recording-rules.yaml"
SECONDS, SCRAPE_S, WINDOW_S, STALENESS_S = 1200, 15, 300, 120
NAMESPACES = ["code", "llm", "team"]
LABELS = recording_rule(WINDOW_S, STALENESS_S).labels
COUNTERS = {
    "request_success_total": 'finished_reason="stop"', "time_to_first_token_seconds_count": "",
    "time_to_first_token_seconds_sum": "", "e2e_request_latency_seconds_count": "",
    "e2e_request_latency_seconds_sum": "", "generation_tokens_total": "", "inter_token_latency_seconds_count": "",
    "inter_token_latency_seconds_sum": "", "request_prompt_tokens_sum": "", "request_generation_tokens_sum": "",
    "request_generation_tokens_count": "", "spec_decode_num_drafts_total": "",
    "spec_decode_num_accepted_tokens_per_pos_total": 'position="0"',
}  # fmt: skip


def fleet(end_s):
    """Samples of four pods of a service, of another service beside it and of a StatefulSet elsewhere.

    Of the four one has counted afresh after its engine was started again, one went away within the window and one before it,
    and one has two engines, the second of which is scraped by two jobs.
    """
    draw = random.Random(3)
    pods = [
        ("llm", "chat-7d9f8b6c5d-bbbbb", 'engine="0"', None, 0),
        ("llm", "chat-7d9f8b6c5d-bbbbb", 'engine="1"', None, 0),
        ("llm", "chat-7d9f8b6c5d-bbbbb", 'engine="1",job="b"', None, 0),
        ("llm", "chat-7d9f8b6c5d-ccccc", 'engine="0"', 1080, 0),
        ("llm", "chat-7d9f8b6c5d-ddddd", 'engine="0"', None, 120),
        ("llm", "chat-7d9f8b6c5d-fffff", 'engine="0"', None, 800),
        ("llm", "other-64bd5fcf9-bbbbb", 'engine="0"', None, 0),
        ("code", "code-0", 'engine="0"', None, 0),
        ("code", "code-1", 'engine="0"', None, 0),
    ]
    series: dict[str, list[str]] = {
        name: [] for name in (*COUNTERS, "num_requests_running", "num_requests_waiting")
    }
    for namespace, pod, engine, restarted, ended_s in pods:
        for name, lines in series.items():
            more = COUNTERS.get(name, "")
            own = f'namespace="{namespace}",pod="{pod}",model_name="m",{engine}{"," if more else ""}{more}'
            value = 0.0
            for age_s in range(0, SECONDS + 1 - ended_s, SCRAPE_S):
                value = draw.uniform(1, 9) + (0.0 if name not in COUNTERS or age_s == restarted else value)
                lines.append(f"vllm:{name}{{{own}}} {value} {end_s - SECONDS + age_s}")
    return [line for lines in series.values() for line in lines]


def pretended(end_s, **labels):
    """A recorded series that somebody else made."""
    shown = ",".join(f'{name}="{value}"' for name, value in {**LABELS, **labels}.items())
    return [f"{RECORD}{{{shown}}} 1e9 {end_s - age_s}" for age_s in (15, 0)]


def rules(folder, *, others=()):
    """The chart's file with an interval that a test can wait for."""
    document = yaml.safe_load(RULES.read_text())
    document["groups"][0]["interval"] = "1s"
    document["groups"][0]["rules"] += others
    file = folder / "rules.yaml"
    file.write_text(json.dumps(document))
    return file


def text(*parts):
    return "\n".join([*(line for part in parts for line in part), "# EOF", ""])


def recorded(address, time_s=None):
    query = recorded_query(NAMESPACES, WINDOW_S, STALENESS_S)
    return read_recorded(asked(address, query) if time_s is None else asked_at(address, query, time_s))


def test_recorded_sums_are_those_of_the_query_itself(tmp_path):
    end_s = int(time.time())
    false = pretended(end_s, namespace="team", siblings="a-7d9f8b6c5d-", model_name="m", stat="completed",
                      job="tenant", instance="10.0.0.9:80")  # fmt: skip
    with prometheus_of(tmp_path, text(fleet(end_s), false), rules(tmp_path)) as address:
        until("the rule is evaluated", lambda: recorded(address).evaluated_s)
        time_s = recorded(address).evaluated_s
        found = recorded(address, time_s)
        wanted = asked_at(address, sums_query(NAMESPACES, EngineSeries(), WINDOW_S, STALENESS_S), time_s)
    assert found.evaluated_s == pytest.approx(time_s, abs=0.001)
    assert found.namespaces == {"code", "llm"}, "a scraped page cannot pass for a rule"
    sums, ours = read_fleet(wanted).pods, read_fleet(found.samples).pods
    assert ours.keys() == sums.keys() == {
        NamespacedName("llm", "chat-7d9f8b6c5d-"), NamespacedName("llm", "other-64bd5fcf9-"),
        NamespacedName("code", "code-"),
    }  # fmt: skip
    for name, (reading,) in sums.items():
        assert dict(ours[name][0].stats) == pytest.approx(dict(reading.stats), rel=1e-12)
    stats = ours[NamespacedName("llm", "chat-7d9f8b6c5d-")][0].stats
    assert stats[REPORTING] == 3, "one is gone"
    assert stats[LAST_SEEN] < time_s - 100, "one of them since two minutes"
    assert stats["completed"] > 0


async def test_a_server_is_read_by_its_rule_and_by_query_when_that_is_gone(tmp_path, caplog):
    """Of one namespace two rules say something: that one is summed by query. Then there is no rule, and all are."""
    caplog.set_level(logging.INFO)
    end_s = int(time.time())
    forged = {"record": RECORD, "expr": "vector(1e9)", "labels": {
        **LABELS, "namespace": "code", "siblings": "code-", "model_name": "m", "stat": "completed", "by": "tenant",
    }}  # fmt: skip
    file = rules(tmp_path, others=[forged])
    client = PrometheusClient(cast("Cluster", None), allowed=("127.0.0.1",))
    with prometheus_of(tmp_path, text(fleet(end_s)), file) as address:
        await asyncio.to_thread(until, "the rule is evaluated", lambda: recorded(address).twice)
        watch = Watch(PrometheusAccess(address), EngineSeries(), WINDOW_S, STALENESS_S)
        sums = PresentSums(client, SystemClock(), lambda _: None, 10.0)
        namespaces = dict.fromkeys(NAMESPACES, 1)
        first, first_s = (await sums.read({watch: namespaces}))[watch], time.time()
        file.write_text("{}")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGHUP)
        ended = lambda: recorded(address).evaluated_s is None  # noqa: E731
        await asyncio.to_thread(until, "the rule's series end", ended)
        second, second_s = (await sums.read({watch: namespaces}))[watch], time.time()
        await sums.close()
    await client.close()
    assert first.pods.keys() == second.pods.keys()
    for reading, read_s in ((first, first_s), (second, second_s)):
        (code,) = reading.pods[NamespacedName("code", "code-")]
        assert 0 < code.stats["completed"] < 1000, "what a tenant records of others is nothing to go by"
        assert reading.evaluated_s == pytest.approx(read_s, abs=60)
    said = [one.getMessage() for one in caplog.records if one.name == RecordingServers.__module__]
    assert ["recorded different sums of 1 namespaces, such as code" in said[0], "has no recording rule" in said[1]] == [
        True, True,
    ]  # fmt: skip
