"""Ports of this machine on which nothing listens."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """So many, all different; nobody holds them, so that another program could take one first."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def free_port() -> int:
    """One."""
    return free_ports(1)[0]
