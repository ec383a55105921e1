"""Cost of knowing ten thousand pods, by method; docs/decisions/0014 has the figures.

Each choice is a process of its own beside a real API server with the given number of pods. A tenth of them belongs to
the namespaces that are read. It runs until it has seen all pods, and half a minute longer, in which nothing changes.
CPU is the process's own and the API server's; requests are counted by the API server.

    .venv/bin/python tests/bench/bench_watching.py             # 10,000 pods
    .venv/bin/python tests/bench/bench_watching.py --pods 2000
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.large_cluster import LargeCluster
from breakeven_operator.adapters.clock import SystemClock
from breakeven_operator.adapters.cluster_objects import ClusterObjects, Interest, ListedObjects
from breakeven_operator.adapters.kubernetes import KubernetesCluster
from breakeven_operator.adapters.own_objects import OwnObjects
from breakeven_operator.adapters.watched_objects import WatchedObjects
from breakeven_operator.kinds import PODS
from localcluster import LocalCluster

CYCLE_S, QUIET_S = 15.0, 30.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SHARE = 0.1


def wanted(pods: int) -> Interest:
    """A tenth of the namespaces that `LargeCluster.add_foreign` makes, and more than are watched one by one."""
    return Interest(frozenset(f"foreign-{n}" for n in range(max(5, int(pods * _SHARE / 100)))), frozenset())


def seen(count: int) -> None:
    """Tell the parent that all pods are known."""
    sys.stdout.write(f"{count}\n")
    sys.stdout.flush()


async def _ours(kubeconfig: str, pods: int, make: Callable[[KubernetesCluster], ClusterObjects]) -> None:
    cluster = await KubernetesCluster.connect(kubeconfig)
    objects = make(cluster)
    seen(len(await objects.read(PODS, wanted(pods))))
    while True:
        await asyncio.sleep(CYCLE_S)
        await objects.read(PODS, wanted(pods))


def listed(kubeconfig: str, pods: int) -> None:
    """One LIST in pages each cycle, trimmed as it arrives: the operator before."""
    asyncio.run(_ours(kubeconfig, pods, lambda cluster: ListedObjects(cluster, ())))


def watched(kubeconfig: str, pods: int) -> None:
    """The operator's informer."""
    asyncio.run(
        _ours(
            kubeconfig,
            pods,
            lambda cluster: WatchedObjects(
                cluster, SystemClock(), OwnObjects(SystemClock()), relist_s=3600.0
            ),
        )
    )


def client_informer(kubeconfig: str, _pods: int) -> None:
    """`kubernetes.informer.SharedInformer` of the official client."""
    import kubernetes
    from kubernetes.informer import SharedInformer

    untyped: Any = SharedInformer
    cast("Any", kubernetes.config).load_kube_config(kubeconfig)
    informer = untyped(kubernetes.client.CoreV1Api().list_pod_for_all_namespaces)
    informer.start()
    last = -1
    while True:
        known = len(informer.cache.list_keys())
        if known and known == last:
            break
        last = known
        time.sleep(1.0)
    seen(known)
    time.sleep(3600.0)


CHOICES = {
    "LIST each cycle": listed,
    "own informer": watched,
    "client's informer": client_informer,
}


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def memory_mb(pid: int, key: str) -> float:
    found = re.search(rf"{key}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


async def measure(choice: str, kubeconfig: Path, pods: int, api_pid: int) -> list[float]:
    api_s, began = cpu_s(api_pid), time.monotonic()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--choice",
        choice,
        "--pods",
        str(pods),
        "--kubeconfig",
        str(kubeconfig),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert child.stdout is not None
        await asyncio.wait_for(child.stdout.readline(), 300)
        first_s, own_s, api_first_s = time.monotonic() - began, cpu_s(child.pid), cpu_s(api_pid) - api_s
        api_s = cpu_s(api_pid)
        await asyncio.sleep(QUIET_S)
        return [
            first_s,
            own_s,
            api_first_s,
            memory_mb(child.pid, "VmHWM"),
            memory_mb(child.pid, "VmRSS"),
            100 * (cpu_s(child.pid) - own_s) / QUIET_S,
            100 * (cpu_s(api_pid) - api_s) / QUIET_S,
        ]
    finally:
        child.kill()
        await child.wait()


async def bench(pods: int) -> None:
    with LocalCluster() as control_plane:
        for name in ("kube-controller-manager", "kube-scheduler"):
            control_plane.stop_process(name)
        api_pid = next(p.pid for p in control_plane.processes() if p.name == "kube-apiserver")
        cluster = await KubernetesCluster.connect(str(control_plane.kubeconfig))
        await LargeCluster(cluster).add_foreign(pods)
        await cluster.close()
        print(f"{pods} pods, of which {len(wanted(pods).namespaces) * 100} are looked at; 30 quiet seconds")  # noqa: T201
        head = (
            "all known, s",
            "CPU, s",
            "API CPU, s",
            "peak, MB",
            "then, MB",
            "quiet CPU, %",
            "quiet API, %",
        )
        print(f"{'':20s}" + "".join(f"{word:>14s}" for word in head))  # noqa: T201
        for choice in CHOICES:
            row = await measure(choice, control_plane.kubeconfig, pods, api_pid)
            print(f"{choice:20s}" + "".join(f"{figure:14.3g}" for figure in row), flush=True)  # noqa: T201


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pods", type=int, default=10000)
    parser.add_argument("--choice", choices=CHOICES)
    parser.add_argument("--kubeconfig")
    given = parser.parse_args()
    if given.choice:
        CHOICES[given.choice](given.kubeconfig, given.pods)
    else:
        asyncio.run(bench(given.pods))
    return 0


if __name__ == "__main__":
    sys.exit(main())
