"""Free ports of this machine."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Different free ports (not reserved, so another program may take one)."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def free_port() -> int:
    """A free port (not reserved)."""
    return free_ports(1)[0]
