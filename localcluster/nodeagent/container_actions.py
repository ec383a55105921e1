"""Carries out what probes and lifecycle hooks ask for: a command in the container, a URL, a connection, a wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from localcluster.nodeagent.podspec import Action, ExecAction, HttpAction, SleepAction, TcpAction
from localcluster.nodeagent.processes import Launch, Process, StartError

_OUTPUT_LIMIT = 10_240  # what a kubelet keeps of a probe's output
_DEFAULT_HEADERS = {"User-Agent": "kube-probe/1.36", "Accept": "*/*"}


@dataclass(frozen=True)
class ActionResult:
    """How an action went; `output` is what an event should say."""

    ok: bool
    output: str = ""


class Inside(Protocol):
    """The container to which an action belongs."""

    @property
    def pod_ip(self) -> str:
        """Where URLs and connections go unless the action names a host."""

    def command(self, argv: tuple[str, ...]) -> Launch:
        """How to execute a command in the running container."""


async def perform(
    action: Action, inside: Inside, session: aiohttp.ClientSession, timeout_s: float | None
) -> ActionResult:
    """Carries out one action; every failure is a result, none is raised. No timeout: as long as it takes."""
    try:
        async with asyncio.timeout(timeout_s):
            match action:
                case ExecAction():
                    return await _execute(inside.command(action.command))
                case HttpAction():
                    return await _get(action, action.host or inside.pod_ip, session)
                case TcpAction():
                    return await _connect(action.host or inside.pod_ip, action.port)
                case SleepAction():
                    await asyncio.sleep(action.seconds)
                    return ActionResult(ok=True)
    except TimeoutError:
        return ActionResult(ok=False, output=f"timed out after {timeout_s:g}s")


async def _execute(launch: Launch) -> ActionResult:
    with contextlib.closing(os.fdopen(os.memfd_create("output"), "w+b")) as output:
        try:
            process = await Process.start(launch, output.fileno())
        except StartError as error:
            return ActionResult(ok=False, output=str(error))
        try:
            code = await process.exited()
        finally:
            process.kill()
        output.seek(0)
        text = output.read(_OUTPUT_LIMIT).decode(errors="replace")
    return ActionResult(ok=code == 0, output=text if code == 0 or text else f"exit code {code}")


async def _get(action: HttpAction, host: str, session: aiohttp.ClientSession) -> ActionResult:
    url = f"{action.scheme}://{host}:{action.port}/{action.path.removeprefix('/')}"
    headers = {**_DEFAULT_HEADERS, **dict(action.headers)}
    try:
        # A redirect is a success, as for a kubelet when it leads to another host; here none is followed.
        async with session.get(url, headers=headers, allow_redirects=False, ssl=False) as response:
            if 200 <= response.status < 400:
                return ActionResult(ok=True)
            return ActionResult(ok=False, output=f"HTTP probe failed with statuscode: {response.status}")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return ActionResult(ok=False, output=f'Get "{url}": {str(error) or type(error).__name__}')


async def _connect(host: str, port: int) -> ActionResult:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except (OSError, OverflowError) as error:
        return ActionResult(ok=False, output=f"dial tcp {host}:{port}: {error}")
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ActionResult(ok=True)
