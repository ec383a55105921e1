"""Runs a container's probes: startup first, then readiness and liveness side by side until the container ends."""

from __future__ import annotations

import asyncio
from typing import Protocol

import aiohttp

from localcluster.nodeagent import container_actions
from localcluster.nodeagent.container_actions import Inside
from localcluster.nodeagent.podspec import ContainerSpec, ProbeSpec
from localcluster.nodeagent.thresholds import ProbeVerdict


class Listener(Protocol):
    """Who acts on what the probes find."""

    def on_started(self) -> None:
        """The startup probe passed, or there is none."""

    def on_ready(self, *, ready: bool) -> None:
        """The readiness probe's verdict changed."""

    def on_unhealthy(self, kind: str, output: str) -> None:
        """One probe failed once (for the event)."""

    def on_dead(self, kind: str, probe: ProbeSpec) -> None:
        """The startup or liveness probe gave up: the container must be restarted."""


async def watch(
    container: ContainerSpec, inside: Inside, session: aiohttp.ClientSession, listener: Listener
) -> None:
    """Probes until cancelled, or until the startup or the liveness probe gives up; to be called as the container starts."""
    began = asyncio.get_running_loop().time()
    if container.startup and not await _until_started(container.startup, inside, session, listener):
        return
    listener.on_started()
    # Initial delays count from the container's start, not from the startup probe's success.
    elapsed_s = asyncio.get_running_loop().time() - began
    if container.readiness is None:
        listener.on_ready(ready=True)
    async with asyncio.TaskGroup() as group:
        if container.readiness:
            group.create_task(_readiness(container.readiness, elapsed_s, inside, session, listener))
        if container.liveness:
            group.create_task(_liveness(container.liveness, elapsed_s, inside, session, listener))


async def _until_started(
    probe: ProbeSpec, inside: Inside, session: aiohttp.ClientSession, listener: Listener
) -> bool:
    verdict = ProbeVerdict(probe.success_threshold, probe.failure_threshold)
    await asyncio.sleep(probe.initial_delay_s)
    while verdict.passing is None:
        verdict = await _observed(verdict, "Startup", probe, inside, session, listener)
        if verdict.passing is None:
            await asyncio.sleep(probe.period_s)
    if not verdict.passing:
        listener.on_dead("startup", probe)
    return verdict.passing


async def _readiness(
    probe: ProbeSpec, elapsed_s: float, inside: Inside, session: aiohttp.ClientSession, listener: Listener
) -> None:
    verdict = ProbeVerdict(probe.success_threshold, probe.failure_threshold)
    await asyncio.sleep(probe.initial_delay_s - elapsed_s)
    while True:
        before = verdict.passing
        verdict = await _observed(verdict, "Readiness", probe, inside, session, listener)
        if verdict.passing is not None and verdict.passing is not before:
            listener.on_ready(ready=verdict.passing)
        await asyncio.sleep(probe.period_s)


async def _liveness(
    probe: ProbeSpec, elapsed_s: float, inside: Inside, session: aiohttp.ClientSession, listener: Listener
) -> None:
    verdict = ProbeVerdict(probe.success_threshold, probe.failure_threshold)
    await asyncio.sleep(probe.initial_delay_s - elapsed_s)
    while True:
        verdict = await _observed(verdict, "Liveness", probe, inside, session, listener)
        if verdict.passing is False:
            listener.on_dead("liveness", probe)
            return
        await asyncio.sleep(probe.period_s)


async def _observed(
    verdict: ProbeVerdict,
    kind: str,
    probe: ProbeSpec,
    inside: Inside,
    session: aiohttp.ClientSession,
    listener: Listener,
) -> ProbeVerdict:
    result = await container_actions.perform(probe.action, inside, session, probe.timeout_s)
    if not result.ok:
        listener.on_unhealthy(kind, result.output)
    return verdict.observe(ok=result.ok)
