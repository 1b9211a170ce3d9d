"""Wait for the resources of a run's workers: of all workers, or, for an elastic run, of as many as fit.

An elastic run first requests all of its workers. If they are not granted soon, it requests as many as fit, at least its
minimum, and changes the request when that number changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ray.util.placement_group import placement_group, remove_placement_group

from orchestrator.cluster.connection import Node, workers_that_fit
from orchestrator.cluster.polling import at_intervals
from orchestrator.cluster.ray_compat import available_resources_per_node, draining_nodes
from orchestrator.cluster.train_group import POLL_SECONDS, bundle
from orchestrator.config.spec import Resources

GROW_SECONDS = 30.0
"""Interval at which an elastic run checks for room for more workers. It restarts to take them."""

SETTLE_SECONDS = 3.0
"""Time until released resources are available again."""

TRY_SECONDS = 10.0
"""Time after which an elastic run requests one worker fewer."""


def wait_for_room(resources: Resources, waiting: Callable[[], bool]) -> Resources | None:
    """Wait until the workers fit, and return the resources to start with. An elastic run may start with fewer workers.

    A placement group of all workers waits in Ray's queue and is removed once granted, so that the run can take its
    place. ``waiting`` is called about twice a second; when it returns False, so does the wait, with None.
    """
    requested = resources.fixed(resources.workers)
    while True:
        group = placement_group([bundle(requested)] * requested.workers)
        began = time.monotonic()
        better = None
        try:
            while not group.wait(POLL_SECONDS) and better is None:
                if not waiting():
                    return None
                better = _better(resources, requested, time.monotonic() - began)
        finally:
            remove_placement_group(group)
        if better is None:
            return requested
        requested = better


def room(resources: Resources) -> int:
    """Number of further workers that fit now."""
    return workers_that_fit(_free(), resources)


def has_room_for_more(resources: Resources) -> Callable[[], bool]:
    """Return a function that says whether another worker fits now."""
    return at_intervals(lambda: room(resources) > 0, GROW_SECONDS, wait=True)


def _better(resources: Resources, requested: Resources, seconds: float) -> Resources | None:
    """The next request after one that was not granted for ``seconds``, or None to keep it."""
    if resources.min_workers is None or seconds < SETTLE_SECONDS:
        return None
    fits = max(resources.fewest_workers, min(room(resources), resources.workers))
    if fits == requested.workers and seconds > TRY_SECONDS:  # enough in sum, but not granted
        fits = max(resources.fewest_workers, fits - 1)
    return resources.fixed(fits) if fits != requested.workers else None


def _free() -> list[Node]:
    """Free resources of each node that accepts work."""
    going = draining_nodes()
    return [
        {kind: float(free.get(kind, 0)) for kind in ("CPU", "GPU")}
        for node, free in available_resources_per_node().items()
        if node not in going
    ]
