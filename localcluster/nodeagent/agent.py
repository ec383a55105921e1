"""Puts the agent together and runs it until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from localcluster.nodeagent import api_access, images, isolation, kubeletapi
from localcluster.nodeagent.api_client import FAILURES, ApiClient
from localcluster.nodeagent.backoff import Backoff
from localcluster.nodeagent.event_recorder import Recorder
from localcluster.nodeagent.isolation import Isolation
from localcluster.nodeagent.node import Node, Shared
from localcluster.nodeagent.nodeobjects import NodeSpec
from localcluster.nodeagent.preloading import ForkServers
from localcluster.nodeagent.sandbox import Machine
from localcluster.nodeagent.volumes import REFRESH_S

_log = logging.getLogger(__name__)

_STARTUP_S = 60.0


@dataclass(frozen=True)
class AgentSettings:
    """Settings with which one agent is started."""

    kubeconfig: Path
    state_dir: Path
    nodes: tuple[NodeSpec, ...]
    images: tuple[Path, ...] = ()
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    client_authority: Path | None = None
    backoff: Backoff = field(default_factory=Backoff)
    refresh_s: float = REFRESH_S
    namespaces: bool = True


async def run(settings: AgentSettings) -> None:
    """Registers the nodes, prints one line when all are ready, and runs their pods until SIGTERM or SIGINT.

    Raises:
        KubeconfigError, ImageTableError: a file that cannot be used.
        ApiError, aiohttp.ClientError, TimeoutError, OSError: the API server refused or did not answer at the start.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    table = images.load(*settings.images)
    connection = api_access.load(settings.kubeconfig)
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    found = (
        await isolation.detect(settings.state_dir)
        if settings.namespaces
        else Isolation(allowed=False, reason="switched off")
    )
    if not found.allowed:
        _log.warning(
            "no user namespaces here (%s): mount paths are rewritten in command lines instead", found.reason
        )

    fork_servers = ForkServers()

    def machine(spec: NodeSpec) -> Machine:
        return Machine(
            images=table,
            isolation=found,
            root_folder=settings.state_dir / "root",
            api_host=connection.host,
            api_port=connection.port,
            gpu_product=spec.gpu_product,
            fork_servers=fork_servers,
        )

    async with contextlib.AsyncExitStack() as stack:
        api = ApiClient(connection)
        stack.push_async_callback(api.close)
        # A new connection per probe, as a kubelet's: a probe must not succeed on one that a dying server still holds.
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        probes = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        recorder = Recorder(api)
        shared = Shared(
            api=api,
            recorder=recorder,
            probes=probes,
            machine=machine,
            backoff=settings.backoff,
            refresh_s=settings.refresh_s,
            state_dir=settings.state_dir,
            version=await _version(api),
        )
        stack.callback(fork_servers.close)
        nodes = [Node(spec, shared) for spec in settings.nodes]
        if settings.tls_certificate and settings.tls_key:
            tls = kubeletapi.server_tls(settings.tls_certificate, settings.tls_key, settings.client_authority)
            for node in nodes:
                runner = await kubeletapi.serve(node, tls)
                stack.push_async_callback(runner.cleanup)
        for node in nodes:
            await node.register()
        places = ", ".join(f"{node.spec.name} {node.address.node}" for node in nodes)
        print(f"nodeagent: ready: {places}", flush=True)  # noqa: T201 - the starter waits for this line
        tasks = [
            asyncio.ensure_future(work) for work in (stop.wait(), recorder.run(), *(n.run() for n in nodes))
        ]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for task in done:
            task.result()


async def _version(api: ApiClient) -> str:
    """The API server's version, which the nodes claim too; waits for a server that is still starting."""
    deadline = asyncio.get_running_loop().time() + _STARTUP_S
    while True:
        try:
            return str((await api.get("/version"))["gitVersion"])
        except FAILURES:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.5)
