"""Objects and answers of tenants who mean harm, all at once: three ways in which they made the operator run out of memory.

* One ConfigMap of 263 KiB whose members, each under its whole path, would be 600 MiB; a run imports it.
* 86 ConfigMaps of 1 MiB, a megabyte of which takes four in memory; two runs name 43 of them each, a third names 15, which is all
  that a run may have.
* Sixteen services, four to a namespace, that name a Prometheus of their own: it answers with as many rows as are
  read, with more rows, with an answer without end, or with a byte per second.

A run that has ended is deleted and made again, so that what it costs is paid all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.bench_operator import Operator, cpu_s, operator
from bench.large_cluster import LargeCluster
from breakeven_operator.cluster.kubernetes import KubernetesCluster
from breakeven_operator.kinds import CONFIG_MAPS, RUNS, SERVICES, Ref
from fakes.fleet_metrics import FakePrometheus, PodTraffic
from fakes.manual_clock import FakeClock
from localcluster import LocalCluster

SERVICES_OF_ALL, TO_A_NAMESPACE = 16, 4
FILES, FILES_OF_A_RUN = 86, 43
# The rest of the 16 MiB that a run may read.
_FILES_THAT_PASS = 15
_MEMBERS, _KEY_LENGTH = 2500, 250_000
_MIB = 1 << 20
# The largest answer that is read of a server that a service names.
_READ = 4 * _MIB
_LARGEST_FILE = _MIB - 512
_PATIENCE_S = 180.0
# A file that is none, files that are too many, arms that there are not.
_WAYS_TO_END = 3
MOST_MIB = 400
"""Promised: resident memory of the operator under all of it. The chart's limit is 512 MiB."""
_CRDS = Path(__file__).resolve().parents[2] / "crds"


def quadratic_file() -> str:
    """A load generator's result whose one member has a long name and many members."""
    members = ",".join(f'"{number:x}":1' for number in range(_MEMBERS))
    return f'{{"request_throughput":1,"completed":1,"{"x" * _KEY_LENGTH}":{{{members}}}}}'


def wide_file() -> str:
    """A text of which one character makes all others take four bytes."""
    return "\U0001f600" + "x" * (_LARGEST_FILE - 4)


def rows_of(kind: str, row: str, size: int) -> bytes:
    """A whole answer of equal rows, as large as may be."""
    head, tail = f'{{"status":"success","data":{{"resultType":"{kind}","result":[', "]}}"
    count = (size - len(head) - len(tail)) // (len(row) + 1)
    return f"{head}{','.join([row] * count)}{tail}".encode()


def plausible_rows(namespace: str, pods: list[str], size: int) -> bytes:
    """Serves as many series as are read, each of a pod that exists and of an engine that does not."""
    clock = FakeClock()
    fake = FakePrometheus(cluster=None, clock=clock, traffic=PodTraffic())  # type: ignore[arg-type]
    ahead_s = time.time() - clock.now().timestamp()
    rows: list[str] = []
    length, engine = 0, 0
    while True:
        for pod in pods:
            for series in fake.series_of({"metadata": {"namespace": namespace, "name": pod}}):
                row = json.dumps(
                    {
                        "metric": {**series.labels, "engine": str(engine)},
                        "value": [time.time(), str(series.value + ahead_s)],
                    },
                    separators=(",", ":"),
                )
                length += len(row) + 1
                if length > size - 256:
                    return f'{{"status":"success","data":{{"resultType":"vector","result":[{",".join(rows)}]}}}}'.encode()
                rows.append(row)
        engine += 1


@dataclass
class HostilePrometheus:
    """Answers by the number in its path.

    Attributes:
        asked: queries by what they were answered with.
    """

    own: dict[str, list[str]]
    asked: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._vector = rows_of("vector", '{"metric":{"a":""},"value":[0,"1"]}', _READ)
        self._matrix = rows_of("matrix", '{"metric":{"a":""},"values":[[0,"1"]]}', _READ)
        self._large = rows_of("vector", '{"metric":{"a":""},"value":[0,"1"]}', 15 * _MIB)
        self._plausible = {name: plausible_rows(name, pods, _READ) for name, pods in self.own.items()}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        number = int(request.match_info["number"])
        query = str((request.query or await request.post())["query"])
        if query.endswith("]"):
            self.asked["largest answer about the past"] += 1
            return web.Response(body=self._matrix, content_type="application/json")
        match number % TO_A_NAMESPACE:
            case 0:
                self.asked["largest answer"] += 1
                return web.Response(body=self._vector, content_type="application/json")
            case 1:
                self.asked["largest answer about its pods"] += 1
                body = self._plausible[f"llm-{number // TO_A_NAMESPACE}"]
                return web.Response(body=body, content_type="application/json")
            case 2:
                self.asked["too large"] += 1
                return web.Response(body=self._large, content_type="application/json")
            case _ if number % 8 == TO_A_NAMESPACE - 1:
                self.asked["without end"] += 1
                return await self._on_and_on(request, b" " * 65536, 0.0)
            case _:
                self.asked["a byte per second"] += 1
                return await self._on_and_on(request, b" ", 1.0)

    async def _on_and_on(self, request: web.Request, chunk: bytes, pause_s: float) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(chunk)
                await asyncio.sleep(pause_s)
        return response

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Its URL while it serves."""
        app = web.Application()
        app.add_routes([web.route("*", "/{number}/api/v1/query", self.answer)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()


@dataclass(frozen=True)
class Seen:
    """The measurements of the operator.

    Attributes:
        base_mib, peak_mib: resident memory before the attacks and at most.
        family_mib: the most that it and its children had together, pages that they share counted once.
        cycles: while it was attacked; mean_s and longest_s: their times.
        cpu_percent: of a core.
        runs: that it read and ended, by their reason.
        asked: queries by their answers.
    """

    base_mib: float
    peak_mib: float
    family_mib: float
    cycles: int
    mean_s: float
    longest_s: float
    cpu_percent: float
    runs: dict[str, int]
    asked: dict[str, int]


async def attacked(python: str, length_s: float, logs: int, cycle_s: float = 1.0) -> Seen:
    """Run the operator under all attacks for a while.

    Args:
        python: of the checkout whose operator it is.
        length_s: from the beginning of the attacks; longer if by then not all of them have been met.
        logs: file descriptor for what it says.
        cycle_s: time between its cycles.
    """
    with LocalCluster() as control_plane:
        control_plane.kubectl("apply", "--server-side", f"--filename={_CRDS}")
        control_plane.until_established()
        for name in ("kube-controller-manager", "kube-scheduler"):
            control_plane.stop_process(name)
        cluster = await KubernetesCluster.connect(str(control_plane.kubeconfig))
        large = LargeCluster(cluster, to_a_namespace=TO_A_NAMESPACE, to_a_service=1)
        await large.begin()
        await large.add_services(SERVICES_OF_ALL)
        prometheus = HostilePrometheus(large.own)
        tenants = _Tenants(cluster)
        settings = {
            "BREAKEVEN_CYCLE_SECONDS": f"{cycle_s:g}",
            "BREAKEVEN_PROMETHEUS_ALLOWED_ADDRESSES": "127.0.0.1",
            "BREAKEVEN_MAX_PARALLEL_CALIBRATIONS": "4",
        }
        async with prometheus.serving() as url:
            kubeconfig = control_plane.kubeconfig
            async with operator(python, kubeconfig, "", logs, [], **settings) as one:
                await _cycles(one, 3)
                base_mib, _ = one.memory_mb()
                await tenants.store(large, url)
                seen = await _watched(one, tenants, length_s)
        await cluster.close()
        return Seen(base_mib, *seen, runs=dict(tenants.ended), asked=dict(prometheus.asked))


async def _watched(
    one: Operator, tenants: _Tenants, length_s: float
) -> tuple[float, float, int, float, float, float]:
    """Peak, family, cycles, their mean and longest time, CPU."""
    before, began, used_s = await one.metrics(), time.monotonic(), cpu_s(one.pid)
    seen, longest_s, family_mib = before, 0.0, 0.0
    while (elapsed_s := time.monotonic() - began) < length_s or (
        # On a machine with other work a cycle may take as long as all of it.
        elapsed_s < _PATIENCE_S and (seen[_COUNT] - before[_COUNT] < 2 or len(tenants.ended) < _WAYS_TO_END)
    ):
        await asyncio.sleep(0.2)
        await tenants.again()
        family_mib = max(family_mib, _family_mib(one.pid))
        newer = await one.metrics()
        if cycles := newer[_COUNT] - seen[_COUNT]:
            longest_s = max(longest_s, (newer[_SUM] - seen[_SUM]) / cycles)
            seen = newer
    cycles = seen[_COUNT] - before[_COUNT]
    _, peak_mib = one.memory_mb()
    cpu_percent = 100 * (cpu_s(one.pid) - used_s) / (time.monotonic() - began)
    mean_s = (seen[_SUM] - before[_SUM]) / max(1.0, cycles)
    return peak_mib, family_mib, int(cycles), mean_s, longest_s, cpu_percent


_COUNT, _SUM = "breakeven_cycle_duration_seconds_count", "breakeven_cycle_duration_seconds_sum"


async def _cycles(one: Operator, count: int) -> None:
    while True:
        with contextlib.suppress(OSError):
            if (await one.metrics()).get(_COUNT, 0.0) >= count:
                return
        await asyncio.sleep(0.2)


def _family_mib(pid: int) -> float:
    """Memory of a process and its descendants, pages that several have counted in parts."""
    total, waiting = 0.0, [pid]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):
            waiting += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return total


class _Tenants:
    """The objects that the tenants store, and store again."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self._runs: dict[str, dict[str, Any]] = {}
        self._made = 0
        self.ended: Counter[str] = Counter()

    async def store(self, large: LargeCluster, url: str) -> None:
        """The files, then all at once the services' servers and the runs."""
        namespace, arms = large.home(0), ["none", *(f"m{j}/{k}" for j in range(6) for k in range(1, 8))]
        await self._file(namespace, "quadratic", quadratic_file())
        text = wide_file()
        for number in range(FILES):
            await self._file(namespace, f"wide-{number}", text)
        both = ["none", "eagle/3"]
        imports = {
            "service-0": [_import(arm, "quadratic") for arm in both],
            "service-1": [_import(arms[i], f"wide-{i}") for i in range(FILES_OF_A_RUN)],
            "service-2": [_import(arms[i], f"wide-{i + FILES_OF_A_RUN}") for i in range(FILES_OF_A_RUN)],
            "service-3": [_import(arms[i], f"wide-{i}") for i in range(_FILES_THAT_PASS)],
        }
        for number in range(SERVICES_OF_ALL):
            meta = {"namespace": large.home(number), "name": f"service-{number}"}
            spec = {
                "metricsSource": {"prometheus": {"address": f"{url}/{number}"}},
                "updatePolicy": {"mode": "Disabled", "lookbackSeconds": 86400},
            }
            await self._cluster.apply(SERVICES, {"metadata": meta, "spec": spec}, force=True, manager="bench")
        for service, files in imports.items():
            await self._run(namespace, service, files)

    async def again(self) -> None:
        """A run that has ended is made again."""
        for run in await self._cluster.list_all(RUNS, "llm-0"):
            status, name = run.get("status") or {}, run["metadata"]["name"]
            if status.get("finishedTime") and name in self._runs:
                wanted = self._runs.pop(name)
                self.ended[f"{status['reason']}: {status['message'][:90]}"] += 1
                await self._cluster.delete(Ref(RUNS, "llm-0", name, ""))
                await self._run("llm-0", wanted["serviceRef"]["name"], wanted["importFrom"])

    async def _file(self, namespace: str, name: str, text: str) -> None:
        await self._cluster.create(
            CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": name}, "data": {"k": text}}
        )

    async def _run(self, namespace: str, service: str, files: list[dict[str, Any]]) -> None:
        self._made += 1
        name, spec = f"{service}-{self._made}", {"serviceRef": {"name": service}, "importFrom": files}
        self._runs[name] = spec
        meta = {"namespace": namespace, "name": name}
        head = {"apiVersion": RUNS.api_version, "kind": RUNS.kind}
        await self._cluster.create(RUNS, {**head, "metadata": meta, "spec": spec})


def _import(arm: str, name: str) -> dict[str, Any]:
    return {"arm": arm, "configMap": {"name": name, "keys": ["k"]}}
