"""Nodes that are being taken away: Ray knows of it while there is still time to save.

A node that gets SIGTERM (a preempted machine, a deleted pod) or is drained by an autoscaler takes no new work and
lives on for its grace period, ``RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S``. What trains there ends with its current
epoch, saves, and goes on elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from ray.exceptions import RayActorError

from orchestrator.cluster.interrupts import Interrupts

LOOK_SECONDS = 1.0
LOST_SECONDS = 5.0
"""How often a driver asks whether its own node is still part of the cluster."""

ANSWER_SECONDS = 10.0
"""How long the end waits for an answer of the cluster that is on its way."""


class Preempted(RayActorError):  # type: ignore[misc]
    """The trial has saved and leaves a node that is being taken away. Tune starts it anew and counts no failure."""

    def __init__(self) -> None:
        super().__init__(error_msg="its node is being taken away", preempted=True)

    def __reduce__(self) -> tuple[type[Preempted], tuple[()]]:
        return (Preempted, ())


def leaving(nodes: Collection[str]) -> Callable[[], bool]:
    """A stop signal: one of ``nodes`` is being taken away. Ray is asked at most once a second."""
    from orchestrator.cluster.ray_compat import draining_nodes

    looked = [0.0, False]

    def stop() -> bool:
        if not looked[1] and time.monotonic() - looked[0] >= LOOK_SECONDS:
            looked[:] = [time.monotonic(), not draining_nodes().isdisjoint(nodes)]
        return bool(looked[1])

    return stop


def this_node() -> Callable[[], bool]:
    """A stop signal: the node of this process is being taken away. Without Ray there is none."""
    import ray

    return leaving([ray.get_runtime_context().get_node_id()]) if ray.is_initialized() else lambda: False


def group_nodes() -> Callable[[], bool]:
    """A stop signal for a worker of a group: a node of any of its workers is being taken away."""
    from ray.util import get_current_placement_group, placement_group_table

    table = placement_group_table(get_current_placement_group())
    return leaving(set(table["bundles_to_node_id"].values()))


def this_node_is_dead() -> Callable[[], bool]:
    """Whether the cluster counts the node of this process as dead. Ray is asked at most every five seconds."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    asked = time.monotonic()

    def dead() -> bool:
        nonlocal asked
        if time.monotonic() - asked < LOST_SECONDS:
            return False
        asked = time.monotonic()
        return any(node["NodeID"] == here and not node["Alive"] for node in ray.nodes())

    return dead


@contextmanager
def stop_with_node(interrupts: Interrupts) -> Iterator[None]:
    """While active, a driver whose own node is being taken away, or is dead, stops as after a signal.

    Ray sends it none. When the grace period is over, Ray ends a head's node and with it the drivers of its jobs. A
    driver whose raylet was killed would wait for its trials forever.
    """
    leaves, dead = this_node(), this_node_is_dead()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_SECONDS):
            with suppress(Exception):  # of a cluster in trouble: it is asked again
                if leaves():
                    interrupts.stop("The node of this process is being taken away: stopping and saving")
                    return
                if dead():
                    interrupts.stop("Ray on the node of this process has died: stopping")
                    return

    thread = threading.Thread(target=watch, name="leaving", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(ANSWER_SECONDS)
