"""Free ports of this machine, and who answers at one."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request


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


def http_status(url: str, timeout: float) -> int | None:
    """The HTTP status of an anonymous request; None when nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None
