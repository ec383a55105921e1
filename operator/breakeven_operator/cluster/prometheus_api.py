"""The library's client of Prometheus as the operator asks it: from threads, with credentials of Secrets, in the memory that it has."""

from __future__ import annotations

import asyncio
import base64
import functools
import ipaddress
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from breakeven.prometheus_queries import (
    LARGEST_MIB,
    Dialect,
    Prometheus,
    PrometheusError,
    plain_socket,
    tls_context,
)
from breakeven.readers.prometheus import InstantSample, Samples
from breakeven_operator.kinds import SECRETS
from breakeven_operator.ports import (
    Cluster,
    ClusterError,
    MetricsError,
    PrometheusAccess,
    SecretKey,
)
from breakeven_operator.resources.metricssource import ADDRESS_PATTERN, may_carry

_Answer = TypeVar("_Answer")
_LOG = logging.getLogger(__name__)
# A series takes about 200 bytes, and five hundred pods are asked about at a time: 12,500 series, 3 MiB.
# Read, a row takes ten times as much. A server that somebody names in a service gets the smaller share.
_LARGEST_OF_OTHERS_MIB = 4
# So many large answers are held at a time, apart from answers of the operator's own Prometheus.
_LARGE_AT_A_TIME = 2
OF_SERVER_AT_A_TIME = 16
"""Queries of one server under way; the others wait, so that servers that hang keep no thread from another one."""
_SERVERS_KNOWN = 4096
_THREADS_OF_OWN, _THREADS = OF_SERVER_AT_A_TIME, 512
_ALLOWED = "breakeven.dev/prometheus-address"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAMES: Final = frozenset(
    {"localhost", "metadata", "metadata.google.internal", "metadata.goog", "instance-data"}
)
# Beside loopback and link-local: what clouds answer at, and the prefixes of IPv6 that hold an address of IPv4.
_NETWORKS: Final[tuple[Network, ...]] = tuple(
    map(
        ipaddress.ip_network,
        ("0.0.0.0/8", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::/32"),
    )
)
_TRANSLATED: Final = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96")))


class OwnPrometheus(NamedTuple):
    """The operator's own Prometheus; files of token and certificate authority are for it and nobody else (empty: none)."""

    access: PrometheusAccess
    bearer_file: str = ""
    ca_file: str = ""


class PrometheusClient:
    """The `Metrics` port. One instance per process and event loop; `close` it.

    A query ends after `timeout_s`, the reading of its Secrets included, whatever the server sends meanwhile, and its thread with
    it. It reads no more than 16 MiB from the operator's own Prometheus, 4 from others. Secrets are read at every query (they
    rotate), live no longer than it and never touch a disk.

    Args:
        timeout_s: from the beginning of a query to the last byte of its answer.
        allowed: servers that are asked although they are loopback or link-local, see `TenantServers`.
        now: Unix time (s).
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        timeout_s: float = 10.0,
        own: OwnPrometheus | None = None,
        allowed: Sequence[str] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._own = own
        self._servers = TenantServers(allowed, None if own is None else own.access)
        self._now = now
        self._known = functools.lru_cache(_SERVERS_KNOWN)(
            lambda _source: (asyncio.Semaphore(OF_SERVER_AT_A_TIME), Dialect())
        )
        # Keyed by whether it is the operator's own Prometheus that is asked.
        self._turns = {own: threading.Semaphore(_LARGE_AT_A_TIME) for own in (True, False)}
        self._threads = {
            own: ThreadPoolExecutor(threads, "prometheus")
            for own, threads in ((True, _THREADS_OF_OWN), (False, _THREADS))
        }

    async def query(self, source: PrometheusAccess, promql: str) -> Sequence[InstantSample]:
        """See `Metrics.query`."""
        return await self._asked(source, lambda server: server.instant(promql))

    async def query_past(self, source: PrometheusAccess, promql: str) -> Sequence[Samples]:
        """See `Metrics.query_past`."""
        return await self._asked(source, lambda server: server.past(promql))

    async def close(self) -> None:
        """Let the threads end; threads of queries under way end as the queries are cancelled."""
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    async def _asked(self, source: PrometheusAccess, ask: Callable[[Prometheus], _Answer]) -> _Answer:
        trusted = self._servers.trusts(source)
        places, dialect = self._known(source)
        try:
            # One limit around everything: the Secrets, the wait for a thread, and a server's name that nobody resolves.
            async with asyncio.timeout(self._timeout_s), places:
                server = await self._server(source, dialect, trusted=trusted)
                threads = self._threads[self._own_of(source) is not None]
                try:
                    return await asyncio.get_running_loop().run_in_executor(threads, ask, server)
                finally:
                    server.end()
        except TimeoutError as error:
            raise MetricsError(f"{source.name} gave no whole answer within {self._timeout_s:g} s") from error
        except PrometheusError as error:
            if error.said:
                _LOG.warning("%s: %s", source.name, error.said)
            raise MetricsError(f"{source.name} {error}") from error

    def _own_of(self, source: PrometheusAccess) -> OwnPrometheus | None:
        return self._own if self._own is not None and source == self._own.access else None

    async def _server(self, source: PrometheusAccess, dialect: Dialect, *, trusted: bool) -> Prometheus:
        own = self._own_of(source)
        bearer = await self._secret(source, source.bearer_secret, sent=True)
        if bearer is None and own is not None and own.bearer_file:
            bearer = _content(own.bearer_file)
        headers = dict(source.headers)
        if bearer:
            headers["Authorization"] = f"Bearer {_header(bearer, 'Authorization')}"
        for name, reference in source.secret_headers:
            headers[name] = _header(await self._secret(source, reference, sent=True) or b"", name)
        authority = await self._secret(source, source.ca_secret)
        if authority is None and own is not None and own.ca_file:
            authority = _content(own.ca_file)
        certificate = await self._secret(source, source.cert_secret)
        key = await self._secret(source, source.key_secret)
        try:
            tls = tls_context(authority, certificate, key)
        except (OSError, ValueError) as error:
            raise MetricsError(
                f"{source.name}: its certificate authority, or our certificate or key for it, is not usable"
            ) from error
        return Prometheus(
            source.address.rstrip("/"),
            headers,
            self._timeout_s,
            tls,
            source.labels,
            LARGEST_MIB if own is not None else _LARGEST_OF_OTHERS_MIB,
            self._turns[own is not None],
            plain_socket if trusted else self._servers.socket_for,
            dialect,
            self._now,
        )

    async def _secret(
        self, source: PrometheusAccess, reference: SecretKey | None, *, sent: bool = False
    ) -> bytes | None:
        """A key of a Secret; if its content is sent, the Secret's annotation names the server."""
        if reference is None:
            return None
        name, key = reference
        try:
            secret = await self._cluster.get(SECRETS, source.namespace, name)
        except ClusterError as error:
            raise MetricsError(f"Secret {name} cannot be read ({error.status})") from error
        allowed = str((((secret or {}).get("metadata") or {}).get("annotations") or {}).get(_ALLOWED) or "")
        addresses = {address.rstrip("/") for address in re.split(r"[\s,]+", allowed)}
        if secret is not None and sent and source.address.rstrip("/") not in addresses:
            raise MetricsError(
                f"Secret {name} is not sent to {source.name}: annotate it with {_ALLOWED}={source.address}"
            )
        data = ((secret or {}).get("data") or {}).get(key)
        if data is None:
            raise MetricsError(f"there is no Secret {name} with key {key}")
        return base64.b64decode(data)


def _header(value: bytes, name: str) -> str:
    """A credential as a header's value; the error of a bad one names the header, never the value."""
    try:
        text = value.decode("ascii").strip()
    except UnicodeDecodeError:
        text = "\n"
    if not text.isprintable():
        raise MetricsError(f"the credential for header {name} is not plain ASCII of one line")
    return text


def _content(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise MetricsError(f"{file} cannot be read ({error.strerror})") from error


class TenantServers:
    """Servers that a service may have the operator ask: not the operator's own machine, and no cloud's metadata service.

    The operator asks from its own place in the network, past the egress policies of the service's namespace. A name's
    addresses are checked when the connection is made. So a DNS answer that changes between check and use gains nothing.

    Args:
        allowed: addresses (`http://host:port`), host names, IP addresses and networks that are asked all the same.
        own: the operator's own Prometheus, which services may name too; None if there is none.
    """

    def __init__(self, allowed: Sequence[str] = (), own: PrometheusAccess | None = None) -> None:
        self._own = own.address.rstrip("/") if own is not None else None
        self._origins = {origin(entry) for entry in allowed if "://" in entry}
        self._networks: list[Network] = []
        self._names: set[str] = set()
        for entry in allowed:
            if "://" in entry:
                continue
            try:
                self._networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                self._names.add(entry.lower())

    def trusts(self, source: PrometheusAccess) -> bool:
        """Whether the installation names this very server.

        Raises:
            MetricsError: the source may not be asked, or not in this way, whatever its address resolves to.
        """
        address = source.address.rstrip("/")
        if address == self._own:
            return True
        if not re.fullmatch(ADDRESS_PATTERN, source.address):
            raise MetricsError(f"{source.name} is no address that can be asked")
        for name, _ in (*source.headers, *source.secret_headers):
            if not may_carry(name):
                raise MetricsError(f"{source.name} is not asked with header {name}")
        host = _host(address)
        if host in self._names or origin(address) in self._origins:
            return True
        if host in _NAMES or host.endswith(".localhost"):
            raise self._refusal(host)
        return False

    def socket_for(self, found: tuple[Any, ...]) -> socket.socket:
        """A socket for one address that a server's name resolved to, or that stands in its URL.

        Raises:
            MetricsError: the address is the operator's machine or a cloud's metadata service, and not allowed.
        """
        family, kind, protocol, _, where = found
        address = ipaddress.ip_address(str(where[0]).partition("%")[0])
        if not any(address in network for network in self._networks) and is_reserved(address):
            raise self._refusal(str(where[0]))
        return socket.socket(family, kind, protocol)

    @staticmethod
    def _refusal(host: str) -> MetricsError:
        return MetricsError(
            f"Prometheus at {host} is not asked: loopback, link-local and metadata addresses are for the operator's"
            " installation to allow (prometheus.allowedAddresses)"
        )


def is_reserved(address: Address) -> bool:
    """Whether an address is the machine's own, its link's or a cloud's metadata service, also within one of IPv6."""
    inner = _embedded(address)
    if inner is not None and is_reserved(inner):
        return True
    special = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    return special or any(address in network for network in _NETWORKS)


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """The address of IPv4 that one of IPv6 leads to; None without one."""
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if any(address in network for network in _TRANSLATED):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def origin(address: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of a URL, by which two of them name one server."""
    try:
        port = urlsplit(address).port
    except ValueError:
        port = None
    scheme = address.partition("://")[0].lower()
    return scheme, _host(address), port or {"http": 80, "https": 443}.get(scheme)


def _host(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").rstrip(".")
    except ValueError:
        return ""
