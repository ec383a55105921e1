"""Servers that are asked in Prometheus' place: VictoriaMetrics, and Thanos over Prometheus servers."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from localcluster.binaries import ensure
from localcluster.free_ports import free_ports
from operatorcluster.made_up_prometheus import prometheus_of, served
from operatorcluster.optional import needs_controller

PROMETHEUS, VICTORIA_METRICS, THANOS = "prometheus", "victoria-metrics", "thanos"
needs_victoria_metrics = needs_controller(VICTORIA_METRICS, "two minutes")
needs_thanos = needs_controller(THANOS, "seven minutes")
SOURCES: Final = (
    PROMETHEUS,
    pytest.param(VICTORIA_METRICS, marks=needs_victoria_metrics),
    pytest.param(THANOS, marks=needs_thanos),
)
"""Parameters of a fixture; those whose programs were not built are skipped."""
REPLICA_LABEL: Final = "prometheus_replica"


@contextlib.contextmanager
def source_of(kind: str, folder: Path, openmetrics: str) -> Iterator[str]:
    """Serve made-up samples by one of `SOURCES`; yields the address."""
    with contextlib.ExitStack() as stack:
        if kind == PROMETHEUS:
            yield stack.enter_context(prometheus_of(folder, openmetrics))
        elif kind == VICTORIA_METRICS:
            yield stack.enter_context(victoria_metrics_of(folder, openmetrics))
        else:
            store = stack.enter_context(store_of(folder / "store", openmetrics, {REPLICA_LABEL: "a"}))
            yield stack.enter_context(thanos_over(folder / "query", [store]))


@contextlib.contextmanager
def victoria_metrics_of(folder: Path, openmetrics: str) -> Iterator[str]:
    """Serve made-up samples by VictoriaMetrics; yields the address."""
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    command = [
        str(ensure((VICTORIA_METRICS,))[VICTORIA_METRICS]),
        f"-httpListenAddr=127.0.0.1:{port}",
        "-storageDataPath=data",
        "-retentionPeriod=100y",
    ]
    with served(folder, command, address, "/health"):
        _post(f"{address}/api/v1/import/prometheus", _in_milliseconds(openmetrics).encode())
        # Imported samples are seen after a second or two, unless somebody asks for them at once.
        _post(f"{address}/internal/force_flush", b"")
        yield address


def _in_milliseconds(openmetrics: str) -> str:
    """The samples as Prometheus' older format has them: times in milliseconds, and no end mark."""
    samples = (line.rpartition(" ") for line in openmetrics.splitlines() if not line.startswith("#"))
    return "\n".join(f"{sample} {round(float(time_s) * 1000)}" for sample, _, time_s in samples) + "\n"


def _post(url: str, body: bytes) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method="POST")) as answer:
        assert answer.status in {200, 204}


@contextlib.contextmanager
def store_of(folder: Path, openmetrics: str, external: Mapping[str, str]) -> Iterator[str]:
    """Made-up samples in a Prometheus with Thanos' sidecar; yields the sidecar's gRPC address.

    Process ids are in the files `prometheus/pid` and `sidecar/pid`.
    """
    prometheus, sidecar = folder / PROMETHEUS, folder / "sidecar"
    for made in (prometheus, sidecar):
        made.mkdir(parents=True)
    grpc, http = free_ports(2)
    with prometheus_of(prometheus, openmetrics, external=external) as address:
        command = [
            *_thanos("sidecar", grpc, http),
            f"--prometheus.url={address}",
            f"--tsdb.path={prometheus / 'data'}",
        ]
        with served(sidecar, command, f"http://127.0.0.1:{http}"):
            yield f"127.0.0.1:{grpc}"


@contextlib.contextmanager
def thanos_over(folder: Path, stores: Sequence[str], *, deduplicates: bool = True) -> Iterator[str]:
    """Thanos' querier over some stores; yields its address.

    Args:
        folder: for its files.
        stores: gRPC addresses.
        deduplicates: whether it knows the label that tells replicas apart.
    """
    folder.mkdir(parents=True)
    grpc, http = free_ports(2)
    command = [
        *_thanos("query", grpc, http),
        *(f"--endpoint={store}" for store in stores),
        *([f"--query.replica-label={REPLICA_LABEL}"] if deduplicates else []),
    ]
    with served(folder, command, f"http://127.0.0.1:{http}") as address:
        yield address


def _thanos(component: str, grpc: int, http: int) -> list[str]:
    program = str(ensure((THANOS,))[THANOS])
    return [
        program,
        component,
        f"--grpc-address=127.0.0.1:{grpc}",
        f"--http-address=127.0.0.1:{http}",
        "--log.level=warn",
    ]
