"""Tune Trainable of trials with several workers. It starts and watches a Ray Train group."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ray import tune
from ray.exceptions import RayError
from ray.train import TrainingFailedError

from orchestrator.cluster.preemption import Preempted
from orchestrator.cluster.reservation import wait_for_room
from orchestrator.cluster.train_group import Group, remove_groups
from orchestrator.config.spec import ExperimentSpec
from orchestrator.engine.loop import EpochReport, Progress
from orchestrator.runs import heartbeat, micro_batches, reports, train, worker
from orchestrator.storage.settings import Timeouts

PATIENCE_SECONDS = 60.0
"""Time a group has to save after the sweep was stopped."""

END_SECONDS = 20.0
"""Time a killed group has to end."""

HEARD_SECONDS = 15.0
"""Interval of empty reports while a trial waits to replace lost workers. Without them it would count as silent."""

TOKEN = {"memory": 1}
"""Resources of the Trainable itself, which only watches. Tune requires that a trial reserves something."""


class GroupTrial(tune.Trainable):  # type: ignore[misc]
    """Trainable whose ``step`` is one report of the group, as in :class:`~orchestrator.sweeps.trial.TrialActor`.

    A group that loses a process reports that, and restarts from the last checkpoint, up to ``train.RETRIES`` times. An
    error that a worker raises is part of the result and is not retried. An exception means that this process must be
    replaced.
    """

    _group: Group | None
    """None before the workers have resources, and after they have ended."""
    _inbox: IO[str]
    _last: dict[str, Any]

    def setup(self, config: dict[str, Any]) -> None:
        self._spec = ExperimentSpec.model_validate(config["spec"])
        self._home = Path(config["folder"])
        self._data = Path(config["data"])
        self._stop_file = Path(config["stop_file"])
        self._timeouts = Timeouts(*config["timeouts"])
        self._pace = config.get("pace")
        self._units_at_rungs = config.get("units_at_rungs", False)
        self._stopped = worker.stop_when(self._stop_file)
        self._group = None
        self._deaths = 0
        self._last = reports.payload(EpochReport((), Progress(), False, None))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        """End the group. When the sweep was stopped, let it save first."""
        if self._group is None:
            return
        if self._stop_file.exists():
            self._group.ended(PATIENCE_SECONDS)
        self._group.kill(END_SECONDS)
        self._inbox.close()

    def step(self) -> dict[str, Any]:
        if self._group is None:
            return self._begin()
        ended = False
        while not ended:
            ended = self._group.ended(0.1)  # before reading, so that its last rows are read
            for payload in reports.receive(self._inbox):
                self._last = payload
                return payload
        try:
            return self._ending(train.result(self._group))
        except (TrainingFailedError, RayError) as error:
            self._inbox.close()
            self._group = None
            small = train.needs_less_memory(error)
            if small is None or not micro_batches.increase(self._spec, self._home, small):
                return self._failure(error)
        return self._begin()

    def _begin(self) -> dict[str, Any]:
        """Start a group once there is room for it. Returns the last payload without its rows, or a failure."""
        remove_groups(self._home)  # left by a killed process
        if not wait_for_room(self._spec.resources, self._waiting()):
            saved = {reports.SAVED: True} if self._stopped() else {}
            return {**self._last, "rows": [], **saved}  # stopped with the sweep, or still waiting
        allowance = self._timeouts.start + heartbeat.START_SECONDS
        if hung := heartbeat.announce(self._home, allowance):
            return reports.failure_payload(hung)
        self._group = train.start(
            self._spec, self._home, self._data,
            stop_file=self._stop_file, timeouts=self._timeouts, pace=self._pace,
            units_at_rungs=self._units_at_rungs,
        )  # fmt: skip
        self._inbox = (self._home / train.INBOX).open()
        return {**self._last, "rows": [], reports.HELD: True}

    def _failure(self, error: Exception) -> dict[str, Any]:
        """The payload of a group that an error ended. A lost process fails the trial only after all retries."""
        cause = train.failure_text(error)
        if not train.lost_a_process(error):
            return reports.failure_payload(error, cause=cause)
        self._deaths += 1
        last = reports.failure_payload(error, cause=cause) if self._deaths > train.RETRIES else self._last
        return {**last, "rows": [], reports.LOST: cause}

    def _waiting(self) -> Callable[[], bool]:
        """Whether to keep waiting for resources. Before the first group there is no time limit."""
        until = time.monotonic() + HEARD_SECONDS if self._deaths else float("inf")
        return lambda: not self._stopped() and time.monotonic() < until

    def _ending(self, failure: Exception | None) -> dict[str, Any]:
        """The last payload of a group that was not killed."""
        if isinstance(failure, train.Stopped):
            if not self._stop_file.exists():
                raise Preempted
            return {**self._last, "rows": [], reports.SAVED: True}  # stopped with the sweep
        return reports.failure_payload(failure) if failure is not None else {**self._last, "rows": []}
