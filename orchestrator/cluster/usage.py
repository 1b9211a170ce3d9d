"""Total and used resources of a Ray cluster, read as ``ray status`` does: without a job and without the dashboard."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.cluster.connection import authenticate, check_reachable
from orchestrator.errors import UserError, one_line, plural

ANSWER_SECONDS = 5
KINDS = ("CPU", "GPU")


@dataclass(frozen=True, slots=True)
class Usage:
    """The cluster at ``address``: live ``nodes``, ``total`` and ``used`` by kind, or the ``trouble`` of asking it."""

    address: str
    nodes: int = 0
    total: Mapping[str, float] | None = None
    used: Mapping[str, float] | None = None
    trouble: str | None = None


def usage(address: str) -> Usage:
    """Ask the cluster's head. An error is part of the answer."""
    if "://" in address:
        return Usage(address, trouble="this wants the cluster's own address, HOST:6379")
    try:
        authenticate()
        check_reachable(address)
        return _ask(address)
    except UserError as error:
        return Usage(address, trouble=str(error))
    except Exception as error:  # Ray raises many kinds, for a refused token or a dead head
        return Usage(address, trouble=one_line(error))


def _ask(address: str) -> Usage:
    from ray.autoscaler.v2.sdk import get_cluster_status

    from orchestrator.cluster.ray_compat import canonicalize_bootstrap_address

    head = canonicalize_bootstrap_address(address)
    if not head:
        return Usage(address, trouble="no Ray runs on this machine")
    status = get_cluster_status(head, timeout=ANSWER_SECONDS)
    resources = {resource.resource_name: resource for resource in status.cluster_resource_usage}
    return Usage(
        head,
        len(status.active_nodes) + len(status.idle_nodes),
        {kind: float(resources[kind].total) if kind in resources else 0.0 for kind in KINDS},
        {kind: float(resources[kind].used) if kind in resources else 0.0 for kind in KINDS},
    )


class UsageMonitor:
    """Asks at intervals in a thread, since a dead head may block. :attr:`last` is always available."""

    def __init__(self, address: str, every: float) -> None:
        self.last = Usage(address, trouble="no answer yet")
        self._address = address
        self._every = every
        self._asked = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="usage", daemon=True).start()

    def first(self, seconds: float = 2 * ANSWER_SECONDS) -> Usage:
        """The first answer, or :attr:`last` after ``seconds``."""
        self._asked.wait(seconds)
        return self.last

    def close(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            self.last = usage(self._address)
            self._asked.set()
            self._ended.wait(self._every)


def as_text(usage: Usage) -> str:
    """``3 nodes at head:6379: 12 of 16 CPUs, 2 of 4 GPUs in use``."""
    if usage.trouble or usage.total is None or usage.used is None:
        return f"cluster {usage.address}: {usage.trouble}"
    used = ", ".join(
        f"{usage.used[kind]:g} of {usage.total[kind]:g} {kind}s" for kind in KINDS if kind == "CPU" or usage.total[kind]
    )
    return f"{plural(usage.nodes, 'node')} at {usage.address}: {used} in use"
