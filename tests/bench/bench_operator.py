"""The operator on a real API server: memory, CPU, cycle time and requests at 1, 50 and 1,000 services among 30,000 pods.

API server and etcd are real (`localcluster/`), objects, Prometheus and their sizes as in `large_cluster.py`. The operator is
its own process and measured from outside (`/proc`), by its own /metrics, and by what passes between it and the API server.
Every service has a profile in force and is decided about (mode Recommend), on the present load and on those of the past day.

    .venv/bin/python tests/bench/bench_operator.py                                # the table
    .venv/bin/python tests/bench/bench_operator.py --services 1,50 --foreign 2000 # a smaller one
    .venv/bin/python tests/bench/bench_operator.py --services 50 --namespaced     # the services' namespaces are named, as with Roles
    .venv/bin/python tests/bench/bench_operator.py --against ../old/.venv/bin/python  # another checkout's operator beside it
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aiohttp

from bench.large_cluster import PODS_PER_SERVICE, LargeCluster, ManyPodsPrometheus, account_of, serving
from breakeven_operator.cluster.kubernetes import KubernetesCluster
from breakeven_operator.kinds import SERVICES
from fakes.fleet_metrics import PodTraffic
from localcluster import LocalCluster

CYCLE_S = 15.0
# A window of the model's account, so that what comes with each of them is in it.
_QUIET_S = 300.0
_BUSY_S, _LOOK_S = 60.0, 0.1
# The nine kinds that are watched, and two questions whether the CRDs are there.
_KINDS = 11
_CRDS = Path(__file__).resolve().parents[2] / "crds"
_METRICS = (
    "breakeven_cycle_duration_seconds_count",
    "breakeven_cycle_duration_seconds_sum",
    "breakeven_services_left",
    "breakeven_api_requests_total",
)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Goal(NamedTuple):
    """A line of the table; `at` is the number of services that the bound is promised for."""

    label: str
    key: str
    bounds: dict[int, float]


GOALS = (
    Goal("resident memory, MB", "memory_mb", {1: 110.0, 50: 130.0, 1000: 300.0}),
    Goal("largest memory since its start, MB", "peak_mb", {}),
    Goal("CPU when nothing changes, % of a core", "quiet_cpu_percent", {1000: 5.0}),
    Goal("CPU when all loads change, % of a core", "busy_cpu_percent", {}),
    Goal("longest cycle when nothing changes, s", "quiet_cycle_s", {1000: 0.3}),
    Goal("longest cycle when all loads change, s", "busy_cycle_s", {1000: 2.0}),
    Goal(
        "reads of the API server per minute of these, but the Lease's",
        "quiet_reads",
        {1: 0.0, 50: 0.0, 1000: 0.0},
    ),
    Goal("writes per minute, but the Lease's", "quiet_writes", {1: 0.0, 50: 0.0, 1000: 0.0}),
    Goal("kB from the API server per minute", "quiet_kb", {1: 100.0, 50: 100.0, 1000: 100.0}),
    Goal(
        "a Deployment's change seen by a decision after, s",
        "seen_s",
        {1: CYCLE_S, 50: CYCLE_S, 1000: CYCLE_S},
    ),
    Goal("first decision after a restart, s", "first_s", {1000: 20.0}),
    Goal("every service decided about after it, s", "whole_s", {}),
    Goal(
        "reads per kind of object until the first decision, on average", "lists", {1: 1.0, 50: 1.0, 1000: 1.0}
    ),
    Goal("API server's CPU when nothing changes, % of a core", "api_cpu_percent", {}),
    Goal("  more than without the operator", "api_more_percent", {1: 3.0, 50: 3.0, 1000: 3.0}),
    Goal("writes when all loads change, per minute", "busy_writes", {}),
    Goal("Prometheus queries per cycle", "queries", {}),
)


class Wire:
    """Counts what passes between the operator and the API server, byte by byte, without looking inside."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.received = 0
        self.port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer, question = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            self._pump(reader, question, counted=False), self._pump(answer, writer, counted=True)
        )

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool
    ) -> None:
        try:
            while chunk := await reader.read(1 << 16):
                if counted:
                    self.received += len(chunk)
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@dataclass(frozen=True)
class Operator:
    """A running operator."""

    pid: int
    url: str
    started: float

    async def metrics(self) -> dict[str, float]:
        """Sums over labels, by metric name; requests also by verb and by kind of number."""
        # The whole page of a thousand services takes a second to make, which is no part of what is measured.
        asked = [("name[]", name) for name in _METRICS]
        async with aiohttp.ClientSession() as session, session.get(self.url, params=asked) as response:
            text = await response.text()
        found: dict[str, float] = {}
        for name, labels, value in re.findall(r"^(\w+)(\{[^}]*\})? (\S+)$", text, re.MULTILINE):
            found[name] = found.get(name, 0.0) + float(value)
            if verb := re.search(r'verb="(\w+)"', labels):
                key = f"{name}:{verb.group(1)}"
                found[key] = found.get(key, 0.0) + float(value)
        return found

    def memory_mb(self) -> tuple[float, float]:
        """Resident now, and at most since it began."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        now, peak = (int(re.search(rf"{key}:\s+(\d+)", status)[1]) / 1024 for key in ("VmRSS", "VmHWM"))  # type: ignore[index]
        return now, peak


def cpu_s(pid: int) -> float:
    """User and system time of a process, s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@asynccontextmanager
async def operator(
    python: str, kubeconfig: Path, address: str, logs: int, namespaces: Sequence[str], **more: str
) -> AsyncIterator[Operator]:
    """The operator as its own process, for some namespaces; for all of them if none is named.

    Args:
        python: of the checkout whose operator it is.
        kubeconfig: of the cluster.
        address: of the operator's own Prometheus; empty: there is none.
        logs: file descriptor for what it says.
        namespaces: that it watches.
        more: settings by their variables.
    """
    with_port = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = with_port.sockets[0].getsockname()[1]
    with_port.close()
    await with_port.wait_closed()
    settings = {
        "KUBECONFIG": str(kubeconfig),
        "BREAKEVEN_PROMETHEUS_ADDRESS": address,
        "BREAKEVEN_BIND_ADDRESS": "127.0.0.1",
        "BREAKEVEN_PORT": str(port),
        "BREAKEVEN_CYCLE_SECONDS": str(CYCLE_S),
        "BREAKEVEN_LEASE_NAME": f"bench-{port}",
        "BREAKEVEN_WATCH_NAMESPACES": ",".join(namespaces),
        **more,
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("BREAKEVEN_", "PYTHON"))}
    child = await asyncio.create_subprocess_exec(
        python, "-m", "breakeven_operator", "run", env={**inherited, **settings}, stderr=logs
    )
    try:
        yield Operator(child.pid, f"http://127.0.0.1:{port}/metrics", time.monotonic())
    finally:
        child.terminate()
        await child.wait()


async def settled(one: Operator, cycles: int, *, whole: bool = False) -> dict[str, float]:
    """Its metrics after so many cycles of its life.

    Args:
        one: the operator.
        cycles: how many.
        whole: they begin to count when every service was decided about.
    """
    began: float | None = None if whole else 0.0
    while True:
        try:
            found = await one.metrics()
        except aiohttp.ClientError:
            found = {}
        done = found.get("breakeven_cycle_duration_seconds_count", 0.0)
        if began is None and done and not found.get("breakeven_services_left", 0.0):
            began = done - 1
        if began is not None and done - began >= cycles:
            return found
        await asyncio.sleep(0.2)


def first_reads(found: dict[str, float]) -> float:
    """Reads since an operator's start, without those of its Lease: one before it was made, and one at each renewal."""
    reads, watches, renewals = (
        found.get(f"breakeven_api_requests_total:{verb}", 0.0) for verb in ("GET", "WATCH", "PUT")
    )
    return reads + watches - renewals - 1.0


class Minute(NamedTuple):
    """An operator's activity in a while; numbers of requests and bytes per minute."""

    cpu_percent: float
    api_cpu_percent: float
    longest_cycle_s: float
    reads: float
    writes: float
    received_kb: float
    queries_per_cycle: float


class Bench:
    """One control plane with its objects."""

    def __init__(
        self,
        control_plane: LocalCluster,
        prometheus: ManyPodsPrometheus,
        wire: Wire,
        address: str,
        logs: int,
        *,
        namespaced: bool,
    ) -> None:
        self._namespaced = namespaced
        self._api_pid = next(p.pid for p in control_plane.processes() if p.name == "kube-apiserver")
        self._prometheus = prometheus
        self._wire = wire
        self._address = address
        self._logs = logs
        text = control_plane.kubeconfig.read_text()
        self.kubeconfig = control_plane.state_dir / "counted.kubeconfig"
        self.kubeconfig.write_text(re.sub(r"(server: https://127\.0\.0\.1):\d+", rf"\1:{wire.port}", text))

    async def alone(self) -> float:
        """CPU of the API server without the operator, % of a core."""
        before, began = cpu_s(self._api_pid), time.monotonic()
        await asyncio.sleep(_BUSY_S)
        return 100 * (cpu_s(self._api_pid) - before) / (time.monotonic() - began)

    async def calibrate(self, python: str, large: LargeCluster) -> None:
        """Let an operator find every fingerprint and decide, and make the services a day older than they are."""
        async with self._operator(python, large):
            await large.calibrate()
            while True:
                found = await large.cluster.list_all(SERVICES)
                if all(account_of(s) for s in found):
                    break
                await asyncio.sleep(3.0)
        await large.age(half_hours=48)
        # After hours every account is news: each service is written once, and then at a time of its own again.
        async with self._operator(python, large) as one:
            await settled(one, 2, whole=True)
        await large.age(half_hours=1)

    async def measure(self, python: str, large: LargeCluster, alone_percent: float) -> dict[str, float]:
        self._prometheus.spread = 0.0
        async with self._operator(python, large) as one:
            first = await settled(one, 1)
            first_s = time.monotonic() - one.started
            await settled(one, 1, whole=True)
            whole_s = time.monotonic() - one.started
            # Statuses that say what a restarted operator found, and the first answer about the past.
            await settled(one, 6, whole=True)
            quiet = await self._over(one, _QUIET_S)
            memory_mb, peak_mb = one.memory_mb()
            seen_s = await self._seen(large)
            self._prometheus.spread = 0.5
            busy = await self._over(one, _BUSY_S)
        return {
            "memory_mb": memory_mb,
            "peak_mb": peak_mb,
            "quiet_cpu_percent": quiet.cpu_percent,
            "busy_cpu_percent": busy.cpu_percent,
            "quiet_cycle_s": quiet.longest_cycle_s,
            "busy_cycle_s": busy.longest_cycle_s,
            "quiet_reads": quiet.reads,
            "quiet_writes": quiet.writes,
            "quiet_kb": quiet.received_kb,
            "busy_writes": busy.writes,
            "seen_s": seen_s,
            "first_s": first_s,
            "whole_s": whole_s,
            "lists": first_reads(first) / _KINDS,
            "api_cpu_percent": quiet.api_cpu_percent,
            "api_more_percent": quiet.api_cpu_percent - alone_percent,
            "queries": quiet.queries_per_cycle,
        }

    def _operator(self, python: str, large: LargeCluster) -> AbstractAsyncContextManager[Operator]:
        namespaces = list(large.own) if self._namespaced else []
        return operator(python, self.kubeconfig, self._address, self._logs, namespaces)

    async def _over(self, one: Operator, length_s: float) -> Minute:
        before, api_s, began = await one.metrics(), cpu_s(self._api_pid), time.monotonic()
        own_s, received, asked = cpu_s(one.pid), self._wire.received, self._prometheus.asked.present
        longest_s, seen = 0.0, before
        while time.monotonic() - began < length_s:
            await asyncio.sleep(1.0)
            newer = await one.metrics()
            cycles = _grown(seen, newer, "breakeven_cycle_duration_seconds_count")
            if cycles:
                longest_s = max(
                    longest_s, _grown(seen, newer, "breakeven_cycle_duration_seconds_sum") / cycles
                )
                seen = newer
        after, elapsed_s = await one.metrics(), time.monotonic() - began
        # Renewing the Lease: a GET and a PUT each time, whatever the cycles do.
        renewals = _grown(before, after, "breakeven_api_requests_total:PUT")
        reads = sum(
            _grown(before, after, f"breakeven_api_requests_total:{verb}") for verb in ("GET", "WATCH")
        )
        writes = sum(
            _grown(before, after, f"breakeven_api_requests_total:{verb}") for verb in ("PATCH", "POST")
        )
        return Minute(
            100 * (cpu_s(one.pid) - own_s) / elapsed_s,
            100 * (cpu_s(self._api_pid) - api_s) / elapsed_s,
            longest_s,
            60.0 * (reads - renewals) / elapsed_s,
            60.0 * writes / elapsed_s,
            60.0 * (self._wire.received - received) / 1000 / elapsed_s,
            (self._prometheus.asked.present - asked)
            / max(1.0, _grown(before, after, "breakeven_cycle_duration_seconds_count")),
        )

    async def _seen(self, large: LargeCluster) -> float:
        """From a change of a Deployment to the status that tells of it, s; of several changes the slowest."""
        slowest_s = 0.0
        for replicas in (PODS_PER_SERVICE + 1, PODS_PER_SERVICE):
            await large.scale(0, replicas)
            changed = time.monotonic()
            for _ in range(round(4 * CYCLE_S / _LOOK_S)):
                if await large.replicas_told(0) == replicas:
                    break
                await asyncio.sleep(_LOOK_S)
            slowest_s = max(slowest_s, time.monotonic() - changed)
        return slowest_s


def _grown(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)


async def bench(
    counts: list[int], foreign: int, pythons: dict[str, str], logs: int, *, namespaced: bool
) -> bool:
    traffic = PodTraffic(rps=3.0, latency_s=1.18)
    with LocalCluster() as control_plane:
        for crd in sorted(_CRDS.glob("*.yaml")):
            control_plane.kubectl("apply", "--server-side", "-f", str(crd))
        for name in ("kube-controller-manager", "kube-scheduler"):
            control_plane.stop_process(name)
        cluster = await KubernetesCluster.connect(str(control_plane.kubeconfig))
        large = LargeCluster(cluster)
        prometheus = ManyPodsPrometheus(large, traffic)
        wire = Wire(int(control_plane.api_url.rpartition(":")[2]))
        rows: dict[tuple[int, str], dict[str, float]] = {}
        async with serving(prometheus) as address, wire.open():
            one = Bench(control_plane, prometheus, wire, address, logs, namespaced=namespaced)
            await large.begin()
            began = time.monotonic()
            await large.add_foreign(foreign)
            _say(f"{foreign} foreign pods after {time.monotonic() - began:.0f} s")
            for count in counts:
                await large.add_services(count)
                _say(
                    f"{count} services, {count * PODS_PER_SERVICE} pods after {time.monotonic() - began:.0f} s"
                )
                await one.calibrate(next(iter(pythons.values())), large)
                _say(f"calibrated and decided after {time.monotonic() - began:.0f} s")
                alone = await one.alone()
                for name, python in pythons.items():
                    rows[count, name] = await one.measure(python, large, alone)
                    _say(f"{count} services, {name}: {rows[count, name]}")
        await cluster.close()
    return show(rows, foreign)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def show(rows: dict[tuple[int, str], dict[str, float]], foreign: int) -> bool:
    """Print the table; False when a goal of this checkout was missed."""
    print(  # noqa: T201
        f"operator: {PODS_PER_SERVICE} pods per service, {foreign} of others; nothing changes for {_QUIET_S:g} s, all loads for {_BUSY_S:g} s, "
        f"cycles every {CYCLE_S:g} s"
    )
    print(f"{'':60s}" + "".join(f"{f'{count} {name}':>13s}" for count, name in rows) + "   goals")  # noqa: T201
    all_met = True
    for goal in GOALS:
        figures = "".join(f"{row[goal.key]:13.3g}" for row in rows.values())
        missed = [
            count
            for (count, name), row in rows.items()
            if name == "now" and row[goal.key] > goal.bounds.get(count, float("inf"))
        ]
        all_met &= not missed
        bounds = " / ".join(f"{bound:g}" for bound in goal.bounds.values())
        words = f"  MISSED at {', '.join(map(str, missed))}" if missed else ""
        print(f"{goal.label:60s}{figures}   {bounds}{words}")  # noqa: T201
    return all_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--services", default="1,50,1000", help="numbers of services")
    parser.add_argument("--foreign", type=int, default=20000, help="pods of others")
    parser.add_argument("--against", default="", help="Python of another checkout, measured beside this one")
    parser.add_argument("--namespaced", action="store_true", help="the operator is told its namespaces")
    parser.add_argument("--log", default=os.devnull, help="where the operator's log goes")
    given = parser.parse_args()
    logs = os.open(given.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    pythons = {"now": sys.executable} | ({"before": given.against} if given.against else {})
    counts = [int(n) for n in given.services.split(",")]
    all_met = asyncio.run(bench(counts, given.foreign, pythons, logs, namespaced=given.namespaced))
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main())
