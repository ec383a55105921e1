"""PromQL in memory against a real Prometheus: the operator's own queries, on series drawn at random."""

from __future__ import annotations

import json
import math
import random
import time
import urllib.parse
import urllib.request
from collections import Counter

import pytest

from breakeven.past.courses import POD, questions
from breakeven.serving.promql import (
    COUNTED,
    DRAFTED,
    PREFIX,
    RUNNING,
    WAITING,
    EngineSeries,
    Matcher,
    by_replica,
)
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import (
    arrivals_query,
    fleet_query,
    past_query,
    roll_query,
    sums_query,
)
from breakeven_operator.observing.latency_metrics import latency_query
from breakeven_operator.rolls.roll_failures import failures_query
from fakes.held_series import STALE, NativeHistogram, SeriesStore
from fakes.promql_evaluation import evaluate, evaluate_range
from operatorcluster.made_up_prometheus import prometheus_of_store

pytestmark = pytest.mark.always

SECONDS, WINDOW_S = 1500, 300
PODS = (
    "chat-7d9f8b6c5d-bbbbb",
    "chat-7d9f8b6c5d-ccccc",
    "chat-64bd5fcf9-zzzzz",
    "code-7d9f8b6c5d-ddddd",
    "bare",
)
COPIES = ({"job": "a"}, {"job": "b", "instance": "10.0.0.7:8000"}, {"job": "a", "prometheus_replica": "b"})
PLAIN = sorted(
    {one.name for one in COUNTED.values() if one.suffix == "_total"}
    | {"generation_tokens_created", DRAFTED.name}
)
HISTOGRAMS = sorted({one.family for one in COUNTED.values() if one.suffix != "_total"})
TARGETS = [("llm", "chat"), ("llm", "code")]
INSTANT = {
    "fleet": fleet_query(["llm", "other"], EngineSeries(), WINDOW_S, 120),
    "fleet with a matcher": fleet_query(
        ["llm"], EngineSeries((Matcher("job", "!=", "b"),)), WINDOW_S, 60, workloads=["chat"]
    ),
    "sums": sums_query(["llm"], EngineSeries(), WINDOW_S, 120),
    "latencies": latency_query([NamespacedName(*one) for one in TARGETS], EngineSeries(), WINDOW_S),
    **{
        f"history's {stat}": promql
        for stat, promql in questions(EngineSeries((), PREFIX, POD, by_replica), WINDOW_S).items()
    },
}
RANGES = {
    "past": past_query(["llm"], EngineSeries(), 900, 300),
    "roll": roll_query(TARGETS, EngineSeries(), 600, 60),
    "arrivals": arrivals_query(TARGETS, EngineSeries(), WINDOW_S // 2),
    "failures": failures_query(TARGETS, EngineSeries(), 600, 60),
}


class Drawn:
    """A fleet's series with gaps, restarts, NaN, markers of staleness, copies, native histograms and ends, by a seed."""

    def __init__(self, seed, end_s):
        self._draw, self._end_s, self.store = random.Random(seed), end_s, SeriesStore()
        for pod in PODS:
            for engine in self._draw.choice((["0"], ["0", "1"], [""])):
                for copy in self._draw.sample(COPIES, self._draw.choice((1, 1, 2, 3))):
                    model = {"model_name": "chat", "engine": engine} if engine else {"model_name": "chat"}
                    self._engine({"namespace": "llm", "pod": pod, **model, **copy})
        self._add(
            "up",
            {"namespace": "llm", "pod": "mute-7d9f8b6c5d-fffff", "job": "a"},
            lambda: float(self._draw.random() < 0.7),
        )

    def _engine(self, labels):
        """Some of an engine's series are missing; its histograms are classic, native or both."""
        for name in PLAIN:
            if self._draw.random() < 0.85:
                for more in self._labels_of(name):
                    self._add(f"vllm:{name}", labels | more, self._counter())
        for name in (RUNNING, WAITING):
            if self._draw.random() < 0.9:
                self._add(f"vllm:{name}", labels, lambda: float(self._draw.randrange(9)), nan=0.01)
        self._histograms(labels)
        for status in ("2xx", "4xx"):
            own = {"handler": "/v1/completions", "method": "POST", "status": status}
            self._add("http_requests_total", labels | own, self._counter())
        self._add("up", {name: labels[name] for name in ("namespace", "pod", "job")}, lambda: 1.0)

    def _histograms(self, labels):
        form = self._draw.choice(("classic", "native", "both"))
        for family in [*HISTOGRAMS, "request_time_per_output_token_seconds"]:
            if self._draw.random() < 0.15:
                continue
            if form != "native":
                self._add(f"vllm:{family}_count", labels, self._counter())
                self._add(f"vllm:{family}_sum", labels, self._counter())
                for edge in ("0.25", "2.5", "+Inf"):
                    self._add(f"vllm:{family}_bucket", labels | {"le": edge}, self._counter())
            if form != "classic":
                self._add(f"vllm:{family}", labels, self._native())

    def _labels_of(self, name):
        if name == "request_success_total":
            return [{"finished_reason": reason} for reason in ("stop", "length", "error")]
        if "per_pos" in name:
            return [{"position": str(position)} for position in range(2)]
        return [{}]

    def _counter(self):
        count = self._draw.choice((0.0, self._draw.uniform(0, 500)))

        def grown():
            nonlocal count
            count = (
                0.0
                if self._draw.random() < 0.02
                else count + self._draw.choice((0.0, self._draw.uniform(0, 30)))
            )
            return count

        return grown

    def _native(self):
        values: list[float] = []

        def observed():
            if self._draw.random() < 0.02:
                values.clear()
            values.extend(self._draw.uniform(0.01, 5.0) for _ in range(self._draw.randrange(5)))
            return NativeHistogram.of(values)

        return observed

    def _add(self, name, labels, value, nan=0.002):
        if self.store.of(name, labels).values:
            return
        first_s = self._draw.choice((0, 0, 0, self._draw.randrange(SECONDS)))
        last_s = self._draw.choice((SECONDS, SECONDS, SECONDS, self._draw.randrange(SECONDS)))
        every_s, phase_ms = self._draw.choice((15, 15, 30)), self._draw.randrange(9000)
        for at_s in range(first_s, last_s + 1, every_s):
            found, chance = value(), self._draw.random()
            if chance < 0.03:
                continue
            if chance < 0.035:
                found = STALE
            elif chance < 0.035 + nan and not isinstance(found, NativeHistogram):
                found = math.nan
            self.store.add(name, labels, self._end_s - SECONDS + at_s + phase_ms / 1000, found)


def answered(address, promql, at_s):
    form = urllib.parse.urlencode({"query": promql, "time": f"{at_s:.3f}"}).encode()
    with urllib.request.urlopen(f"{address}/api/v1/query", data=form) as answer:
        return json.load(answer)["data"]["result"]


def shown(labels):
    return tuple(sorted((name, value) for name, value in labels.items()))


def same(found, expected):
    return found == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("seed", range(6))
def test_the_operators_queries_mean_in_memory_what_they_mean_to_prometheus(tmp_path, seed):
    end_s = int(time.time()) - 30
    store = Drawn(seed, end_s).store
    draw = random.Random(seed)
    compared: Counter[str] = Counter()
    with prometheus_of_store(tmp_path, store) as address:
        for at_s in (end_s - 0.5, *(round(end_s - draw.uniform(0, 900), 3) for _ in range(4))):
            for name, promql in INSTANT.items():
                real = {shown(one["metric"]): one for one in answered(address, promql, at_s)}
                ours = {shown(labels): value for labels, value in evaluate(store, promql, at_s)}
                assert ours.keys() == real.keys(), (name, at_s)
                compared[name] += len(ours)
                for labels, value in ours.items():
                    where = name, at_s, labels
                    if isinstance(value, NativeHistogram):
                        _, histogram = real[labels]["histogram"]
                        assert same(value.count, float(histogram["count"])), where
                        assert same(value.total, float(histogram["sum"])), where
                        filled = [count for count in value.counts if count]
                        assert same(filled, [float(one[3]) for one in histogram.get("buckets", [])]), where
                    else:
                        assert same(value, float(real[labels]["value"][1])), where
            for name, promql in RANGES.items():
                real = {shown(one["metric"]): one["values"] for one in answered(address, promql, at_s)}
                ours = {shown(one.labels): one for one in evaluate_range(store, promql, at_s)}
                assert ours.keys() == real.keys(), (name, at_s)
                compared[name] += len(ours)
                for labels, one in ours.items():
                    assert [at_ms / 1000 for at_ms in one.times_ms] == [at for at, _ in real[labels]], (
                        name,
                        labels,
                    )
                    assert same(list(one.values), [float(text) for _, text in real[labels]]), (
                        name,
                        at_s,
                        labels,
                    )
    assert all(compared[name] > 5 for name in (*INSTANT, *RANGES)), compared
