"""A trial of several workers: a Tune Trainable that watches a Train group in the trial's own placement group."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import ray
from ray import tune
from ray.train import WorkerGroupError

from orchestrator.cluster.preemption import Preempted
from orchestrator.cluster.reserved_group import Group, bundle
from orchestrator.config.spec import ExperimentSpec, Resources
from orchestrator.engine.loop import EpochReport, Progress
from orchestrator.runs import heartbeat, reports, train
from orchestrator.runs.heartbeat import START_SECONDS, GivenUp

PATIENCE_SECONDS = 60.0
"""How long a group may take to save when the sweep was stopped."""


def request(resources: Resources) -> tune.PlacementGroupFactory:
    """All workers at once or none; the trial's own process only watches and takes no CPU."""
    return tune.PlacementGroupFactory([{}, *[bundle(resources)] * resources.workers])


class GroupTrial(tune.Trainable):  # type: ignore[misc]
    """``step`` is one report of the group, as of :class:`~orchestrator.sweeps.trial.TrialActor`.

    It stays for the next trial.

    The run's name is the trial's number: Ray Train goes on where a trial of that number was. What the workers do
    wrong is part of the result; an exception means that the group itself was lost, and Tune starts it anew.
    """

    _group: Group | None
    """None for a trial that was given up."""
    _inbox: IO[str]
    _stop_file: Path
    _last: dict[str, Any]

    def setup(self, config: dict[str, Any]) -> None:
        self._begin(config, heartbeat.announce(Path(config["folder"]), START_SECONDS))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        hung = heartbeat.announce(Path(new_config["folder"]), START_SECONDS)
        self._leave()
        self._begin(new_config, hung)
        return True

    def cleanup(self) -> None:
        self._leave()

    def step(self) -> dict[str, Any]:
        if self._group is None:
            return self._last
        ended = False
        while not ended:
            ended = self._group.ended(0.1)  # before reading: what is written until then is read
            for payload in reports.receive(self._inbox):
                self._last = payload
                return payload
        try:
            failure = self._group.result()
        except WorkerGroupError as error:
            return reports.last_words(error, cause=train.cause(error))
        if isinstance(failure, train.Stopped):
            if not self._stop_file.exists():
                raise Preempted
            return {**self._last, "rows": []}  # with the sweep, which will say so
        return reports.last_words(failure) if failure is not None else {**self._last, "rows": []}

    def _begin(self, config: dict[str, Any], hung: GivenUp | None) -> None:
        if hung:
            self._group, self._last = None, reports.last_words(hung)
            return
        home, self._stop_file = Path(config["folder"]), Path(config["stop_file"])
        self._last = reports.payload(EpochReport((), Progress(), False, None))
        self._group = train.start(
            ExperimentSpec.model_validate(config["spec"]),
            home,
            Path(config["data"]),
            ray.util.get_current_placement_group(),
            stop_file=self._stop_file,
        )
        self._inbox = (home / train.INBOX).open()

    def _leave(self) -> None:
        """End the group at once; when the sweep was stopped, let it save first what it has done."""
        if self._group is None:
            return
        if self._stop_file.exists():
            self._group.ended(PATIENCE_SECONDS)
        self._group.kill()
        self._inbox.close()
