"""One container of one pod while the agent runs: its process, its probes, its hooks, and the state they amount to.

The pod's worker says start and stop; everything else happens here and is reported through `changed`. All of it runs on one event
loop, so state changes need no lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from localcluster.nodeagent import (
    container_actions,
    gpus,
    images,
    probing,
    rootfiles,
    sandbox,
)
from localcluster.nodeagent.api_client import FAILURES, describe
from localcluster.nodeagent.backoff import Backoff
from localcluster.nodeagent.environment import ConfigError, Lookup
from localcluster.nodeagent.event_recorder import Severity
from localcluster.nodeagent.fieldrefs import Placement
from localcluster.nodeagent.gpus import Ledger
from localcluster.nodeagent.podspec import Action, ContainerSpec, PodSpec, ProbeSpec
from localcluster.nodeagent.processes import Launch, Process, StartError
from localcluster.nodeagent.sandbox import Machine, Rooms, UnknownImageError
from localcluster.nodeagent.states import ContainerState, Running, Terminated, Waiting

_log = logging.getLogger(__name__)

START_FAILED = 128  # the exit code containerd reports for a container whose command cannot be executed
_LEAST_GRACE_S = 2.0  # what a kubelet leaves a container at least, also after a slow preStop hook
_RETRY_S = (1.0, 10.0)  # first and longest wait after a configuration or image error
_MESSAGE_BYTES, _LOG_TAIL_BYTES, _LOG_TAIL_LINES = 4096, 2048, 80


class Events(Protocol):
    """Where a container's events go."""

    def __call__(self, severity: Severity, reason: str, message: str, field_path: str = "") -> None:
        """Records one event about the pod."""


@dataclass(frozen=True)
class Surroundings:
    """The parts of pod and node that a container uses."""

    machine: Machine
    ledger: Ledger
    where: Placement
    rooms: Rooms
    lookup: Lookup
    events: Events
    probes: aiohttp.ClientSession
    backoff: Backoff


class Container:
    """One container; `state` is always current and `changed` is called after each change of it."""

    def __init__(
        self, spec: ContainerSpec, state: ContainerState, gpu_holder: str, changed: Callable[[], None]
    ) -> None:
        self.spec = spec
        self.state = state
        self._gpu_holder = gpu_holder
        self._changed = changed
        self._grace_s = 0.0
        self._backoff: Backoff | None = None
        self._process: Process | None = None
        self._launch: Launch | None = None
        self._pod_ip = ""
        self._retry_at = 0.0
        self._retry_s = _RETRY_S[0]
        self._kill_at = 0.0
        self._sooner = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._around: Surroundings | None = None

    # -- what the worker asks ------------------------------------------------------------------------------------------

    def not_before(self) -> float:
        """The earliest time of the next start, by crash back-off or by the last start's error."""
        ended = self.state.ended
        if ended is None or self._backoff is None:
            return self._retry_at
        return max(self._retry_at, self._backoff.not_before(ended.finished_at))

    def back_off(self, pod: PodSpec, until: float) -> None:
        """Shows that the next start waits for the crash back-off."""
        if not isinstance(self.state.activity, Terminated) or self._around is None:
            return
        delay = until - self.state.activity.finished_at
        name = f"container={self.spec.name} pod={pod.name}_{pod.namespace}({pod.uid})"
        waiting = Waiting("CrashLoopBackOff", f"back-off {delay:g}s restarting failed {name}")
        self._event(
            "Warning", "BackOff", f"Back-off restarting failed container {self.spec.name} in pod {pod.name}"
        )
        self._set(activity=waiting, last=self.state.activity)

    async def start(self, pod: PodSpec, around: Surroundings) -> None:
        """Starts the container or records in its state why it cannot be; never raises."""
        self._around = around
        ended = self.state.ended
        if self._backoff is None:
            self._backoff = around.backoff
        if ended is not None:
            self._backoff = self._backoff.restarted(ended.finished_at, time.time())
        restarts = self.state.restarts + (1 if ended is not None else 0)
        log_file = self._log_file(restarts)
        try:
            launch = await self._prepare(pod, around)
            self._event("Normal", "Pulled", f'Container image "{self.spec.image}" already present on machine')
            log_file.parent.mkdir(parents=True, exist_ok=True)
            output = os.open(log_file, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                process = await Process.start(launch, output, around.machine.fork_servers)
            finally:
                os.close(output)
        except (UnknownImageError, ConfigError, *FAILURES) as error:
            self._not_created(error)
            return
        except StartError as error:
            self._not_started(str(error), restarts)
            return
        self._retry_s, self._retry_at = _RETRY_S[0], 0.0
        self._process, self._launch, self._pod_ip = process, launch, around.where.pod_ip
        self._event("Normal", "Created", f"Container created: {self.spec.name}")
        self._event("Normal", "Started", f"Container started: {self.spec.name}")
        self._forget_logs_before(restarts - 1)
        self._set(
            activity=Running(time.time()),
            restarts=restarts,
            last=ended,
            started=False,
            ready=False,
            container_id=f"process://{secrets.token_hex(32)}",
            image=self.spec.image,
            image_id=images.image_id(self.spec.image),
        )
        self._task(self._supervise(process))

    def stop(self, kill_at: float, why: str = "") -> None:
        """Begins stopping, to be over at `kill_at` (seconds since the epoch); again with an earlier time to hurry."""
        if self._stopping is None:
            self._kill_at = kill_at
            self._stopping = self._task(self._stop())
            self._event("Normal", "Killing", why or f"Stopping container {self.spec.name}")
        elif kill_at < self._kill_at:
            self._kill_at = kill_at
            self._sooner.set()

    def kill(self) -> None:
        """Ends everything at once; for the agent's own end."""
        if self._process:
            self._process.kill()

    async def close(self) -> None:
        """Ends everything of the container, waits for it and gives its GPUs back."""
        self.kill()
        if self._around:
            self._around.ledger.release(self._gpu_holder)
        if self._process:
            await self._process.exited()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- what actions need (actions.Inside) ----------------------------------------------------------------------------

    @property
    def pod_ip(self) -> str:
        """The pod's address."""
        return self._pod_ip

    def command(self, argv: tuple[str, ...]) -> Launch:
        """How to execute a command in the running container."""
        if self._launch is None or self._process is None:
            raise RuntimeError("the container was never started")
        join = self._process.pid if self._launch.root else None
        return replace(self._launch, argv=argv, root=None, join=join, preload=None)

    # -- what the probes tell (probing.Listener) -----------------------------------------------------------------------

    def on_started(self) -> None:
        """See `probing.Listener`."""
        self._set(started=True)

    def on_ready(self, *, ready: bool) -> None:
        """See `probing.Listener`."""
        self._set(ready=ready)

    def on_unhealthy(self, kind: str, output: str) -> None:
        """See `probing.Listener`."""
        # Only readiness still means something while the container stops.
        if self._stopping is None or kind == "Readiness":
            self._event("Warning", "Unhealthy", f"{kind} probe failed: {output}")

    def on_dead(self, kind: str, probe: ProbeSpec) -> None:
        """See `probing.Listener`."""
        if self._stopping is None:
            grace_s = self._grace_s if probe.termination_grace_s is None else probe.termination_grace_s
            self.stop(
                time.time() + grace_s, f"Container {self.spec.name} failed {kind} probe, will be restarted"
            )

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _prepare(self, pod: PodSpec, around: Surroundings) -> Launch:
        wanted = self.spec.extended_resource(gpus.RESOURCE)
        self._grace_s = pod.grace_s
        try:
            indexes = around.ledger.take(self._gpu_holder, wanted)
        except LookupError as error:
            raise ConfigError(str(error)) from error
        return await sandbox.prepare(
            pod, self.spec, around.where, around.machine, around.rooms, around.lookup, indexes
        )

    async def _supervise(self, process: Process) -> None:
        """Follows one run of the container to its end."""
        health = self._task(self._hooks_and_probes())
        code = await process.exited()
        for task in (health, self._stopping):
            if task is not None:
                task.cancel()
        self._stopping = None
        self._sooner.clear()
        if self._around:
            self._around.ledger.release(self._gpu_holder)
        started_at = self.state.activity.started_at if isinstance(self.state.activity, Running) else 0.0
        ended = Terminated(
            exit_code=code,
            reason="Completed" if code == 0 else "Error",
            started_at=started_at,
            finished_at=time.time(),
            message=self._last_words(code),
            container_id=self.state.container_id,
        )
        self._set(activity=ended, started=False, ready=False)

    async def _hooks_and_probes(self) -> None:
        if self._around is None:
            return
        hook = self.spec.post_start
        if hook and not await self._hook(hook, "postStart", "FailedPostStartHook", None):
            self.stop(time.time() + self._grace_s)
            return
        await probing.watch(self.spec, self, self._around.probes, self)

    async def _stop(self) -> None:
        """preStop, then SIGTERM, then SIGKILL at `_kill_at`."""
        process = self._process
        if process is None:
            return
        grace_s = self._kill_at - time.time()
        if self.spec.pre_stop and grace_s > 0:
            await self._hook(self.spec.pre_stop, "preStop", "FailedPreStopHook", grace_s)
        self._kill_at = max(self._kill_at, time.time() + _LEAST_GRACE_S)
        process.signal(signal.SIGTERM)
        while process.running and (left_s := self._kill_at - time.time()) > 0:
            self._sooner.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._sooner.wait()
        process.kill()

    async def _hook(self, action: Action, name: str, reason: str, timeout_s: float | None) -> bool:
        """Runs a lifecycle hook; a preStop hook ends early when stopping must hurry."""
        if self._around is None:
            return False
        running = asyncio.ensure_future(
            container_actions.perform(action, self, self._around.probes, timeout_s)
        )
        hurry = asyncio.ensure_future(self._sooner.wait())
        try:
            await asyncio.wait({running, hurry}, return_when=asyncio.FIRST_COMPLETED)
            if running.done() and running.result().ok:
                return True
            why = running.result().output if running.done() else "cut short: the pod must stop sooner"
        finally:
            running.cancel()
            hurry.cancel()
        self._event("Warning", reason, f"{name} hook of container {self.spec.name} failed: {why}")
        return False

    def _not_created(self, error: Exception) -> None:
        if isinstance(error, UnknownImageError):
            message = f'no program of the image table stands for image "{self.spec.image}"'
            again = isinstance(self.state.activity, Waiting) and "Image" in self.state.activity.reason
            reason = "ImagePullBackOff" if again else "ErrImagePull"
            self._event("Warning", "Failed", f'Failed to pull image "{self.spec.image}": {message}')
        else:
            message, reason = describe(error), "CreateContainerConfigError"
            self._event("Warning", "Failed", f"Error: {message}")
        self._retry_at = time.time() + self._retry_s
        self._retry_s = min(self._retry_s * 2, _RETRY_S[1])
        self._set(activity=Waiting(reason, message), last=self.state.ended, started=False, ready=False)

    def _not_started(self, message: str, restarts: int) -> None:
        now = time.time()
        self._event("Warning", "Failed", f"Error: failed to start container {self.spec.name}: {message}")
        ended = Terminated(START_FAILED, "StartError", now, now, message)
        self._set(activity=ended, restarts=restarts, image=self.spec.image, started=False, ready=False)

    def _last_words(self, code: int) -> str:
        """The termination message: the container's own file, or the end of its log when it asks for that and failed."""
        if self._around is None:
            return ""
        file = rootfiles.termination_message(self._around.rooms.of(self.spec.name))
        with contextlib.suppress(OSError):
            if text := file.read_bytes()[:_MESSAGE_BYTES].decode(errors="replace"):
                return text
        if code == 0 or self.spec.raw.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return ""
        with contextlib.suppress(OSError), self._log_file(self.state.restarts).open("rb") as file_:
            file_.seek(max(0, file_.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            lines = file_.read().decode(errors="replace").splitlines(keepends=True)
            return "".join(lines[-_LOG_TAIL_LINES:])
        return ""

    def _log_file(self, run: int) -> Path:
        if self._around is None:
            raise RuntimeError("the container was never started")
        return self._around.rooms.of(self.spec.name) / f"{run}.log"

    def _forget_logs_before(self, run: int) -> None:
        for file in self._log_file(0).parent.glob("*.log"):
            if int(file.stem) < run:
                file.unlink(missing_ok=True)

    def _event(self, severity: Severity, reason: str, message: str) -> None:
        if self._around:
            self._around.events(severity, reason, message, self.spec.field_path)

    def _set(self, **changes: Any) -> None:
        state = replace(self.state, **changes)
        if state != self.state:
            self.state = state
            self._changed()

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_log_failure)
        return task


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.error("a container's task failed", exc_info=error)
