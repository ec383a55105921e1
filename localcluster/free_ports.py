"""Free ports on loopback."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

_RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST: Final = 10240


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports that nobody listens on at 127.0.0.1 now, and that no other process reserved here.

    They lie below the range from which the kernel takes local ports of outgoing connections. A port from `bind(0)` comes
    out of that very range. A client's connection may then get it before a server that starts seconds later can bind it.

    A port stays this process's until it ends. Two clusters that start at the same time could otherwise choose the same one
    before either listens on it.
    """
    ephemeral = int(_RANGE_FILE.read_text().split()[0]) if _RANGE_FILE.exists() else 32768
    candidates = range(_LOWEST, ephemeral) if ephemeral - _LOWEST > 1000 else range(49152, 65536)
    found: list[int] = []
    for port in random.SystemRandom().sample(candidates, len(candidates)):
        if len(found) == count:
            return found
        if _held(port):
            found.append(port)
    raise OSError(f"fewer than {count} free ports on 127.0.0.1")


def _held(port: int) -> bool:
    """Whether the port is free, and this process holds it now.

    By an abstract Unix socket: like loopback it belongs to the network namespace, and the kernel gives it back when the
    process ends, however it ends.
    """
    with socket.socket(socket.AF_UNIX) as hold, socket.socket() as probe:
        try:
            hold.bind(f"\0breakeven-port-{port}")
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        # The descriptor is left open on purpose.
        hold.detach()
        return True
