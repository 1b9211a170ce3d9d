"""Preemption: leave a node that is being taken away while there is time to save.

A node that gets SIGTERM (a preempted machine, a deleted pod) or is drained by an autoscaler accepts no new work and
stays up for its grace period, ``RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S``. Trials and runs there finish their epoch, save
and continue on another node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

import psutil
import ray
from ray.exceptions import RayActorError
from ray.util import get_current_placement_group, placement_group_table

from orchestrator.cluster import leftovers
from orchestrator.cluster.interrupts import Interrupts
from orchestrator.cluster.polling import at_intervals
from orchestrator.cluster.ray_compat import draining_nodes
from orchestrator.errors import Interrupted

POLL_SECONDS = 1.0
LOST_SECONDS = 5.0
"""Interval at which a driver checks that its own node is part of the cluster."""

RAY_DIED = "Ray on the node of this process has died: stopping"
CLUSTER_ENDS = "The local Ray cluster has ended, or got the signal too: stopping without saving"

SIGNAL_SECONDS = 60.0
"""Time within which a part of the local cluster that ends, and a signal to this process, have the same cause."""

END_SECONDS = 5.0
"""Time for a driver to end after its local cluster has. A call to that cluster returns after 60 s at the earliest."""

ANSWER_SECONDS = 10.0
"""Time limit for a pending answer of the cluster at the end."""


class Preempted(RayActorError):  # type: ignore[misc]
    """Raised by a trial that has saved because its node is being taken away. Tune restarts it without a failure."""

    def __init__(self) -> None:
        super().__init__(error_msg="its node is being taken away", preempted=True)

    def __reduce__(self) -> tuple[type[Preempted], tuple[()]]:
        return (Preempted, ())


def nodes_leaving(nodes: Collection[str]) -> Callable[[], bool]:
    """Return a function that says whether one of ``nodes`` is being taken away. It asks Ray at most once a second."""
    return at_intervals(lambda: not draining_nodes().isdisjoint(nodes), POLL_SECONDS)


def this_node() -> Callable[[], bool]:
    """As :func:`nodes_leaving` for the node of this process. Always False without Ray."""
    return nodes_leaving([ray.get_runtime_context().get_node_id()]) if ray.is_initialized() else lambda: False


def group_nodes() -> Callable[[], bool]:
    """As :func:`nodes_leaving` for the nodes of all workers of this worker's group."""
    table = placement_group_table(get_current_placement_group())
    return nodes_leaving(set(table["bundles_to_node_id"].values()))


def this_node_is_dead() -> Callable[[], bool]:
    """Return a function that says whether this process' node is dead. It asks Ray at most every five seconds."""
    here = ray.get_runtime_context().get_node_id()
    return at_intervals(
        lambda: any(node["NodeID"] == here and not node["Alive"] for node in ray.nodes()), LOST_SECONDS, wait=True
    )


def local_cluster_ends(interrupts: Interrupts) -> Callable[[], bool]:
    """Return a function that says whether the local cluster, started by this process, has ended or got a signal too.

    After a signal its control store (GCS) may answer no more without ending, but other processes of it end.
    """
    parts = [child for child in psutil.Process().children() if leftovers.is_own(child) and not _has_ended(child)]
    heads = [part for part in parts if part.name() == "gcs_server"]
    ended_at: dict[psutil.Process, float] = {}

    def ends() -> bool:
        now = time.monotonic()
        for part in filter(_has_ended, parts):
            ended_at.setdefault(part, now)
        lately = any(now - then < SIGNAL_SECONDS for then in ended_at.values())
        return any(head in ended_at for head in heads) or (interrupts.signalled and lately)

    return ends


def _has_ended(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


@contextmanager
def stop_with_node(interrupts: Interrupts, resume: str) -> Iterator[None]:
    """Stop the driver as a signal would when its own node is being taken away or is dead.

    Ray sends no signal. After the grace period it ends a head's node together with the drivers of its jobs. Without
    its raylet a driver would wait for its trials forever. A signal to the whole process group, as ``timeout`` and
    systemd send it, also ends a local cluster: then this process ends within seconds, and ``resume`` continues.
    """
    leaves = this_node()
    dead = this_node_is_dead()
    cluster_ends = local_cluster_ends(interrupts)
    ended = threading.Event()

    def watch_local_cluster() -> None:
        while not ended.wait(POLL_SECONDS):
            if cluster_ends():
                interrupts.stop(CLUSTER_ENDS, saves=False)
                if not ended.wait(END_SECONDS):
                    interrupts.end_process(str(Interrupted(resume)))
                return

    def watch() -> None:
        while not ended.wait(POLL_SECONDS):
            with suppress(Exception):  # the cluster may not answer: ask again
                if leaves():
                    interrupts.stop("The node of this process is being taken away: stopping and saving")
                    return
                if dead():
                    interrupts.stop(RAY_DIED, saves=False)
                    return

    threads = [threading.Thread(target=each, name="leaving", daemon=True) for each in (watch, watch_local_cluster)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(ANSWER_SECONDS)
