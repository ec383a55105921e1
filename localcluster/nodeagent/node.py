"""One node: registered, kept alive by its Lease, and a worker for each pod bound to it."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from localcluster.nodeagent import nodeobjects
from localcluster.nodeagent.addresses import AddressRange
from localcluster.nodeagent.api_client import FAILURES, MERGE, STRATEGIC, ApiClient, ApiError, describe
from localcluster.nodeagent.backoff import Backoff
from localcluster.nodeagent.event_recorder import Recorder
from localcluster.nodeagent.gpus import Ledger
from localcluster.nodeagent.nodeobjects import NodeSpec
from localcluster.nodeagent.objects import Objects
from localcluster.nodeagent.podspec import Json
from localcluster.nodeagent.podworker import Neighbourhood, PodWorker
from localcluster.nodeagent.sandbox import Machine

_log = logging.getLogger(__name__)

_RENEW_EVERY_S = nodeobjects.LEASE_S / 4
_STATUS_EVERY_S = 300.0
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@dataclass(frozen=True)
class Shared:
    """Parts that the nodes of one agent share."""

    api: ApiClient
    recorder: Recorder
    probes: aiohttp.ClientSession
    machine: Callable[[NodeSpec], Machine]
    backoff: Backoff
    refresh_s: float
    state_dir: Path
    version: str


class Node:
    """One node; `workers` holds its pods by uid."""

    def __init__(self, spec: NodeSpec, shared: Shared) -> None:
        self.spec = spec
        self.workers: dict[str, PodWorker] = {}
        self.address = AddressRange(f"{shared.state_dir}/{spec.name}")
        self.port = 0  # of the kubelet's API; set before `register`
        self._shared = shared
        self._uid = ""
        self._ready_since = time.time()
        self._status_at = 0.0
        self._lease_version: str | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._pods = shared.state_dir / "pods" / spec.name
        self._near = Neighbourhood(
            api=shared.api,
            objects=Objects(shared.api),
            recorder=shared.recorder,
            probes=shared.probes,
            addresses=self.address,
            ledger=Ledger(spec.gpu_count),
            machine=shared.machine(spec),
            node=spec.name,
            allocatable=spec.allocatable(),
            folder=self._pods,
            backoff=shared.backoff,
            refresh_s=shared.refresh_s,
        )

    async def register(self) -> None:
        """Creates the Node or takes over the one that is there, writes its status and its Lease.

        Raises:
            ApiError, aiohttp.ClientError, TimeoutError, OSError: the API server refused or cannot be asked.
        """
        isolation = self._near.machine.isolation
        annotations = {"nodeagent.breakeven.dev/isolation": isolation.name}
        wanted = nodeobjects.node(self.spec, annotations)
        try:
            created = await self._shared.api.create("/api/v1/nodes", wanted)
        except ApiError as error:
            if error.status != 409:
                raise
            created = await self._shared.api.patch(self._path, {"metadata": wanted["metadata"]}, MERGE)
        self._uid = created["metadata"]["uid"]
        await self._write_status()
        await self._renew()

    async def run(self) -> None:
        """Keeps the node alive and its pods worked on, until cancelled; then ends every pod's processes."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._stay_alive())
                group.create_task(self._follow_pods())
        finally:
            for worker in self.workers.values():
                for container in worker.containers.values():
                    container.kill()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self.address.close()

    async def _stay_alive(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_EVERY_S)
            try:
                await self._renew()
                if time.time() - self._status_at >= _STATUS_EVERY_S:
                    await self._write_status()
            except FAILURES as error:
                _log.warning("node %s: lease not renewed: %s", self.spec.name, describe(error))
                # Somebody else wrote it, or it is gone: read it again next time.
                self._lease_version = None

    async def _renew(self) -> None:
        name = self.spec.name
        if self._lease_version is None:
            found = await self._shared.api.find(f"{_LEASES}/{name}")
            self._lease_version = found["metadata"]["resourceVersion"] if found else None
        body = nodeobjects.lease(name, self._uid, self._lease_version, time.time())
        if self._lease_version is None:
            answer = await self._shared.api.create(_LEASES, body)
        else:
            answer = await self._shared.api.replace(f"{_LEASES}/{name}", body)
        self._lease_version = answer["metadata"]["resourceVersion"]

    async def _write_status(self) -> None:
        body = nodeobjects.node_status(
            self.spec,
            self.address.node,
            self.port,
            str(uuid.uuid5(uuid.NAMESPACE_DNS, self.spec.name)),
            self._shared.version,
            self._ready_since,
            time.time(),
        )
        await self._shared.api.patch(f"{self._path}/status", {"status": body}, STRATEGIC)
        self._status_at = time.time()

    async def _follow_pods(self) -> None:
        selector = {"fieldSelector": f"spec.nodeName={self.spec.name}"}
        async for kind, item in self._shared.api.follow("/api/v1/pods", selector):
            if kind == "LIST":
                self._replace(item)
            elif kind == "DELETED":
                self._vanish(item["metadata"]["uid"])
            else:
                self._apply(item)

    def _replace(self, pods: list[Json]) -> None:
        present = {pod["metadata"]["uid"] for pod in pods}
        for uid in self.workers.keys() - present:
            self._vanish(uid)
        self._forget_folders(present | self.workers.keys())
        for pod in pods:
            self._apply(pod)

    def _apply(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        worker = self.workers.get(uid)
        if worker is not None:
            worker.update(pod)
            return
        worker = PodWorker(pod, self._near)
        self.workers[uid] = worker
        task = asyncio.get_running_loop().create_task(worker.run(), name=f"pod {worker.pod.key}")
        self._tasks[uid] = task
        task.add_done_callback(lambda done: self._done(uid, done))

    def _vanish(self, uid: str) -> None:
        if worker := self.workers.get(uid):
            worker.vanish()

    def _done(self, uid: str, task: asyncio.Task[None]) -> None:
        worker = self.workers.pop(uid)
        del self._tasks[uid]
        if not task.cancelled() and (error := task.exception()):
            _log.error("pod %s: its worker failed", worker.pod.key, exc_info=error)

    def _forget_folders(self, present: set[str]) -> None:
        """Removes what pods that went away while no agent ran have left."""
        self._pods.mkdir(parents=True, exist_ok=True)
        for folder in self._pods.iterdir():
            if folder.name not in present:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _path(self) -> str:
        return f"/api/v1/nodes/{self.spec.name}"
