"""A Prometheus that holds what a test made up and scrapes nothing: no cluster, no waiting for scrapes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, cast

from breakeven_operator.adapters.prometheus_api import PrometheusClient
from breakeven_operator.ports import Cluster, InstantSample, PrometheusAccess, Samples
from localcluster.binaries import ensure
from localcluster.free_ports import free_ports

_Answer = TypeVar("_Answer")


@contextlib.contextmanager
def prometheus_of(folder: Path, openmetrics: str, rules: Path | None = None) -> Iterator[str]:
    """Serve made-up samples; yields the address.

    Args:
        folder: an empty one, for its files.
        openmetrics: samples with times (s), as promtool makes blocks of them.
        rules: a file of rules, evaluated every second.
    """
    programs = ensure(("prometheus", "promtool"))
    (folder / "samples.txt").write_text(openmetrics)
    rule_files = f"rule_files: [{rules}]\n" if rules is not None else ""
    (folder / "prometheus.yml").write_text(f"global: {{evaluation_interval: 1s}}\n{rule_files}")
    subprocess.run(
        [programs["promtool"], "tsdb", "create-blocks-from", "openmetrics", "samples.txt", "data"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    (port,) = free_ports(1)
    command = [
        str(programs["prometheus"]),
        f"--web.listen-address=127.0.0.1:{port}",
        "--storage.tsdb.path=data",
        "--config.file=prometheus.yml",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while not _ready(address):
            assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


def _ready(address: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/-/ready") as answer:
        return bool(answer.status == 200)
    return False


def asked(address: str, promql: str) -> Sequence[InstantSample]:
    """What the operator's own client reads of it."""
    return _asked(lambda client: client.query(PrometheusAccess(address), promql))


def past_asked(address: str, promql: str) -> Sequence[Samples]:
    """The same of a query about the past."""
    return _asked(lambda client: client.query_past(PrometheusAccess(address), promql))


def _asked(question: Callable[[PrometheusClient], Awaitable[_Answer]]) -> _Answer:
    async def ask() -> _Answer:
        # Without Secrets in the access no API server is asked for any.
        client = PrometheusClient(cast("Cluster", None), allowed=("127.0.0.1",))
        try:
            return await question(client)
        finally:
            await client.close()

    return asyncio.run(ask())


def series_of(address: str, promql: str) -> list[str]:
    """Labels of the series that an instant query has, each as text."""
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': promql})}"
    with urllib.request.urlopen(url) as answer:
        return [str(one["metric"]) for one in json.load(answer)["data"]["result"]]
