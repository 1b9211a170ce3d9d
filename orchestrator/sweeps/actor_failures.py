"""Deaths of trials' processes, each told as Tune understands it.

When Ray's memory monitor kills an actor, the error is an OutOfMemoryError, which is no RayActorError: Tune takes it for
a fault of its own and ends, all trials with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.air.execution._internal import RayActorManager
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.tune.execution import tune_controller

from orchestrator.runs import reports


class Died(RayActorError):  # type: ignore[misc]
    """The process is gone, for the reason that ``error`` has told."""

    def __init__(self, cause: str) -> None:
        super().__init__(error_msg=cause)
        self.cause = cause

    def __reduce__(self) -> tuple[type[Died], tuple[str]]:
        return (Died, (self.cause,))


class Actors(RayActorManager):  # type: ignore[misc]
    """Tune's keeper of actors: whatever Ray says of an actor's task that is not the task's own error is a death."""

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, RayError) and not isinstance(exception, RayActorError | RayTaskError):
            exception = Died(reports.death(str(exception)))
        super()._actor_task_failed(tracked_actor_task, exception)


@contextmanager
def understood() -> Iterator[None]:
    """Within it Tune starts with :class:`Actors`."""
    usual, tune_controller.RayActorManager = tune_controller.RayActorManager, Actors
    try:
        yield
    finally:
        tune_controller.RayActorManager = usual


def cause(trial: Any) -> str:
    """Why Tune's ``trial`` was given up; None for one whose process never came up."""
    if trial is None or not trial.error_file:
        return "its process did not start"
    # Tune's own file of all of the trial's failures, each below a line that numbers it.
    last = re.split(r"^Failure # .*\n", Path(trial.error_file).read_text(), flags=re.MULTILINE)[-1]
    times = trial.num_failures
    return f"{reports.death(last)} {times} time{'s' * (times > 1)}"
