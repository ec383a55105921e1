"""A Prometheus that holds what a test made up, or scrapes pages of a test: no cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from breakeven.readers.prometheus import InstantSample, Samples
from breakeven.serving.promql import SAME_LABELS, LabelNames
from breakeven_operator.cluster.prometheus_api import PrometheusClient
from breakeven_operator.ports import Cluster, PrometheusAccess
from fakes.held_series import HeldSeries, NativeHistogram, SeriesStore, Stale
from localcluster.binaries import ensure
from localcluster.free_ports import free_ports

_Answer = TypeVar("_Answer")


@contextlib.contextmanager
def prometheus_of(
    folder: Path, openmetrics: str, rules: Path | None = None, external: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Serve made-up samples; yields the address.

    Args:
        folder: an empty one, for its files.
        openmetrics: samples with times (s), as promtool makes blocks of them.
        rules: a file of rules, evaluated every second.
        external: labels that tell this server from others where their answers are put together.
    """
    programs = ensure(("prometheus", "promtool"))
    (folder / "samples.txt").write_text(openmetrics)
    everywhere = {"evaluation_interval": "1s", "external_labels": dict(external or {})}
    document = {"global": everywhere, "rule_files": [str(rules)] if rules is not None else []}
    subprocess.run(
        [programs["promtool"], "tsdb", "create-blocks-from", "openmetrics", "samples.txt", "data"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    with _serving(folder, yaml.safe_dump(document)) as address:
        yield address


@contextlib.contextmanager
def prometheus_scraping(folder: Path, jobs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Scrape some jobs every second, each given as an entry of `scrape_configs`; yields the address."""
    document = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [*jobs]}
    with _serving(folder, yaml.safe_dump(document)) as address:
        yield address


@contextlib.contextmanager
def prometheus_of_store(folder: Path, store: SeriesStore) -> Iterator[str]:
    """Hold the series of a store, native histograms and staleness markers among them; yields the address."""
    config = "otlp: {translation_strategy: NoTranslation}\n"
    with _serving(folder, config, "--web.enable-otlp-receiver") as address:
        request = urllib.request.Request(
            f"{address}/api/v1/otlp/v1/metrics",
            data=json.dumps(otlp(store)).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
        yield address


def otlp(store: SeriesStore) -> dict[str, Any]:
    """The series as OpenTelemetry's protocol has them in JSON: it knows native histograms and markers of staleness."""
    metrics = [_otlp_metric(series) for series in store.series]
    return {"resourceMetrics": [{"resource": {}, "scopeMetrics": [{"metrics": metrics}]}]}


def _otlp_metric(series: HeldSeries) -> dict[str, Any]:
    own = [
        {"key": key, "value": {"stringValue": value}}
        for key, value in series.labels.items()
        if key != "__name__"
    ]
    points: list[dict[str, Any]] = []
    native = False
    for time_ms, value in zip(series.times_ms, series.values, strict=True):
        point: dict[str, Any] = {"attributes": own, "timeUnixNano": str(time_ms * 1_000_000)}
        if isinstance(value, Stale):
            points.append({**point, "flags": 1})
        elif isinstance(value, NativeHistogram):
            native = True
            buckets = {"offset": value.offset, "bucketCounts": [str(int(one)) for one in value.counts]}
            more = {"count": str(int(value.count)), "sum": value.total, "scale": value.schema}
            points.append({**point, **more, "zeroCount": "0", "positive": buckets, "negative": {}})
        else:
            points.append({**point, "asDouble": value if math.isfinite(value) else str(value)})
    kind = "exponentialHistogram" if native else "gauge"
    more = {"aggregationTemporality": 2} if native else {}
    return {"name": series.labels["__name__"], kind: {**more, "dataPoints": points}}


@contextlib.contextmanager
def _serving(folder: Path, config: str, *flags: str) -> Iterator[str]:
    (folder / "prometheus.yml").write_text(config)
    (port,) = free_ports(1)
    command = [
        str(ensure(("prometheus",))["prometheus"]),
        f"--web.listen-address=127.0.0.1:{port}",
        "--storage.tsdb.path=data",
        "--config.file=prometheus.yml",
        *flags,
    ]
    with served(folder, command, f"http://127.0.0.1:{port}") as address:
        yield address


@contextlib.contextmanager
def served(folder: Path, command: Sequence[str], address: str, ready: str = "/-/ready") -> Iterator[str]:
    """Run a server until the block ends; yields its address when it is ready.

    Args:
        folder: of the process; its log and the file `pid` lie there.
        command: of the server.
        address: of its pages.
        ready: the page that answers with 200 when it is ready.
    """
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    (folder / "pid").write_text(str(process.pid))
    try:
        deadline = time.monotonic() + 180
        while not _answers(f"{address}{ready}"):
            assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
        return bool(answer.status == 200)
    return False


def asked(address: str, promql: str, labels: LabelNames = SAME_LABELS) -> Sequence[InstantSample]:
    """The samples that the operator's own client reads of it."""
    return _asked(lambda client: client.query(PrometheusAccess(address, labels=labels), promql))


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
