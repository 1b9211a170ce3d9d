"""A Ray Train run in a thread: its owner waits with a time limit, and can end it."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.train import Result
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from orchestrator.config.spec import Resources

POLL_SECONDS = 0.5
"""How often the controller takes its workers' reports; Train's own two seconds would delay every decision."""


def bundle(resources: Resources) -> dict[str, float]:
    """What one worker needs, in Ray's names."""
    need = {"CPU": resources.cpus_per_worker}
    return need | {"GPU": resources.gpus_per_worker} if resources.gpus_per_worker else need


def mark(home: Path) -> dict[str, float]:
    """Some bytes of memory, at most 16 MiB, that each worker of the group at ``home`` asks for besides.

    By them :func:`groups_of` knows the group's placement group: Ray Train gives it no name.
    """
    return {"memory": float(1 + zlib.crc32(str(home).encode()) % 2**24)}


def groups_of(*homes: Path) -> list[dict[str, Any]]:
    """The placement groups, held or waited for, of the groups at ``homes``."""
    marks = [mark(home)["memory"] for home in homes]
    return [
        group
        for group in placement_group_table().values()
        if group["state"] != "REMOVED" and all(each.get("memory") in marks for each in group["bundles"].values())
    ]


def remove_groups(*homes: Path) -> None:
    """Remove the placement groups of the groups at ``homes``; the workers in them die."""
    for group in groups_of(*homes):
        remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(group["placement_group_id"])))


class Group:
    """A started group. ``fit`` runs a trainer to its end, with its checkpoints and rows at ``home``.

    Its processes may take ``start_timeout`` seconds to come up.
    """

    def __init__(self, fit: Callable[[], Result], home: Path, start_timeout: float) -> None:
        os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(start_timeout)
        os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", str(POLL_SECONDS))
        self._home = home
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=[fit], name="train", daemon=True)
        self._thread.start()

    def ended(self, timeout: float) -> bool:
        """Whether it has ended, well or not, within ``timeout`` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def result(self) -> Any:
        """What rank 0's function returned. Raises TrainingFailedError, or RayError when the controller was lost."""
        if self._error:
            raise self._error
        assert self._result is not None
        return self._result.return_value

    def is_up(self) -> bool:
        """Whether its workers have their resources."""
        return any(group["state"] == "CREATED" for group in groups_of(self._home))

    def kill(self, timeout: float) -> None:
        """End it at once: with their placement group die the workers. Waits up to ``timeout`` s for the controller."""
        while not self.ended(0):
            remove_groups(self._home)
            if self.ended(POLL_SECONDS) or (timeout := timeout - POLL_SECONDS) < 0:
                return

    def _run(self, fit: Callable[[], Result]) -> None:
        try:
            self._result = fit()
        except BaseException as error:  # the thread's owner raises it
            self._error = error
