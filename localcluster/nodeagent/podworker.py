"""One pod from being bound to being gone.

The worker is level-triggered. After any change (the Pod object, a container, the clock) it looks at everything again,
asks `pod_lifecycle.decide`, and acts. It writes the status if that differs from the last one written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from localcluster.nodeagent import (
    pod_lifecycle,
    podspec,
    refusals,
    status,
)
from localcluster.nodeagent.addresses import AddressRange, NoAddressError
from localcluster.nodeagent.api_client import FAILURES, STRATEGIC, ApiClient, ApiError, describe
from localcluster.nodeagent.backoff import Backoff
from localcluster.nodeagent.container import Container, Surroundings
from localcluster.nodeagent.event_recorder import About, Recorder, Severity
from localcluster.nodeagent.fieldrefs import Placement
from localcluster.nodeagent.gpus import Ledger
from localcluster.nodeagent.objects import Objects, PodObjects
from localcluster.nodeagent.payloads import MissingSourceError
from localcluster.nodeagent.pod_lifecycle import LifecycleStep
from localcluster.nodeagent.podspec import Json, PodSpec, Role
from localcluster.nodeagent.sandbox import Machine, Rooms
from localcluster.nodeagent.states import ContainerState, Running, Terminated, Waiting
from localcluster.nodeagent.status import PodVerdict
from localcluster.nodeagent.volumes import PodVolumes

_log = logging.getLogger(__name__)

_LOST = "the node agent was restarted and the process ended with it"
_LOST_EXIT_CODE = 137
_RETRY_S = (0.5, 30.0)
_TERMINAL = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True)
class Neighbourhood:
    """Parts that all pods of one node share."""

    api: ApiClient
    objects: Objects
    recorder: Recorder
    probes: aiohttp.ClientSession
    addresses: AddressRange
    ledger: Ledger
    machine: Machine
    node: str
    allocatable: dict[str, str]
    folder: Path
    backoff: Backoff
    refresh_s: float


class PodWorker:
    """The worker of one pod; `update` and `vanish` tell it what the API server says."""

    def __init__(self, pod: Json, near: Neighbourhood) -> None:
        self._near = near
        self._pod = podspec.parse(pod)
        self._folder = near.folder / self._pod.uid
        self._wake = asyncio.Event()
        self._vanished = False
        self._written: dict[str, Any] | None = None
        self._written_version = 0
        self._verdict: PodVerdict | None = None
        self._volumes_ready = False
        self._volume_retry_s = _RETRY_S[0]
        self._kill_at: float | None = None
        self._deletion_grace_s = float("inf")
        old = pod.get("status", {})
        self._over = old.get("phase") in _TERMINAL
        self._started_at = status.seconds(old.get("startTime")) or time.time()
        address = old.get("podIP", "")
        if address and not self._over:
            # Now, before a new pod's worker can be given the address that this pod has had. None left: `_admit` says so.
            with contextlib.suppress(NoAddressError):
                address = near.addresses.take(self._pod.uid, address)
        self._where = Placement(near.node, near.addresses.node, address, near.allocatable)
        self._objects = PodObjects(near.objects, self._pod)
        self._volumes = PodVolumes(self._folder / "volumes", self._pod, self._objects, near.refresh_s)
        self.containers = {
            c.name: Container(c, self._first_state(c, old), f"{self._pod.uid}/{c.name}", self._wake.set)
            for c in self._pod.containers
        }

    @property
    def pod(self) -> PodSpec:
        """The pod as the API server last said."""
        return self._pod

    def update(self, pod: Json) -> None:
        """Takes a new version of the Pod."""
        self._pod = podspec.parse(pod)
        self._wake.set()

    def vanish(self) -> None:
        """Tells that the Pod no longer exists (somebody deleted it by force)."""
        self._vanished = True
        self._wake.set()

    def room(self, container: str) -> Path:
        """The folder of one container."""
        return Rooms(self._folder, {}).of(container)

    async def run(self) -> None:
        """Works until the Pod is gone from the API server and nothing of it is left here."""
        retry_s = _RETRY_S[0]
        try:
            while True:
                self._wake.clear()
                try:
                    wake_at = await self._look()
                    retry_s = _RETRY_S[0]
                except FAILURES as error:
                    _log.warning("pod %s: %s; trying again", self._pod.key, describe(error))
                    wake_at = time.time() + retry_s
                    retry_s = min(retry_s * 2, _RETRY_S[1])
                if wake_at is None:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, wake_at - time.time())):
                        await self._wake.wait()
        finally:
            await self._clear_up()

    # -- one look ------------------------------------------------------------------------------------------------------

    async def _look(self) -> float | None:
        """Brings the pod one step on; when to look again at the latest, None if it is gone."""
        if self._over:
            return await self._finalise(None)
        now = time.time()
        ending = self._ending(now)
        if not ending and not self._admit():
            await self._write(LifecycleStep())
            return float("inf")
        wake_at = self._next_deadline()
        if not ending:
            wake_at = min(wake_at, await self._keep_volumes(now))
            self._restart_changed_images()
        states = self._states()
        not_before = {name: c.not_before() for name, c in self.containers.items()}
        step = pod_lifecycle.decide(self._pod, states, not_before, time.time(), ending=ending)
        if self._volumes_ready:
            for name in step.start:
                await self.containers[name].start(self._pod, self._surroundings())
                # A start changes what the others may do, and something may have changed meanwhile.
                self._wake.set()
        for name, until in step.delayed.items():
            self.containers[name].back_off(self._pod, until)
            wake_at = min(wake_at, until)
        for name in step.stop:
            kill_at = self._kill_at if self._kill_at is not None else time.time() + self._pod.grace_s
            self.containers[name].stop(kill_at)
        await self._write(step)
        if step.finished:
            return await self._finalise(step)
        return wake_at

    def _ending(self, now: float) -> bool:
        """Whether the pod must stop, and by when; the earliest demand wins."""
        if self._vanished:
            self._end_by(now)
        elif self._pod.deleting and self._pod.deletion_grace_s < self._deletion_grace_s:
            # Counted from when the agent hears of it, as a kubelet does; a second, hastier delete shortens it.
            self._deletion_grace_s = self._pod.deletion_grace_s
            self._end_by(now + self._pod.deletion_grace_s)
        deadline = self._pod.active_deadline_s
        if deadline is not None and self._verdict is None and now >= self._started_at + deadline:
            message = "Pod was active on the node longer than the specified deadline"
            self._verdict = PodVerdict("DeadlineExceeded", message, failed=True)
            self._event("Normal", "DeadlineExceeded", message)
            self._end_by(now + self._pod.grace_s)
        return self._kill_at is not None

    def _end_by(self, kill_at: float) -> None:
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)

    def _next_deadline(self) -> float:
        deadline = self._pod.active_deadline_s
        over = self._verdict is not None and self._verdict.failed
        return float("inf") if deadline is None or over else self._started_at + deadline

    def _admit(self) -> bool:
        """Gives the pod its address, or refuses it for good.

        A refused pod stays Pending. A ReplicaSet would replace a Failed pod at once, and its successor too, without end.
        """
        if self._verdict is not None:
            return False
        isolated = self._near.machine.isolation.allowed
        refused = refusals.unsupported(self._pod.raw, isolated=isolated)
        try:
            address = "" if refused else self._near.addresses.take(self._pod.uid, self._where.pod_ip)
        except NoAddressError as error:
            refused = (str(error),)
        if not refused:
            if address != self._where.pod_ip:
                self._where = replace(self._where, pod_ip=address)
                for message in refusals.unenforced(self._pod.raw, isolated=isolated):
                    self._event("Warning", refusals.UNENFORCED, message)
            return True
        message = "; ".join(refused)
        self._verdict = PodVerdict(refusals.REASON, message, failed=False)
        self._event("Warning", refusals.REASON, message)
        for container in self.containers.values():
            container.state = replace(container.state, activity=Waiting(refusals.REASON, message))
        return False

    async def _keep_volumes(self, now: float) -> float:
        """Makes the volumes ready or refreshes them when it is time; when to come back."""
        if self._volumes_ready and now < self._volumes.refresh_at:
            return self._volumes.refresh_at
        try:
            await self._volumes.publish(self._pod, self._where, first=not self._volumes_ready)
        except (MissingSourceError, *FAILURES) as error:
            self._event("Warning", "FailedMount", describe(error))
            delay, self._volume_retry_s = self._volume_retry_s, min(self._volume_retry_s * 2, _RETRY_S[1])
            return now + delay
        self._volumes_ready = True
        self._volume_retry_s = _RETRY_S[0]
        return self._volumes.refresh_at

    def _restart_changed_images(self) -> None:
        """Stops containers whose image was changed in the Pod (the one field of a container that may change)."""
        for spec in self._pod.containers:
            container = self.containers[spec.name]
            container.spec = spec
            if container.state.running and container.state.image != spec.image:
                why = f"Container {spec.name} definition changed, will be restarted"
                container.stop(time.time() + self._pod.grace_s, why)

    async def _finalise(self, step: LifecycleStep | None) -> float | None:
        """After the end: waits to be deleted, then removes the Pod from the API server."""
        if step is not None:
            self._over = not self._vanished and not self._pod.deleting
        if self._vanished:
            return None
        self._near.addresses.release(self._pod.uid)
        if not self._pod.deleting:
            return float("inf")
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self._pod.uid}}
        try:
            await self._near.api.delete(self._path(), options)
        except ApiError as error:
            if error.status not in {404, 409}:
                raise
            return None
        # Gone, or kept by a finalizer: either way the watch says when.
        return float("inf")

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _first_state(self, container: podspec.ContainerSpec, old: Json) -> ContainerState:
        """A container's state when its worker begins: a new one, or the one that an earlier agent wrote."""
        state = status.restored(old, container.name)
        if state is None:
            waits_for_others = container.role is Role.MAIN and len(self._pod.inits) > 0
            return ContainerState(Waiting("PodInitializing" if waits_for_others else "ContainerCreating"))
        if not isinstance(state.activity, Running):
            return replace(state, started=False, ready=False)
        lost = Terminated(
            _LOST_EXIT_CODE, "Error", state.activity.started_at, time.time(), _LOST, state.container_id
        )
        return replace(state, activity=lost, started=False, ready=False)

    def _states(self) -> dict[str, ContainerState]:
        return {name: container.state for name, container in self.containers.items()}

    def _surroundings(self) -> Surroundings:
        near = self._near
        return Surroundings(
            machine=near.machine,
            ledger=near.ledger,
            where=self._where,
            rooms=Rooms(self._folder, self._volumes.folders()),
            lookup=self._objects.lookup,
            events=self._event,
            probes=near.probes,
            backoff=near.backoff,
        )

    async def _write(self, step: LifecycleStep) -> None:
        """Writes the status if it is news, or if somebody has changed it: a node that answered late has its pods set NotReady."""
        if self._vanished:
            return
        fresh = status.pod_status(
            self._pod,
            self._states(),
            step,
            self._where,
            self._started_at,
            time.time(),
            # Not what the watch last brought: that may be older than what was written since.
            previous=(self._written or self._pod.raw.get("status", {})).get("conditions", []),
            verdict=self._verdict,
            sandbox_ready=self._volumes_ready,
        )
        changed = status.changed_since(fresh, self._written_version, self._pod.raw)
        if fresh == self._written and not changed:
            return
        body = {"metadata": {"uid": self._pod.uid}, "status": fresh}
        try:
            answer = await self._near.api.patch(f"{self._path()}/status", body, STRATEGIC)
            self._written_version = int(answer["metadata"]["resourceVersion"])
        except ApiError as error:
            if error.status not in {404, 409}:
                raise
            # Gone, or another pod of the same name by now; the watch will say so.
        self._written = fresh

    def _event(self, severity: Severity, reason: str, message: str, field_path: str = "") -> None:
        about = About("Pod", self._pod.namespace, self._pod.name, self._pod.uid, self._near.node)
        self._near.recorder.record(about, severity, reason, message, field_path)

    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._pod.namespace}/pods/{self._pod.name}"

    async def _clear_up(self) -> None:
        for container in self.containers.values():
            await container.close()
        self._near.addresses.release(self._pod.uid)
        if self._vanished:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
