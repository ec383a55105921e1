"""Addresses in 127.0.0.0/8: a range of 256 per node, reserved against all other agents on the machine."""

from __future__ import annotations

import hashlib
import ipaddress
import socket

# 127.64.0.0 to 127.127.255.0: away from 127.0.x.x, which programs and distributions use.
_FIRST_OCTETS, _RANGES = range(64, 128), 64 * 256
_POD_HOSTS = range(2, 255)


class NoAddressError(Exception):
    """All addresses of a node, or all ranges of the machine, are taken."""


class AddressRange:
    """One /24 of loopback. The first host address is the node's, the others are its pods'.

    An abstract Unix socket holds a range. Like loopback the socket belongs to the network namespace, and the kernel gives it
    back when the agent dies, however it dies.
    """

    def __init__(self, identity: str) -> None:
        """Takes a free range, preferring the one that `identity` (the same for the same node after a restart) hashes to.

        Raises:
            NoAddressError: there is none.
        """
        preferred = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4]) % _RANGES
        for offset in range(_RANGES):
            second, third = divmod((preferred + offset) % _RANGES, 256)
            prefix = f"127.{_FIRST_OCTETS[second]}.{third}"
            hold = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                hold.bind(f"\0breakeven-nodeagent-{prefix}")
            except OSError:
                hold.close()
                continue
            self._hold, self._prefix = hold, prefix
            break
        else:
            raise NoAddressError("every range of loopback is held by some agent")
        self._holders: dict[str, str] = {}
        self._latest = _POD_HOSTS[-1]

    @property
    def node(self) -> str:
        """The node's own address."""
        return f"{self._prefix}.1"

    def take(self, holder: str, wanted: str = "") -> str:
        """An address for a pod: the one it has, else `wanted` if that is free here, else the one unused for longest.

        Raises:
            NoAddressError: the node has none left.
        """
        for address, owner in self._holders.items():
            if owner == holder:
                return address
        if wanted and wanted not in self._holders and self._mine(wanted):
            self._holders[wanted] = holder
            return wanted
        for step in range(len(_POD_HOSTS)):
            # Not the lowest free one: a client that still talks to a stopped pod must not reach the next.
            host = _POD_HOSTS[(self._latest - _POD_HOSTS[0] + 1 + step) % len(_POD_HOSTS)]
            address = f"{self._prefix}.{host}"
            if address not in self._holders:
                self._latest = host
                self._holders[address] = holder
                return address
        raise NoAddressError(f"all {len(_POD_HOSTS)} pod addresses of {self._prefix}.0/24 are taken")

    def release(self, holder: str) -> None:
        """Gives back a pod's address, if it has one."""
        self._holders = {address: owner for address, owner in self._holders.items() if owner != holder}

    def close(self) -> None:
        """Gives the range back."""
        self._hold.close()

    def _mine(self, address: str) -> bool:
        return (
            ipaddress.ip_address(address) in ipaddress.ip_network(f"{self._prefix}.0/24")
            and int(address.rpartition(".")[2]) in _POD_HOSTS
        )
