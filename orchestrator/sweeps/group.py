"""A trial of several workers: a Tune Trainable that starts and watches a Ray Train group."""

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
from orchestrator.runs import heartbeat, reports, train, worker

PATIENCE_SECONDS = 60.0
"""How long a group may take to save when the sweep was stopped."""

END_SECONDS = 20.0
"""How long a group may take to end when it is killed."""

HEARD_SECONDS = 15.0
"""How often a trial that waits for workers in the place of lost ones says that it is there: it does not hang."""

TOKEN = {"memory": 1}
"""What the trial's own process reserves, which only watches. Tune accepts no trial that reserves nothing."""


class GroupTrial(tune.Trainable):  # type: ignore[misc]
    """``step`` is one report of the group, as of :class:`~orchestrator.sweeps.trial.TrialActor`.

    A group that loses a process is started again from the last checkpoint, as often as a trial is. What the workers
    raise is part of the result, and is not tried again. An exception means that this process must be replaced.
    """

    _group: Group | None
    """None until there is room for the workers, and after their end."""
    _inbox: IO[str]
    _last: dict[str, Any]

    def setup(self, config: dict[str, Any]) -> None:
        self._spec = ExperimentSpec.model_validate(config["spec"])
        self._home, self._data = Path(config["folder"]), Path(config["data"])
        self._stop_file, self._timeouts = Path(config["stop_file"]), train.Timeouts(*config["timeouts"])
        self._stopped = worker.stop_when(self._stop_file)
        self._group, self._deaths = None, 0
        self._last = reports.payload(EpochReport((), Progress(), False, None))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        """End the group at once; when the sweep was stopped, let it save first what it has done."""
        if self._group is None:
            return
        if self._stop_file.exists():
            self._group.ended(PATIENCE_SECONDS)
        self._group.kill(END_SECONDS)
        self._inbox.close()

    def step(self) -> dict[str, Any]:
        while True:
            if self._group is None:
                remove_groups(self._home)  # of a process that was killed
                if not wait_for_room(self._spec.resources, self._waiting()):
                    return {**self._last, "rows": []}  # stopped with the sweep, or still waiting
                if hung := heartbeat.announce(self._home, heartbeat.START_SECONDS):
                    return reports.failure_payload(hung)
                self._group = train.start(
                    self._spec, self._home, self._data, stop_file=self._stop_file, timeouts=self._timeouts
                )
                self._inbox = (self._home / train.INBOX).open()
            ended = False
            while not ended:
                ended = self._group.ended(0.1)  # before reading: what is written until then is read
                for payload in reports.receive(self._inbox):
                    self._last = payload
                    return payload
            try:
                return self._ending(self._group.result())
            except (TrainingFailedError, RayError) as error:
                self._deaths += 1
                if not train.lost_a_process(error) or self._deaths > train.RETRIES:
                    return reports.failure_payload(error, cause=train.cause(error))
                self._inbox.close()
                self._group = None

    def _waiting(self) -> Callable[[], bool]:
        """Whether to wait on for room. Before the first group nobody misses a report: the trial waits in peace."""
        until = time.monotonic() + HEARD_SECONDS if self._deaths else float("inf")
        return lambda: not self._stopped() and time.monotonic() < until

    def _ending(self, failure: Exception | None) -> dict[str, Any]:
        """The last payload of a group that has ended by itself."""
        if isinstance(failure, train.Stopped):
            if not self._stop_file.exists():
                raise Preempted
            return {**self._last, "rows": []}  # with the sweep, which reports it
        return reports.failure_payload(failure) if failure is not None else {**self._last, "rows": []}
