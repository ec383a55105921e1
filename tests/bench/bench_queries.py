"""The cost of a cycle's questions about 1,000 services: size of query and answer, seconds of Prometheus and of the operator.

A real Prometheus (`localcluster/`) holds the series, twelve minutes at 30 s. Each question is put by the operator's own client
and read by its own reader, in a process of its own. Another checkout's questions are put to the same server in between
(A B B A): what is printed is the median of the rounds.

    .venv/bin/python tests/bench/bench_queries.py                             # 1,000 services of two pods
    .venv/bin/python tests/bench/bench_queries.py --services 100 --pods 4
    git worktree add ../old COMMIT
    .venv/bin/python tests/bench/bench_queries.py --against ../old            # that checkout beside it
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from operatorcluster.made_up_prometheus import prometheus_of

ROOT = Path(__file__).resolve().parents[2]
_SECONDS, _SCRAPE_S, _WINDOW_S = 720, 30, 300
_SERVICES_PER_NAMESPACE = 10
# Services with objectives, and edges of each of their three histograms.
_WITH_OBJECTIVES, _EDGES = 100, 22
_COUNTERS = (
    "request_success_total", "time_to_first_token_seconds_count", "time_to_first_token_seconds_sum",
    "e2e_request_latency_seconds_count", "e2e_request_latency_seconds_sum", "generation_tokens_total",
    "inter_token_latency_seconds_count", "request_prompt_tokens_sum", "request_generation_tokens_sum",
    "request_generation_tokens_count", "spec_decode_num_drafts_total", "inter_token_latency_seconds_sum",
    "prompt_tokens_total", "prefix_cache_hits_total",
)  # fmt: skip
_HISTOGRAMS = (
    "e2e_request_latency_seconds",
    "time_to_first_token_seconds",
    "request_time_per_output_token_seconds",
)
_FIGURES = ("queries", "query, kB", "answer, kB", "Prometheus, CPU s", "operator, CPU s", "whole, s")

# Runs with the packages of either checkout: what both have.
_ASKING = """
import asyncio, inspect, json, sys, time
from pathlib import Path
try:
    from breakeven_operator.cluster.prometheus_questions import PODS_PER_QUERY, parted
except ImportError:
    from breakeven_operator.cluster.prometheus_answers import PODS_PER_QUERY, parted
from breakeven_operator.cluster.prometheus_api import PrometheusClient
from breakeven.serving.promql import EngineSeries
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import PrometheusAccess
from breakeven_operator.observing.fleet_query import fleet_query, past_query, roll_query, sums_query
from breakeven_operator.observing.latency_metrics import latency_query, read_latencies
from breakeven_operator.observing.live_metrics import read_fleet
from breakeven_operator.observing.past_metrics import read_past
from breakeven_operator.observing.roll_metrics import read_roll
import breakeven_operator

# An older checkout takes matchers.
EVERY = EngineSeries() if "engines" in inspect.signature(fleet_query).parameters else []

given = json.loads(sys.argv[1])
assert str(given["root"]) in breakeven_operator.__file__, breakeven_operator.__file__
sizes = given["pods_by_namespace"]
parts = list(parted(sizes, PODS_PER_QUERY))
rolled = [tuple(one) for one in given["targets"][:3]]
wanted = [NamespacedName(*one) for one in given["targets"][: given["objectives"]]]
window_s = given["window_s"]
QUESTIONS = {
    "all services, by ReplicaSet": (False, read_fleet, [sums_query(part, EVERY, window_s, 120) for part in parts]),
    "500 pods, pod by pod": (False, read_fleet, [fleet_query(parts[0], EVERY, window_s, 120)]),
    "latencies of 100 services": (False, read_latencies, [latency_query(wanted, EVERY, window_s)]),
    "past of 300 services": (True, read_past, [past_query(list(sizes)[:30], EVERY, 600, 300)]),
    "three rolls": (True, read_roll, [roll_query(rolled, EVERY, 600, 60)]),
}

def prometheus_s():
    fields = Path(f"/proc/{given['pid']}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / given["ticks"]

async def main():
    try:
        client = PrometheusClient(None, timeout_s=60.0, allowed=("127.0.0.1",))
    except TypeError:
        client = PrometheusClient(None, timeout_s=60.0)
    source, found = PrometheusAccess(given["address"]), {}
    for name, (past, read, queries) in QUESTIONS.items():
        began, theirs, ours = time.monotonic(), prometheus_s(), time.process_time()
        for promql in queries:
            read(await (client.query_past if past else client.query)(source, promql))
        spent = prometheus_s() - theirs, time.process_time() - ours, time.monotonic() - began
        found[name] = {"queries": queries, "spent": spent}
    await client.close()
    print(json.dumps(found))

asyncio.run(main())
"""


class Fleet:
    """The names of services, their pods and namespaces."""

    def __init__(self, services: int, pods: int) -> None:
        self.targets = [
            (f"llm-{number // _SERVICES_PER_NAMESPACE}", f"vllm-{number}") for number in range(services)
        ]
        self._letters = [f"{letter}{letter}x2z" for letter in "bcdfghjklm"[:pods]]
        self.pods_by_namespace: dict[str, int] = {}
        for namespace, _ in self.targets:
            self.pods_by_namespace[namespace] = self.pods_by_namespace.get(namespace, 0) + pods

    def samples(self, end_s: int) -> Iterator[str]:
        """Lines of OpenMetrics, family by family."""
        times_s = range(end_s - _SECONDS, end_s + 1, _SCRAPE_S)
        own = 'model_name="chat",engine="0",job="podmonitor",instance="10.0.0.7:8000",container="vllm"'
        positions = [f'{own},position="{place}"' for place in range(3)]
        edges = [f'{own},le="{edge}"' for edge in (*range(1, _EDGES), "+Inf")]
        everywhere = [("up", ['job="podmonitor"'], 0)]
        everywhere += [
            (f"vllm:{name}", [own], 0) for name in ("num_requests_running", "num_requests_waiting")
        ]
        everywhere += [(f"vllm:{name}", [own], 3) for name in _COUNTERS]
        everywhere += [("vllm:spec_decode_num_accepted_tokens_per_pos_total", positions, 1)]
        families = [(*one, self._pods(None)) for one in everywhere]
        families += [(f"vllm:{name}_bucket", edges, 3, self._pods(_WITH_OBJECTIVES)) for name in _HISTOGRAMS]
        for name, labels, per_s, pods in families:
            for pod in pods:
                for more in labels:
                    series = f"{name}{{{pod},{more}}}"
                    yield from (f"{series} {1 + per_s * (at_s - times_s[0])} {at_s}\n" for at_s in times_s)
        yield "# EOF\n"

    def _pods(self, services: int | None) -> list[str]:
        """Labels of the pods of the first services, or of all."""
        return [
            f'namespace="{namespace}",pod="{name}-5d4f8c6b7d-{letters}"'
            for namespace, name in self.targets[:services]
            for letters in self._letters
        ]


def asked(root: Path, given: Mapping[str, object]) -> dict[str, dict[str, list[float]]]:
    """The cost of one round of a checkout's questions."""
    paths = os.pathsep.join(str(root / folder) for folder in ("tuner", "operator"))
    done = subprocess.run(
        [sys.executable, "-c", _ASKING, json.dumps({**given, "root": str(root)})],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return dict(json.loads(done.stdout))


def answer_bytes(address: str, promql: str) -> int:
    """Length of the answer."""
    with urlopen(f"{address}/api/v1/query", data=urlencode({"query": promql}).encode()) as answer:
        return len(answer.read())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2, help="of each service, ten at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout")
    arguments = parser.parse_args()
    fleet = Fleet(arguments.services, arguments.pods)
    checkouts = {"here": ROOT} | ({"there": arguments.against.resolve()} if arguments.against else {})
    with tempfile.TemporaryDirectory() as folder:
        text = "".join(fleet.samples(int(time.time())))
        with prometheus_of(Path(folder), text) as address:
            del text
            given = {
                "address": address, "pid": int((Path(folder) / "pid").read_text()), "ticks": os.sysconf("SC_CLK_TCK"),
                "targets": fleet.targets, "pods_by_namespace": fleet.pods_by_namespace, "objectives": _WITH_OBJECTIVES,
                "window_s": _WINDOW_S,
            }  # fmt: skip
            order = [*checkouts, *reversed(checkouts)]
            rounds: dict[str, list[dict[str, dict[str, list[float]]]]] = {name: [] for name in checkouts}
            asked(ROOT, given)
            for _ in range(arguments.rounds):
                for name in order:
                    rounds[name].append(asked(checkouts[name], given))
            lines = [
                f"{arguments.services} services of {arguments.pods} pods, medians of {len(rounds['here'])} rounds"
            ]
            for question in rounds["here"][0]:
                lines.append(f"\n{question}\n{'':8}" + "".join(f"{figure:>20}" for figure in _FIGURES))
                for name, found in rounds.items():
                    queries = [str(one) for one in found[0][question]["queries"]]
                    answers = sum(answer_bytes(address, one) for one in queries)
                    spent = [statistics.median(one[question]["spent"][i] for one in found) for i in range(3)]
                    row = [len(queries), sum(map(len, queries)) / 1000, answers / 1000, *spent]
                    lines.append(f"{name:8}" + "".join(f"{figure:>20.4g}" for figure in row))
            print("\n".join(lines))  # noqa: T201


if __name__ == "__main__":
    main()
