"""Thousands of objects on a real API server, and a stand-in for Prometheus that answers for every pod.

Nothing but objects: controller manager and scheduler are stopped, pods are bound and their status written here, for ten thousand
engines would measure this machine. Each service has a Deployment, a ReplicaSet and, unless said otherwise, ten Ready pods; foreign pods are spread
over namespaces of their own and are as large as pods of other people usually are.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from aiohttp import web

from breakeven_operator.cluster.kubernetes import KubernetesCluster
from breakeven_operator.kinds import (
    DEPLOYMENTS,
    NODES,
    PODS,
    PROFILES,
    REPLICASETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)
from breakeven_operator.observing.fleet_query import (
    EVALUATED,
    FIRST_SEEN,
    LAST_SEEN,
    PRESENT,
    REPORTING,
    STAT,
    WORKLOAD,
    siblings_of,
)
from breakeven_operator.packed import whole
from fakes.fleet_metrics import FakePrometheus, PodTraffic, pods_of, summed
from fakes.fleet_world import GPU, SERVICE, TARGET, profile_json
from fakes.kubelet import DIGEST
from fakes.manual_clock import FakeClock
from fakes.notes import memory_of, notes_of

PODS_PER_SERVICE = 10
_FOREIGN_PER_NAMESPACE = 100
# A day's loads as the stand-in tells them: as many as there are at the default of updatePolicy.lookbackSeconds.
_PAST_LOADS = 288
_NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
_ABREAST = 32
# Number of windows that an account keeps, and their distance once it agrees.
_WINDOWS, _REST_S = 12, 1800.0
# Evidence of live latency is written twice a day.
_WRITTEN_S = 12 * 3600.0
_PRECISIONS = ("precisionAlone", "precisionBoth", "precisionCompany", "pullAlone", "pullCompany")
_SINCE = "2026-01-01T00:00:00Z"


def now() -> str:
    return _text(datetime.now(UTC))


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


async def _all(work: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    """Do it, so much at a time."""
    gate = asyncio.Semaphore(_ABREAST)

    async def one(begin: Callable[[], Awaitable[Any]]) -> None:
        async with gate:
            await begin()

    await asyncio.gather(*(one(begin) for begin in work))


@dataclass
class LargeCluster:
    """Objects that the bench puts on the API server.

    Attributes:
        services: how many there are.
        own: pods of services, by namespace.
        to_a_namespace: services.
        to_a_service: pods.
    """

    cluster: KubernetesCluster
    services: int = 0
    own: dict[str, list[str]] = field(default_factory=dict)
    to_a_namespace: int = 10
    to_a_service: int = PODS_PER_SERVICE

    def home(self, number: int) -> str:
        """The namespace of a service."""
        return f"llm-{number // self.to_a_namespace}"

    async def begin(self) -> None:
        """A node with GPUs; nothing keeps it alive, and nobody minds."""
        node = {"metadata": {"name": "a100-0", "labels": {"nvidia.com/gpu.product": GPU}}}
        await self.cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", **node})

    async def add_foreign(self, pods: int) -> None:
        """Other people's Deployments, each with its ReplicaSet and ten pods."""
        for number in range(-(-pods // _FOREIGN_PER_NAMESPACE)):
            namespace = f"foreign-{number}"
            await self._namespace(namespace)
            wanted = range(
                min(_FOREIGN_PER_NAMESPACE, pods - number * _FOREIGN_PER_NAMESPACE) // PODS_PER_SERVICE
            )
            await _all(partial(self._workload, namespace, f"app-{n}", _foreign(n)) for n in wanted)

    async def add_services(self, count: int) -> None:
        """Services up to this number, ten to a namespace; Disabled, because a service without a profile would begin a calibration."""
        for number in range(self.services, count):
            if number % self.to_a_namespace == 0:
                await self._namespace(self.home(number))
        await _all(partial(self._service, n) for n in range(self.services, count))
        self.services = count

    async def calibrate(self) -> None:
        """Give every service a profile of its fingerprint, once the operator has published it, and let it decide."""
        known = {p["metadata"]["name"] for p in await self.cluster.list_all(PROFILES)}
        while True:
            found = await self.cluster.list_all(SERVICES)
            prints = {s["metadata"]["name"]: _fingerprint(s) for s in found}
            if all(prints.values()):
                break
            await asyncio.sleep(2.0)
        await _all(
            partial(self._profile, s["metadata"]["namespace"], s["metadata"]["name"], _fingerprint(s))
            for s in found
            if s["metadata"]["name"] not in known
        )

    async def age(self, half_hours: int) -> None:
        """Give every service the account of its last hours and the evidence of a day, which nobody has the time to wait for.

        A young account takes a window every five minutes, young evidence is written each half hour, and all are as young. These
        are done, each at a time of its own.

        Args:
            half_hours: by how many more than were seen the evidence tells.
        """
        found = await self.cluster.list_all(SERVICES)
        await _all(
            partial(self._aged, service, place / len(found), half_hours)
            for place, service in enumerate(found)
        )

    async def scale(self, number: int, replicas: int) -> None:
        """Change the replicas of a service's Deployment."""
        meta = {"namespace": self.home(number), "name": f"vllm-{number}"}
        body = {"metadata": meta, "spec": {"replicas": replicas}}
        await self.cluster.apply(DEPLOYMENTS, body, force=True, manager="bench")

    async def replicas_told(self, number: int) -> int | None:
        """The replicas that the operator's status says."""
        service = await self.cluster.get(SERVICES, self.home(number), f"service-{number}")
        return (((service or {}).get("status") or {}).get("target") or {}).get("replicas")

    async def _aged(self, service: Any, place: float, half_hours: int) -> None:
        memory = memory_of(service["status"])
        account = account_of(service)
        written = _text(datetime.now(UTC) - timedelta(seconds=_WRITTEN_S * place))
        evidence = [
            {**one, "time": written, **{name: f"{float(one[name]) * half_hours:.6f}" for name in _PRECISIONS}}
            for one in memory["evidence"]
        ]
        newest = datetime.now(UTC) - timedelta(seconds=_REST_S * place)
        ends = [newest - timedelta(seconds=_REST_S * back) for back in reversed(range(_WINDOWS))]
        aged = [{**account["windows"][-1], "time": _text(end)} for end in ends]
        meta = {name: service["metadata"][name] for name in ("namespace", "name")}
        learned = {"account": {**account, "windows": aged}, "evidence": evidence, "decidedTime": written}
        status = {"workings": {"notes": notes_of({**memory, **learned})}}
        await self.cluster.apply(
            SERVICES, {"metadata": meta, "status": status}, force=True, subresource="status", manager="bench"
        )

    async def _namespace(self, name: str) -> None:
        await self.cluster.create(_NAMESPACES, {"metadata": {"name": name}})
        # The controller manager would do this before pods are let in.
        await self.cluster.create(SERVICE_ACCOUNTS, {"metadata": {"namespace": name, "name": "default"}})

    async def _service(self, number: int) -> None:
        namespace, name = self.home(number), f"vllm-{number}"
        target = copy.deepcopy(TARGET)
        target["spec"] |= {"replicas": self.to_a_service, "selector": {"matchLabels": {"app": name}}}
        target["spec"]["template"]["metadata"]["labels"] = {"app": name}
        await self._workload(namespace, name, target["spec"], ready=True)
        service = copy.deepcopy(SERVICE)
        service["metadata"] = {"name": f"service-{number}", "namespace": namespace}
        service["spec"]["targetRef"]["name"] = name
        service["spec"]["updatePolicy"] = {"mode": "Disabled"}
        await self.cluster.create(SERVICES, service)

    async def _workload(
        self, namespace: str, name: str, spec: dict[str, Any], *, ready: bool = False
    ) -> None:
        """Objects that the Deployment and ReplicaSet controllers, scheduler and kubelet would make of a Deployment."""
        meta = {"namespace": namespace, "name": name}
        deployment = await self.cluster.create(DEPLOYMENTS, {"metadata": meta, "spec": spec})
        if ready:
            counts = dict.fromkeys(
                ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), self.to_a_service
            )
            status = {"observedGeneration": deployment["metadata"]["generation"], **counts}
            await self.cluster.apply(
                DEPLOYMENTS,
                {"metadata": meta, "status": status},
                force=True,
                subresource="status",
                manager="bench",
            )
        hashed = "5d4f8c6b7d"
        labels = {**spec["template"]["metadata"]["labels"], "pod-template-hash": hashed}
        template = copy.deepcopy(spec["template"])
        template["metadata"]["labels"] = labels
        replica_set = await self.cluster.create(
            REPLICASETS,
            {
                "metadata": {
                    **meta,
                    "name": f"{name}-{hashed}",
                    "labels": labels,
                    "annotations": {"deployment.kubernetes.io/revision": "1"},
                    "ownerReferences": [_owner(deployment, "apps/v1", "Deployment")],
                },
                "spec": {
                    "replicas": self.to_a_service,
                    "selector": {"matchLabels": labels},
                    "template": template,
                },
            },
        )
        owner = _owner(replica_set, "apps/v1", "ReplicaSet")
        for letter in "bcdfghjklm"[: self.to_a_service]:
            pod = f"{name}-{hashed}-{letter}{letter}x2z"
            body = {
                "metadata": {
                    **template["metadata"],
                    "namespace": namespace,
                    "name": pod,
                    "ownerReferences": [owner],
                },
                "spec": {**template["spec"], "nodeName": "a100-0"},
            }
            await self.cluster.create(PODS, body)
            if ready:
                self.own.setdefault(namespace, []).append(pod)
                await self._ready(namespace, pod)

    async def _ready(self, namespace: str, pod: str) -> None:
        running = {
            "name": "vllm",
            "image": "vllm",
            "imageID": DIGEST,
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": _SINCE}},
        }
        status = {
            "phase": "Running",
            "podIP": "127.1.0.1",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": _SINCE}],
            "containerStatuses": [running],
        }
        meta = {"namespace": namespace, "name": pod}
        await self.cluster.apply(
            PODS, {"metadata": meta, "status": status}, force=True, subresource="status", manager="kubelet"
        )

    async def _profile(self, namespace: str, name: str, fingerprint: str) -> None:
        spec = {
            "serviceRef": {"name": name},
            "gpuProduct": GPU,
            "fingerprint": fingerprint,
            "createdTime": now(),
            "profile": profile_json(),
        }
        meta = {"namespace": namespace, "name": name}
        body = {"apiVersion": PROFILES.api_version, "kind": PROFILES.kind, "metadata": meta, "spec": spec}
        await self.cluster.create(PROFILES, body)
        recommend = {"metadata": meta, "spec": {"updatePolicy": {"mode": "Recommend"}}}
        await self.cluster.apply(SERVICES, recommend, force=True, manager="bench")


def account_of(service: Any) -> Any:
    """The account of a service's profile as its status holds it; nothing before its first window."""
    return memory_of(service.get("status") or {}).get("account")


def _fingerprint(service: dict[str, Any] | Any) -> str:
    return str((whole(service.get("status") or {}).get("target") or {}).get("fingerprint") or "")


def _owner(manifest: Any, version: str, kind: str) -> dict[str, Any]:
    meta = manifest["metadata"]
    return {"apiVersion": version, "kind": kind, "name": meta["name"], "uid": meta["uid"], "controller": True}


def _foreign(number: int) -> dict[str, Any]:
    """A Deployment's spec of the usual size: a few dozen variables, probes and mounts, some kilobytes."""
    labels = {"app": f"app-{number}", "team": "somebody"}
    environment = [{"name": f"SETTING_{i}", "value": f"value-of-setting-{i}"} for i in range(24)]
    probe = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10}
    container = {
        "name": "app",
        "image": "registry.example.com/team/app:1.2.3",
        "env": environment,
        "readinessProbe": probe,
        "livenessProbe": probe,
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
    }
    return {
        "replicas": PODS_PER_SERVICE,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }


@dataclass
class Asked:
    """Queries that came in: of the present, and of the past (a subquery's range vector)."""

    present: int = 0
    past: int = 0


class ManyPodsPrometheus:
    """Answers each query with the series of every pod that it names the namespace of.

    Attributes:
        traffic: of every pod.
        spread: with it every answer differs from the one before, by up to so much.
    """

    def __init__(self, large: LargeCluster, traffic: PodTraffic) -> None:
        self.asked = Asked()
        self.traffic = traffic
        self.spread = 0.0
        self._large = large
        self._turn = 0

    async def answer(self, request: web.Request) -> web.Response:
        query = str((request.query or await request.post())["query"])
        namespaces = [name for name in self._large.own if f"|{name}|" in _named(query)]
        if query.endswith("]"):
            self.asked.past += 1
            return web.Response(body=self._past(namespaces), content_type="application/json")
        self.asked.present += 1
        self._turn += 1
        asked_about = pods_of(query)
        pods = [
            (namespace, name)
            for namespace in namespaces
            for name in self._large.own[namespace]
            if asked_about(name)
        ]
        if REPORTING in query:
            sets = dict.fromkeys((namespace, siblings_of(name)) for namespace, name in pods)
            return web.Response(
                body=self._present(list(sets), PODS_PER_SERVICE), content_type="application/json"
            )
        return web.Response(body=self._present(pods), content_type="application/json")

    def _present(self, owners: list[tuple[str, str]], summed_pods: int = 0) -> bytes:
        # One owner's series as text with holes for its names; the others are the same.
        moved = 1.0 + self.spread * (self._turn % 7) / 7.0
        clock = FakeClock()
        fake = FakePrometheus(cluster=None, clock=clock, traffic=self.traffic)  # type: ignore[arg-type]
        pod = {"metadata": {"namespace": "@NAMESPACE@", "name": "@POD@12345"}}
        time_s = time.time()
        ahead_s = time_s - clock.now().timestamp()
        rows = []
        of_pod = fake.series_of(pod)
        hole = "@POD@12345" if not summed_pods else "@POD@"
        for series in summed(of_pod * summed_pods) if summed_pods else of_pod:
            value = series.value
            if series.labels[STAT] in {LAST_SEEN, FIRST_SEEN}:
                value += ahead_s
            elif series.labels[STAT] not in {PRESENT, REPORTING}:
                value *= moved
            rows.append(json.dumps({"metric": dict(series.labels), "value": [time_s, str(value)]}))
        text = ",".join(rows)
        parts = [text.replace("@NAMESPACE@", namespace).replace(hole, name) for namespace, name in owners]
        parts.append(json.dumps({"metric": {STAT: EVALUATED}, "value": [time_s, str(time_s)]}))
        return _success("vector", parts)

    def _past(self, namespaces: list[str]) -> bytes:
        values = [[time.time(), str(self.traffic.rps)]] * _PAST_LOADS
        targets = {(n, pod.rsplit("-", 2)[0]) for n in namespaces for pod in self._large.own[n]}
        return _success(
            "matrix",
            [
                json.dumps(
                    {
                        "metric": {
                            "namespace": n,
                            WORKLOAD: f"Deployment {name}",
                            "model_name": self.traffic.model_name,
                        },
                        "values": values,
                    }
                )
                for n, name in sorted(targets)
            ],
        )


def _named(query: str) -> str:
    """The namespaces of a query's first matcher, each between bars."""
    if 'namespace=~"' not in query:
        # A question about the server itself.
        return ""
    start = query.index('namespace=~"') + len('namespace=~"')
    return "|" + query[start : query.index('"', start)].strip("()").replace("\\\\", "") + "|"


def _success(kind: str, rows: list[str]) -> bytes:
    return f'{{"status":"success","data":{{"resultType":"{kind}","result":[{",".join(rows)}]}}}}'.encode()


@asynccontextmanager
async def serving(prometheus: ManyPodsPrometheus) -> AsyncIterator[str]:
    """The stand-in's URL while it serves."""
    app = web.Application()
    app.add_routes([web.route("*", "/api/v1/query", prometheus.answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()
