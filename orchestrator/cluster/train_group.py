"""A Ray Train run in a thread, so that its owner can wait with a time limit and can end it."""

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

START_VARIABLE = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
"""Ray's variable for the seconds that the processes of a group have to start."""

POLL_SECONDS = 0.5
"""Interval at which the controller collects reports. Train's default of two seconds would delay every decision."""


def bundle(resources: Resources) -> dict[str, float]:
    """Resources of one worker, in Ray's names."""
    need = {"CPU": resources.cpus_per_worker}
    return need | {"GPU": resources.gpus_per_worker} if resources.gpus_per_worker else need


def mark(home: Path) -> dict[str, float]:
    """A few bytes of memory, at most 16 MiB, that each worker of the group at ``home`` requests in addition.

    They identify the placement group of the group in :func:`groups_of`: Ray Train does not name it.
    """
    return {"memory": float(1 + zlib.crc32(str(home).encode()) % 2**24)}


def groups_of(*homes: Path) -> list[dict[str, Any]]:
    """The granted and pending placement groups of the groups at ``homes``."""
    marks = [mark(home)["memory"] for home in homes]
    return [
        group
        for group in placement_group_table().values()
        if group["state"] != "REMOVED" and all(each.get("memory") in marks for each in group["bundles"].values())
    ]


def remove_groups(*homes: Path) -> None:
    """Remove the placement groups of the groups at ``homes``. Their workers die."""
    for group in groups_of(*homes):
        remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(group["placement_group_id"])))


class Group:
    """A running group. ``fit`` runs a trainer to its end and writes checkpoints and rows to ``home``.

    Its processes have ``start_timeout`` seconds to start.
    """

    def __init__(self, fit: Callable[[], Result], home: Path, start_timeout: float) -> None:
        os.environ[START_VARIABLE] = str(start_timeout)
        os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", str(POLL_SECONDS))
        self._home = home
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=[fit], name="train", daemon=True)
        self._thread.start()

    def ended(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds. Returns whether the run has ended, with or without an error."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def result(self) -> Any:
        """The return value of rank 0. Raises TrainingFailedError, or RayError when the controller was lost."""
        if self._error:
            raise self._error
        assert self._result is not None
        return self._result.return_value

    def is_up(self) -> bool:
        """Whether its workers have their resources."""
        return any(group["state"] == "CREATED" for group in groups_of(self._home))

    def kill(self, timeout: float) -> None:
        """Remove the placement group, which kills the workers, and wait up to ``timeout`` s for the controller."""
        while not self.ended(0):
            remove_groups(self._home)
            if self.ended(POLL_SECONDS) or (timeout := timeout - POLL_SECONDS) < 0:
                return

    def _run(self, fit: Callable[[], Result]) -> None:
        try:
            self._result = fit()
        except BaseException as error:  # the thread's owner raises it
            self._error = error
