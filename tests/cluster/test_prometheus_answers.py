"""Our queries on a real Prometheus: latencies that an engine on the event clock counted, and the dashboard's panels."""

from __future__ import annotations

import json
import math
import random
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from breakeven.planning.objective import Histogram
from breakeven.serving.growths import ENGINES, EngineLimits
from breakeven.serving.promql import EngineSeries
from breakeven_operator.case import Live
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import (
    FIRST_SEEN,
    LAST_SEEN,
    POSITION_STAT,
    PRESENT,
    REPORTING,
    fleet_query,
    siblings_of,
    sums_query,
)
from breakeven_operator.observing.latency_metrics import latencies_of, latency_query, read_latencies
from breakeven_operator.observing.live_metrics import WatchedPods, read_fleet
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.metricssource import MetricsSource
from breakeven_operator.serve.telemetry import Telemetry
from breakeven_operator.workloads.workload import PodState
from breakeven_sim.engine.configuration import DraftLengths, engine_config
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.costs import parse_costs
from breakeven_sim.engine.exposition import CacheInfo, EngineMetrics
from breakeven_sim.engine.requests import Request
from fakes.notes import notes_of
from operatorcluster.made_up_prometheus import asked, prometheus_of, series_of
from operatorcluster.waiting import until
from shipping.generate.dashboard import ROWS, dashboard_json

pytestmark = pytest.mark.always

ROOT = Path(__file__).parents[2]
RULES = ROOT / "charts" / "breakeven" / "files" / "rules.yaml"
COSTS = ROOT / "examples" / "engine-costs" / "demo.json"
SCRAPE_S, WINDOW_S, SECONDS = 15, 300, 900
OWN_HISTOGRAMS = ("e2e_request_latency", "time_to_first_token", "request_time_per_output_token")
ALERTED = 'specsvc_namespace="llm",specsvc="chat"'
FIGURES = {"e2e_request_latency_seconds": "e2e", "time_to_first_token_seconds": "ttft"}


class ScrapedEngine:
    """An engine on the event clock, users who come at random, and what scrapes of its page see."""

    def __init__(self, seed, *, slower=1):
        costs = parse_costs(COSTS.read_text(), "NVIDIA-H100-80GB-HBM3", str(COSTS))
        engine = Engine(engine_config(costs, None, DraftLengths(0), kv_pool_tokens=10**6))
        metrics = EngineMetrics(engine, "chat", CacheInfo(16, 10**6, 1.0, 0.9, 4096, None), 0.0)
        draw, at, number = random.Random(seed), 0.0, 0
        while at < SECONDS:
            number += 1
            at += draw.expovariate(4.0)
            tokens = max(2, round(draw.expovariate(1.0 / (40 * slower))))
            engine.submit(Request(number, at, 100, tokens))
        self.finished, self.scrapes = [], []
        for scrape_s in range(0, SECONDS + 1, SCRAPE_S):
            while engine.outstanding and engine.clock_s < scrape_s:
                report = engine.step()
                metrics.record_step(report)
                for gain in report.progress:
                    gain.request.last_token_s = report.end_s
                for request in report.finished:
                    metrics.record_finished(request, "length", request.output_tokens)
                    self.finished.append(request)
            self.scrapes.append({family.name: family for family in metrics.collect()})

    def lines(self, pod, end_s):
        """By family, so that those of several engines can be joined in one text."""
        for family in FIGURES:
            name = f"vllm:{family}"
            for i, scrape in enumerate(self.scrapes):
                at = end_s - SECONDS + i * SCRAPE_S
                for sample in scrape[name].samples:
                    if sample.name == f"{name}_bucket":
                        labels = {**sample.labels, "namespace": "llm", "pod": pod}
                        shown = ",".join(f'{key}="{value}"' for key, value in labels.items())
                        yield family, f"{sample.name}{{{shown}}} {sample.value} {at}"


def test_the_quantiles_of_an_engine_lie_within_what_is_read_of_its_histograms(tmp_path):
    """Of the pods that count: those of the ReplicaSet that was replaced, ten times as slow, would move every quantile."""
    end_s = int(time.time())
    pods = {"chat-7d9f8b6c5d-b2c4d": ScrapedEngine(1), "chat-7d9f8b6c5d-f5g6h": ScrapedEngine(2)}
    old = {"chat-64bd5fcf9-zzzzz": ScrapedEngine(3, slower=10)}
    by_family: dict[str, list[str]] = {family: [] for family in FIGURES}
    for name, engine in {**pods, **old}.items():
        for family, line in engine.lines(name, end_s):
            by_family[family].append(line)
    text = "\n".join([*(line for lines in by_family.values() for line in lines), "# EOF", ""])
    with prometheus_of(tmp_path, text) as address:
        query = latency_query([NamespacedName("llm", "chat")], EngineSeries(), WINDOW_S)
        # The time of the last scrape, whenever the test looks.
        answer = asked(address, query.replace(f"[{WINDOW_S}s]", f"[{WINDOW_S}s] @ {end_s}"))
    counted = [PodState(name, name, True, None, 20.0, False, "node", "", None) for name in pods]
    fresh = Live(ClusterReason.METRICS_AVAILABLE, "fresh")
    watched = WatchedPods("llm", "chat", counted, MetricsSource(), EngineLimits(), datetime.now(UTC))
    found = latencies_of(read_latencies(answer), watched, fresh)
    assert set(found.histograms) == {"e2e", "ttft"}
    lately = [
        request
        for engine in pods.values()
        for request in engine.finished
        if request.finished_s > SECONDS - WINDOW_S
    ]
    truth = {
        "e2e": sorted(request.finished_s - request.arrival_s for request in lately),
        "ttft": sorted(request.first_token_s - request.arrival_s for request in lately),
    }
    for figure, took_s in truth.items():
        histogram: Histogram = found.histograms[figure]
        assert histogram.requests == pytest.approx(len(took_s), rel=0.1)
        for share in (0.5, 0.95, 0.99):
            band = histogram.quantile(share)
            assert band.lower <= took_s[math.ceil(share * len(took_s)) - 1] <= (band.upper or math.inf)


def gauges_and_counters(end_s):
    """Pods of two ReplicaSets: what they count differs; one has counted afresh, and was last scraped before the others."""
    draw = random.Random(5)
    counters = ("vllm:request_success", "vllm:e2e_request_latency_seconds_sum", "vllm:generation_tokens")
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    pods = ("chat-7d9f8b6c5d-b2c4d", "chat-7d9f8b6c5d-f5g6h", "chat-64bd5fcf9-zzzzz")
    for name in (*counters, *gauges):
        kind = "counter" if name in counters and not name.endswith("_sum") else "gauge"
        yield f"# TYPE {name} {kind}"
        shown = f"{name}_total" if kind == "counter" else name
        for pod in pods:
            labels = f'namespace="llm",pod="{pod}",model_name="chat"'
            value = 0.0
            for i in range(SECONDS // SCRAPE_S + (-2 if pod == pods[1] else 1)):
                value = draw.uniform(1, 9) + (
                    value if name in counters and (pod, i) != (pods[1], 50) else 0.0
                )
                yield f"{shown}{{{labels}}} {value} {end_s - SECONDS + i * SCRAPE_S}"
    for position in "012":
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        for i in range(SECONDS // SCRAPE_S + 1):
            labels = f'namespace="llm",pod="{pods[0]}",model_name="chat",position="{position}"'
            yield f"{name}{{{labels}}} {i * (3 - int(position))} {end_s - SECONDS + i * SCRAPE_S}"


def test_the_sums_of_a_large_fleet_are_those_of_its_pods(tmp_path):
    end_s = int(time.time())
    with prometheus_of(tmp_path, "\n".join([*gauges_and_counters(end_s), "# EOF", ""])) as address:
        pods, sums = (
            read_fleet(asked(address, at(make(["llm"], EngineSeries(), WINDOW_S, 120), end_s)))
            for make in (fleet_query, sums_query)
        )
    assert {len(readings) for readings in pods.pods.values()} == {1}
    assert len(pods.pods) == 3
    expected: dict[NamespacedName, dict[str, float]] = {}
    for name, readings in pods.pods.items():
        (reading,) = readings.values()
        total = expected.setdefault(NamespacedName(name.namespace, siblings_of(name.name)), {REPORTING: 0})
        total[REPORTING] += 1
        stats = {
            **reading.stats,
            **({POSITION_STAT: sum(reading.accepted.values())} if reading.accepted else {}),
        }
        for stat, value in stats.items():
            if stat in {LAST_SEEN, "waiting_min"}:
                total[stat] = min(total.get(stat, math.inf), value)
            elif stat not in {ENGINES, FIRST_SEEN}:
                # How many engines a pod has is looked at pod by pod.
                total[stat] = total.get(stat, 0.0) + value
    found = {name: dict(one.stats) for name, readings in sums.pods.items() for one in readings.values()}
    # Times of today differ by less than what is approximately the same.
    for stats in (*expected.values(), *found.values()):
        stats[LAST_SEEN] -= end_s
    assert {name: pytest.approx(stats) for name, stats in expected.items()} == found
    assert expected[NamespacedName("llm", "chat-7d9f8b6c5d-")].keys() >= {"completed", "e2e_s", POSITION_STAT}


def at(query, end_s):
    """A query as of some time, whenever it is asked."""
    return re.sub(
        r"(\[[^\]]*\])", rf"\1 @ {end_s}", re.sub(r"(running\{[^}]*\})\)", rf"\1 @ {end_s})", query)
    )


def everything_known() -> SpeculativeService:
    """A service whose status has every figure that is ever exported."""
    bounds = {"Lower": "0.9", "": "1.0", "Upper": "1.1"}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    figure = {f"p{q}{end}Seconds": "0.5" for q in (50, 95, 99) for end in bounds}
    figure |= {f"predictedP95{end}Seconds": "0.4" for end in bounds}
    figure |= {f"attainment{end}Percent": "90" for end in bounds}
    figure |= {"limitSeconds": "0.5", "requests": 1000, "missedRequests": 100}
    decision = {f"{name}{end}": "1.0" for name in ("speedup", "c2Ratio") for end in bounds}
    decision |= {f"breakEven{end}Rps": "9" for end in bounds}
    decision |= {
        **dict.fromkeys(("c1Ratio", "inflight", "utilization", "tokensPerStep", "loadRps", "expectedPeakRps"), "1"),
        "acceptedTokensPerStep": "1", "prefixHitPercent": "40",
        "observedLatencySeconds": "1", "predictedLatencySeconds": "1", "evidenceTime": now, "time": now,
        "action": "Stay", "reason": "BelowBreakEven", "arm": "eagle/3", "comparedArm": "eagle/3", "profile": "chat-p1",
    }  # fmt: skip
    ratios = ("latencyRatio", "measuredSpeedup")
    survival = [{"position": 1, "liveAccept": "0.8", "calibratedAccept": "0.9"}]
    model = {"arm": "eagle/3", "survival": survival} | {
        f"{name}{end}": "1.0" for name in ratios for end in bounds
    }
    speedups = {f"{name}Speedup{end}": "1.1" for name in ("predicted", "measured") for end in bounds}
    roll = {"fromArm": "none", "toArm": "eagle/3", "result": "Confirmed", "time": now, **speedups}
    savings = {f"gpusNotNeeded{end}": "2" for end in bounds}
    savings |= {"gpusArm": "eagle/3", "gpusBasis": "Running", "rollsSeconds": "90"}
    capacity = {"arm": "eagle/3", "capacityRps": "9", "lowerRps": "8", "upperRps": "10"}
    status = {
        "target": {"replicas": 2, "gpuProduct": "H100"},
        "current": {"arm": "eagle/3", "draftLength": 3},
        "decision": decision,
        "model": model,
        "history": [roll],
        "rollout": {"id": "r1", "deadlineTime": now},
        "objectives": [{"figure": name, **figure} for name in ("e2e", "ttft", "tpot")],
        "capacity": {"recommendedReplicas": 3, "scaledBy": "keda", "arms": [capacity]},
        "calibration": {"profile": "chat-p1", "profileTime": now, "failures": 1, "totalGpuSeconds": "600"},
        "savings": savings,
        "conditions": [
            {"type": name, "status": "True", "reason": word, "lastTransitionTime": now}
            for name, word in (("Ready", "Watching"), ("Profitable", "BelowBreakEven"))
        ],
        "workings": {"notes": notes_of({"failures": 1})},
    }
    candidate = {"name": "eagle", "method": "eagle3", "model": "org/head", "draftLengths": [3]}
    return SpeculativeService.read(
        {
            "apiVersion": "breakeven.dev/v1alpha1",
            "kind": "SpeculativeService",
            "metadata": {"name": "chat", "namespace": "llm"},
            "spec": {"targetRef": {"name": "chat"}, "candidates": {"methods": [candidate]}},
            "status": status,
        },
        "service",
    )


def test_a_question_about_many_namespaces_is_answered_though_it_is_too_long_for_an_address(tmp_path):
    end_s = int(time.time())
    samples = [
        f'vllm:num_requests_running{{namespace="team-{n}",pod="a",model_name="m"}} {n} {end_s}'
        for n in (0, 499)
    ]
    with prometheus_of(tmp_path, "\n".join([*samples, "# EOF", ""])) as address:
        query = fleet_query([f"team-{number}" for number in range(500)], EngineSeries(), WINDOW_S, 120)
        assert len(query) > 50_000
        found = asked(address, query)
    assert {one.labels["namespace"] for one in found if one.labels["stat"] == PRESENT} == {
        "team-0",
        "team-499",
    }


def test_every_panel_of_the_dashboard_shows_something(tmp_path):
    """The operator's series, scraped for a quarter of an hour, with the chart's recording rules."""
    registry = CollectorRegistry()
    telemetry = Telemetry(registry)
    service = everything_known()
    telemetry.lead(acts=True)
    telemetry.services.set(1)
    telemetry.fleet.publish([service], datetime.now(UTC))
    telemetry.fleet.count("breakeven_rollouts", service, "Confirmed")
    telemetry.fleet.count("breakeven_calibrations", service, "CalibrationSucceeded")
    telemetry.cycle_duration.observe(0.2)
    telemetry.cycle_stages.labels("Deciding").observe(0.1)
    telemetry.errors.labels("ApiError").inc()
    telemetry.prometheus_queries.labels("ok").inc()
    telemetry.api_requests.labels("GET", "200").inc()
    # The last scrape is of now, and is seen for five minutes: no sample may be written where a block lies already.
    begin = int(time.time()) - 900
    lines = []
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
                lines += [f"{sample.name}{{{labels}}} {sample.value} {begin + i * 15}" for i in range(61)]
    # The pod of a service without an objective: requests of 0.3 s, whose histogram grows by one in each scrape.
    pod = 'namespace="llm",pod="plain-7d9f8b6c5d-x2k4b"'
    for histogram in OWN_HISTOGRAMS:
        for edge in ("0.5", "1.0", "+Inf"):
            labels = f'{{{pod},le="{edge}"}}'
            lines += [f"vllm:{histogram}_seconds_bucket{labels} {i} {begin + i * 15}" for i in range(61)]
    alert = f'ALERTS{{alertname="SpeculationUnprofitable",alertstate="firing",{ALERTED}}}'
    lines += [f"{alert} 1 {begin + i * 15}" for i in range(61)]
    with prometheus_of(tmp_path, "\n".join([*lines, "# EOF", ""]), RULES) as address:
        recorded = "specsvc_figure:breakeven_objective_missed:share_5m"
        until("the recording rules are evaluated", lambda: series_of(address, recorded) or None)
        for panel in (panel for panels in ROWS.values() for panel in panels):
            for line in panel.lines:
                name = "plain" if "vllm:" in line.query else "chat"
                query = line.query.replace("$namespace", "llm").replace("$service", name)
                assert series_of(address, query.replace("$target", name)), f"{panel.title}: {query}"
                if name == "plain":
                    # With an objective the operator's own figures stand in this picture.
                    aimed = query.replace('specsvc="plain"', 'specsvc="chat"').replace("$target", name)
                    assert not series_of(address, aimed)
        for one in json.loads(dashboard_json())["annotations"]["list"]:
            query = one["expr"].replace("$namespace", "llm").replace("$service", "chat")
            assert series_of(address, query), one["name"]
