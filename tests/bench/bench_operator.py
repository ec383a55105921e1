"""The operator on a real control plane: memory, idle CPU, requests and queries per cycle, cycle time; 1 and 50 services.

API server, etcd, controllers and scheduler are real (localcluster/); the operator is its own process, measured by
its own /metrics. Pods are bound by the real scheduler to a Node without an agent, and their status is written here:
fifty engines would measure this machine. A stand-in for Prometheus answers each query with the series of every pod.
Every service has a profile in force and is decided about in every cycle (mode Recommend), on the present load and on
those of the past day.
"""

from __future__ import annotations

import asyncio
import copy
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiohttp
from aiohttp import web

from breakeven_operator.adapters.kubernetes import KubernetesCluster
from breakeven_operator.kinds import DEPLOYMENTS, LEASES, NODES, PODS, PROFILES, SERVICES, Resource
from breakeven_operator.reconcile.fleet_query import WORKLOAD
from fakes.fleet_metrics import FakePrometheus, PodTraffic
from fakes.fleet_world import GPU, SERVICE, TARGET, profile_json
from fakes.kubelet import DIGEST
from localcluster import LocalCluster

NAMESPACE = "bench"
CYCLE_S = 2.0
# A day's loads as the stand-in tells them: as many as there are at the default of updatePolicy.lookbackSeconds.
PAST_LOADS = 288
MEASURE_S = 16.0
GOAL_MB, GOAL_CPU_PERCENT, GOAL_CYCLE_S = 130.0, 1.0, 2.0
_NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
_CRDS = Path(__file__).resolve().parents[2] / "crds"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Machine:
    """The parts a bench needs of a cluster: a Node kept alive, and pods that say they are Ready."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self.cluster = cluster
        self.pods: list[dict[str, Any]] = []

    async def start(self) -> None:
        await self.cluster.create(_NAMESPACES, {"metadata": {"name": NAMESPACE}})
        node = {"metadata": {"name": "a100-0", "labels": {"nvidia.com/gpu.product": GPU}}}
        await self.cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", **node})
        await self.beat()

    async def beat(self) -> None:
        """What a kubelet does to keep its Node Ready."""
        lease = {
            "metadata": {"namespace": "kube-node-lease", "name": "a100-0"},
            "spec": {"holderIdentity": "a100-0", "leaseDurationSeconds": 40, "renewTime": now()},
        }
        await self.cluster.apply(LEASES, lease, force=True)
        size = {"nvidia.com/gpu": "200", "pods": "200", "cpu": "64", "memory": "512Gi"}
        ready = {"type": "Ready", "status": "True", "reason": "Bench", "lastHeartbeatTime": now()[:19] + "Z"}
        status = {"capacity": size, "allocatable": size, "conditions": [ready]}
        await self.cluster.apply(
            NODES, {"metadata": {"name": "a100-0"}, "status": status}, force=True, subresource="status"
        )

    async def run_pods(self, count: int) -> None:
        """Wait for this many bound pods, and say that they are Ready for an hour."""
        while True:
            await self.beat()
            found = await self.cluster.list_all(PODS, NAMESPACE)
            self.pods = [dict(pod) for pod in found if pod["spec"].get("nodeName")]
            if len(self.pods) >= count:
                break
            await asyncio.sleep(0.5)
        since = "2026-01-01T00:00:00Z"
        for pod in self.pods:
            status = {
                "phase": "Running",
                "podIP": "127.1.0.1",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}],
                "containerStatuses": [
                    {
                        "name": "vllm",
                        "image": "vllm",
                        "imageID": DIGEST,
                        "ready": True,
                        "restartCount": 0,
                        "state": {"running": {"startedAt": since}},
                    }
                ],
            }
            meta = {"namespace": NAMESPACE, "name": pod["metadata"]["name"]}
            await self.cluster.apply(
                PODS, {"metadata": meta, "status": status}, force=True, subresource="status"
            )
        self.pods = [dict(pod) for pod in await self.cluster.list_all(PODS, NAMESPACE)]


@dataclass
class Asked:
    """Queries that came in: of the present, and of the past (a subquery's range vector)."""

    present: int = 0
    past: int = 0


@asynccontextmanager
async def prometheus(machine: Machine, traffic: PodTraffic) -> AsyncIterator[tuple[str, Asked]]:
    """A server that answers as Prometheus would for all pods; yields its URL and how often it was asked."""
    fake = FakePrometheus(cluster=None, clock=None, traffic=traffic)  # type: ignore[arg-type]
    asked = Asked()

    def past_loads(pod: dict[str, Any]) -> dict[str, Any]:
        meta = pod["metadata"]
        workload = meta["name"].rsplit("-", 2)[0]
        labels = {"namespace": meta["namespace"], WORKLOAD: workload, "model_name": traffic.model_name}
        now_s = time.time()
        return {"metric": labels, "values": [[now_s, str(traffic.rps)]] * PAST_LOADS}

    async def answer(request: web.Request) -> web.Response:
        if request.query["query"].endswith("]"):
            asked.past += 1
            kind, rows = "matrix", [past_loads(pod) for pod in machine.pods]
        else:
            asked.present += 1
            kind = "vector"
            rows = [
                {"metric": dict(series.labels), "value": [time.time(), str(series.value)]}
                for pod in machine.pods
                for series in fake.series_of(pod)
            ]
        return web.json_response({"status": "success", "data": {"resultType": kind, "result": rows}})

    app = web.Application()
    app.add_routes([web.get("/api/v1/query", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    await runner.cleanup()


async def add_services(cluster: KubernetesCluster, first: int, last: int) -> None:
    for number in range(first, last):
        target, service = copy.deepcopy(TARGET), copy.deepcopy(SERVICE)
        labels = {"app": f"vllm-{number}"}
        target["metadata"] = {"name": f"vllm-{number}", "namespace": NAMESPACE}
        target["spec"] |= {"replicas": 1, "selector": {"matchLabels": labels}}
        target["spec"]["template"]["metadata"]["labels"] = labels
        service["metadata"] = {"name": f"service-{number}", "namespace": NAMESPACE}
        service["spec"]["targetRef"]["name"] = f"vllm-{number}"
        # Disabled until its profile is there: a service without one would start a calibration.
        service["spec"]["updatePolicy"] = {"mode": "Disabled"}
        await cluster.create(DEPLOYMENTS, target)
        await cluster.create(SERVICES, service)


async def calibrate(cluster: KubernetesCluster, count: int) -> None:
    """Give every service a profile of its fingerprint, once the operator has told it, and let it decide."""
    while True:
        services = await cluster.list_all(SERVICES, NAMESPACE)
        prints = {
            s["metadata"]["name"]: s.get("status", {}).get("target", {}).get("fingerprint") for s in services
        }
        if len(prints) == count and all(prints.values()):
            break
        await asyncio.sleep(0.5)
    known = {p["metadata"]["name"] for p in await cluster.list_all(PROFILES, NAMESPACE)}
    for name, fingerprint in prints.items():
        if name in known:
            continue
        spec = {
            "serviceRef": {"name": name},
            "gpuProduct": GPU,
            "fingerprint": fingerprint,
            "createdTime": now()[:19] + "Z",
            "profile": profile_json(),
        }
        meta = {"namespace": NAMESPACE, "name": name}
        body = {"apiVersion": PROFILES.api_version, "kind": PROFILES.kind, "metadata": meta, "spec": spec}
        await cluster.create(PROFILES, body)
        recommend = {"metadata": meta, "spec": {"updatePolicy": {"mode": "Recommend"}}}
        await cluster.apply(SERVICES, recommend, force=True, manager="bench")


@asynccontextmanager
async def operator(kubeconfig: Path, address: str) -> AsyncIterator[str]:
    """The operator as its own process; yields the URL of its metrics."""
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
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("BREAKEVEN_")}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "breakeven_operator",
        "run",
        env={**inherited, **settings},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        child.terminate()
        await child.wait()


async def read(url: str) -> dict[str, float]:
    """Sums over labels, by metric name; leases and statuses apart."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        text = await response.text()
    found: dict[str, float] = {}
    for name, labels, value in re.findall(r"^(\w+)(\{[^}]*\})? (\S+)$", text, re.MULTILINE):
        found[name] = found.get(name, 0.0) + float(value)
        verb = re.search(r'verb="(\w+)"', labels)
        if verb:
            found[f"{name}:{verb.group(1)}"] = found.get(f"{name}:{verb.group(1)}", 0.0) + float(value)
    return found


async def measure(url: str, asked: Asked, machine: Machine) -> dict[str, float]:
    """Let it settle, then compare two readings of its own metrics; `asked.past` counts from the operator's start."""
    for _ in range(120):
        try:
            if (await read(url)).get("breakeven_cycle_duration_seconds_count", 0) >= 3:
                break
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.5)
    # The statuses of a first cycle are written, and with them wakes are done with.
    await asyncio.sleep(2 * CYCLE_S)
    before, queries, started = await read(url), asked.present, time.monotonic()
    while time.monotonic() - started < MEASURE_S:
        await machine.beat()
        await asyncio.sleep(4)
    after, elapsed_s = await read(url), time.monotonic() - started

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    cycles = grown("breakeven_cycle_duration_seconds_count")
    # Renewing the Lease: a GET and a PUT each time, whatever the cycles do.
    renewals = grown("breakeven_api_requests_total:PUT")
    return {
        "memory_mb": after["process_resident_memory_bytes"] / 2**20,
        "cpu_percent": 100 * grown("process_cpu_seconds_total") / elapsed_s,
        "cpu_ms_per_cycle": 1000 * grown("process_cpu_seconds_total") / cycles,
        "cycle_s": grown("breakeven_cycle_duration_seconds_sum") / cycles,
        "reads": (grown("breakeven_api_requests_total:GET") - renewals) / cycles,
        "writes": (grown("breakeven_api_requests_total:PATCH") + grown("breakeven_api_requests_total:POST"))
        / cycles,
        "queries": (asked.present - queries) / cycles,
        "past_queries": asked.past,
        "cycles": cycles,
    }


async def bench() -> bool:
    with LocalCluster() as control_plane:
        for crd in sorted(_CRDS.glob("*.yaml")):
            control_plane.kubectl("apply", "--server-side", "-f", str(crd))
        cluster = await KubernetesCluster.connect(str(control_plane.kubeconfig))
        machine = Machine(cluster)
        await machine.start()
        rows: dict[tuple[int, str], dict[str, float]] = {}
        traffic = PodTraffic(rps=3.0, latency_s=1.18)
        async with prometheus(machine, traffic) as (address, asked):
            have = 0
            for count in (1, 50):
                await add_services(cluster, have, count)
                have = count
                await machine.run_pods(count)
                async with operator(control_plane.kubeconfig, address) as url:
                    await calibrate(cluster, count)
                asked.past = 0
                async with operator(control_plane.kubeconfig, address) as url:
                    for state, rps in (("busy", 3.0), ("idle", 0.0)):
                        traffic.rps = rps
                        rows[count, state] = await measure(url, asked, machine)
                    traffic.rps = 3.0
        await cluster.close()
    return show(rows)


def show(rows: dict[tuple[int, str], dict[str, float]]) -> bool:
    """Print the table; False when a goal was missed."""
    # A cycle's cost does not depend on how often it comes.
    to_default = CYCLE_S / 15.0
    for row in rows.values():
        row["cpu_percent"] *= to_default
    fifty, idle = rows[50, "busy"], rows[50, "idle"]

    def grows(key: str) -> bool:
        return fifty[key] > rows[1, "busy"][key] + 0.5

    lines = [
        ("memory, MB", "memory_mb", f"{GOAL_MB:.0f}", fifty["memory_mb"] <= GOAL_MB),
        (
            "CPU at the default cycle of 15 s, % of a core",
            "cpu_percent",
            f"{GOAL_CPU_PERCENT:g} (idle)",
            idle["cpu_percent"] <= GOAL_CPU_PERCENT,
        ),
        ("CPU per cycle, ms", "cpu_ms_per_cycle", "", True),
        ("cycle, s", "cycle_s", f"{GOAL_CYCLE_S:g}", fifty["cycle_s"] <= GOAL_CYCLE_S),
        ("API reads per cycle", "reads", "not growing", not grows("reads")),
        ("API writes per cycle, steady load", "writes", "", True),
        ("Prometheus queries per cycle, present", "queries", "not growing", not grows("queries")),
        # One per step of the past, whatever the cycle: how many there were since the operator was started.
        ("  of the past, since its start", "past_queries", "1 in 5 min", fifty["past_queries"] <= 1),
    ]
    cycles = ", ".join(f"{row['cycles']:.0f}" for row in rows.values())
    print(f"operator: {cycles} cycles over {MEASURE_S:g} s each; busy: 3 rps per replica")  # noqa: T201
    print(f"{'':46s}" + "".join(f"{f'{count} {state}':>10s}" for count, state in rows) + "   goal")  # noqa: T201
    for label, key, goal, met in lines:
        figures = "".join(f"{row[key]:10.3g}" for row in rows.values())
        print(f"{label:46s}{figures}   {goal}{'' if met else '  MISSED'}")  # noqa: T201
    return all(met for *_, met in lines)


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(bench()) else 1)
