"""Servers that a service may have the operator ask: not the operator's own machine, and no cloud's metadata service.

The operator asks from its own place in the network, past the egress policies of the service's namespace. A name's
addresses are checked when the connection is made. So a DNS answer that changes between check and use gains nothing.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from breakeven_operator.ports import MetricsError, PrometheusAccess
from breakeven_operator.resources.metricssource import ADDRESS_PATTERN, may_carry

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


class TenantServers:
    """The servers that services may name, and those that their installation allows besides.

    Args:
        allowed: addresses (`http://host:port`), host names, IP addresses and networks that are asked all the same.
        own: the operator's own Prometheus, which services may name too; None: there is none.
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
