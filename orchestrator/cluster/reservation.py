"""The workers of a run: reserved together, and, where it is elastic, as many as there is room for.

Nothing is held while something is waited for: a placement group comes whole or not at all. An elastic run asks for
all it may have; when that does not come soon, for what fits, at least its minimum, and again when that has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from orchestrator.cluster.connection import Node, places
from orchestrator.cluster.preemption import draining
from orchestrator.cluster.reserved_group import POLL_SECONDS, bundle
from orchestrator.config.spec import Resources

GROW_SECONDS = 30.0
"""How often an elastic run looks whether there is room for more workers: to take them it is begun anew."""

SETTLE_SECONDS = 3.0
"""How long resources that were given back may take to be there again."""

TRY_SECONDS = 10.0
"""After so long in vain an elastic run asks for one worker fewer."""


class Reserved(NamedTuple):
    """A placement group with a bundle a worker, and what it holds."""

    group: PlacementGroup
    resources: Resources


@contextmanager
def reserve(resources: Resources, waiting: Callable[[], bool]) -> Iterator[Reserved | None]:
    """The workers' places, all of them or none, given back at the end.

    ``waiting`` is asked about twice a second until they are there; when it says no, None is given instead.
    """
    asked, group = resources.fixed(resources.workers), None
    try:
        while True:
            group, began = placement_group([bundle(asked)] * asked.workers), time.monotonic()
            better = None
            while not group.wait(POLL_SECONDS) and better is None:
                if not waiting():
                    yield None
                    return
                better = _better(resources, asked, time.monotonic() - began)
            if better is None:
                yield Reserved(group, asked)
                return
            remove_placement_group(group)
            asked = better
    finally:
        if group is not None:
            remove_placement_group(group)


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
    from ray._private.state import available_resources_per_node

    going = draining()
    return [
        {kind: float(free.get(kind, 0)) for kind in ("CPU", "GPU")}
        for node, free in available_resources_per_node().items()
        if node not in going
    ]
