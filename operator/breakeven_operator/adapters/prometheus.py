"""Prometheus through prometheus-api-client, which is synchronous: every query runs in a worker thread."""

from __future__ import annotations

import asyncio
import base64
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from urllib3.util.retry import Retry

from breakeven_operator.plan import SECRETS
from breakeven_operator.ports import Cluster, ClusterError, MetricsError, Samples, Series, Source

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Credentials:
    """Secrets of one source, for the length of one query."""

    bearer: str | None
    headers: tuple[tuple[str, str], ...]
    ca: bytes | None
    certificate: bytes | None
    key: bytes | None


class Prometheus:
    """The `Metrics` port.

    Secrets are read at every query (they rotate) and live no longer than it; TLS files stand in a private temporary
    folder for that time because `requests` takes paths only.
    """

    def __init__(
        self, cluster: Cluster, *, timeout_s: int = 10, bearer_file: str = "", ca_file: str = ""
    ) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._bearer_file = bearer_file
        self._ca_file = ca_file

    async def query(self, source: Source, promql: str) -> Sequence[Series]:
        """See `Metrics.query`."""
        rows = await self._rows(source, promql)
        try:
            return [Series(row["metric"], float(row["value"][1])) for row in rows]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise MetricsError(
                f"{_host(source)} answered with something that is no instant vector"
            ) from error

    async def query_past(self, source: Source, promql: str) -> Sequence[Samples]:
        """See `Metrics.query_past`."""
        rows = await self._rows(source, promql)
        try:
            return [
                Samples(
                    row["metric"], tuple((float(time_s), float(value)) for time_s, value in row["values"])
                )
                for row in rows
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise MetricsError(f"{_host(source)} answered with something that is no range vector") from error

    async def _rows(self, source: Source, promql: str) -> list[dict[str, Any]]:
        credentials = await self._credentials(source)
        return await asyncio.to_thread(self._ask, source, credentials, promql)

    def _ask(self, source: Source, credentials: _Credentials, promql: str) -> list[dict[str, Any]]:
        headers = dict(credentials.headers)
        if credentials.bearer:
            headers["Authorization"] = f"Bearer {credentials.bearer}"
        with tempfile.TemporaryDirectory(prefix="breakeven-tls-") as folder, requests.Session() as session:
            # A .netrc of the machine or proxies of its environment are nobody's configuration here.
            session.trust_env = False
            if credentials.ca:
                session.verify = _file(folder, "ca.crt", credentials.ca)
            elif self._ca_file:
                session.verify = self._ca_file
            if credentials.certificate and credentials.key:
                session.cert = (
                    _file(folder, "tls.crt", credentials.certificate),
                    _file(folder, "tls.key", credentials.key),
                )
            connection = PrometheusConnect(
                url=source.address.rstrip("/"),
                headers=headers,
                session=session,
                timeout=self._timeout_s,
                retry=Retry(total=0),
            )
            try:
                rows: list[dict[str, Any]] = connection.custom_query(promql)
            except requests.JSONDecodeError as error:
                raise MetricsError(
                    f"{_host(source)} answered with something that is not Prometheus' JSON"
                ) from error
            except OSError as error:  # of `requests`, and of a CA or certificate that is none
                # The exception's own text repeats the whole query.
                raise MetricsError(f"{_host(source)} is not reached ({type(error).__name__})") from error
            except PrometheusApiClientException as error:
                raise MetricsError(f"{_host(source)} refused the query: {str(error)[:200]}") from error
            except (KeyError, ValueError, TypeError) as error:
                raise MetricsError(
                    f"{_host(source)} answered with something that is not Prometheus' JSON"
                ) from error
            return rows

    async def _credentials(self, source: Source) -> _Credentials:
        bearer = await self._secret(source, source.bearer_secret)
        if bearer is None and self._bearer_file and source.bearer_secret is None and not source.namespace:
            try:
                bearer = await asyncio.to_thread(Path(self._bearer_file).read_bytes)
            except OSError as error:
                raise MetricsError(f"{self._bearer_file} cannot be read ({error.strerror})") from error
        headers = list(source.headers)
        for name, reference in source.secret_headers:
            headers.append((name, _header(await self._secret(source, reference) or b"", name)))
        return _Credentials(
            _header(bearer, "Authorization") if bearer else None,
            tuple(headers),
            await self._secret(source, source.ca_secret),
            await self._secret(source, source.cert_secret),
            await self._secret(source, source.key_secret),
        )

    async def _secret(self, source: Source, reference: tuple[str, str] | None) -> bytes | None:
        if reference is None:
            return None
        name, key = reference
        try:
            secret = await self._cluster.get(SECRETS, source.namespace, name)
        except ClusterError as error:
            raise MetricsError(f"Secret {name} cannot be read ({error.status})") from error
        data = ((secret or {}).get("data") or {}).get(key)
        if data is None:
            raise MetricsError(f"there is no Secret {name} with key {key}")
        return base64.b64decode(data)


def _host(source: Source) -> str:
    parts = urlsplit(source.address)
    return f"Prometheus at {parts.hostname}:{parts.port}" if parts.port else f"Prometheus at {parts.hostname}"


def _header(value: bytes, name: str) -> str:
    """A credential as a header's value; what it is never stands in the error."""
    try:
        return value.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise MetricsError(f"the credential for header {name} is not plain ASCII") from error


def _file(folder: str, name: str, content: bytes) -> str:
    path = Path(folder, name)
    path.touch(mode=0o600)
    path.write_bytes(content)
    return str(path)
