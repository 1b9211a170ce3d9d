"""Room for the workers of a run: for all of them, or, where it is elastic, for as many as fit.

An elastic run asks for all it may have; when that does not come soon, for what fits, at least its minimum, and again
when that has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ray.util.placement_group import placement_group, remove_placement_group

from orchestrator.cluster.connection import Node, places
from orchestrator.cluster.ray_compat import available_resources_per_node, draining_nodes
from orchestrator.cluster.train_group import POLL_SECONDS, bundle
from orchestrator.config.spec import Resources

GROW_SECONDS = 30.0
"""How often an elastic run looks whether there is room for more workers: to take them it is begun anew."""

SETTLE_SECONDS = 3.0
"""How long resources that were given back may take to be there again."""

TRY_SECONDS = 10.0
"""After so long in vain an elastic run asks for one worker fewer."""


def wait_for_room(resources: Resources, waiting: Callable[[], bool]) -> Resources | None:
    """Wait until all workers fit at once; of an elastic run, as many as do. Returns the resources to start with.

    A placement group waits in Ray's own queue, comes whole or not at all, and is given back for the run to take.
    ``waiting`` is asked about twice a second; when it says no, None is returned.
    """
    asked = resources.fixed(resources.workers)
    while True:
        group, began, better = placement_group([bundle(asked)] * asked.workers), time.monotonic(), None
        try:
            while not group.wait(POLL_SECONDS) and better is None:
                if not waiting():
                    return None
                better = _better(resources, asked, time.monotonic() - began)
        finally:
            remove_placement_group(group)
        if better is None:
            return asked
        asked = better


def room(resources: Resources) -> int:
    """For how many workers of these resources there is room now, beside all that runs."""
    return places(_free(), resources)


def has_room_for_more(resources: Resources) -> Callable[[], bool]:
    """A signal that there has come to be room for another worker."""
    looked = [time.monotonic(), False]

    def more() -> bool:
        if not looked[1] and time.monotonic() - looked[0] >= GROW_SECONDS:
            looked[:] = [time.monotonic(), room(resources) > 0]
        return bool(looked[1])

    return more


def _better(resources: Resources, asked: Resources, seconds: float) -> Resources | None:
    """What to ask for instead of what did not come for so long, if anything."""
    if resources.min_workers is None or seconds < SETTLE_SECONDS:
        return None
    fits = max(resources.least, min(room(resources), resources.workers))
    if fits == asked.workers and seconds > TRY_SECONDS:  # there is room in sum, and it does not come
        fits = max(resources.least, fits - 1)
    return resources.fixed(fits) if fits != asked.workers else None


def _free() -> list[Node]:
    """What is free on each node that takes work."""
    going = draining_nodes()
    return [
        {kind: float(free.get(kind, 0)) for kind in ("CPU", "GPU")}
        for node, free in available_resources_per_node().items()
        if node not in going
    ]
