"""Tune Trainable of one-process trials. Its process is reused for many trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray import tune

from orchestrator.cluster.preemption import Preempted
from orchestrator.config.spec import Resources
from orchestrator.engine.loop import EpochReport, Progress
from orchestrator.runs import heartbeat, reports, worker
from orchestrator.runs.reports import TrialTimeout
from orchestrator.sweeps.pack import PackActor


class TrialActor(tune.Trainable):  # type: ignore[misc]
    """Trainable whose ``step`` is one report of a trial. The trial is a pack of one.

    Checkpoints are found by the trial's folder, not by Tune's ids, so that they survive a restart of the sweep. An
    error of a trial is part of its result: raised, it would end the process, which takes 3 to 4 s to replace, and Tune
    would retry the trial. Only a lost accelerator and a node that is being taken away raise.
    """

    _slot: PackActor
    _new: list[dict[str, Any]]
    """The trial's configuration until its first step. What fails there is an error of the trial."""
    _hung: TrialTimeout | None
    _last: dict[str, Any]

    def setup(self, config: dict[str, Any]) -> None:
        import torch  # noqa: F401  # takes seconds, which are no silence of the trial

        resources = Resources.model_validate(config["spec"]["resources"])
        self._stopped = worker.stop_when(Path(config["stop_file"]))
        self._slot = PackActor(resources, self._stopped)
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._begin(new_config)
        return True

    def cleanup(self) -> None:
        self._slot.leave(wait=True)

    def step(self) -> dict[str, Any]:
        if self._hung:
            return reports.failure_payload(self._hung)
        new = self._new
        self._new = []
        try:
            payloads, _ = self._slot.step(new, [], stopping=False)
        except (Preempted, reports.DeviceLost):
            raise
        except Exception as error:
            reports.check_device(error)
            return reports.failure_payload(error)
        if payloads:
            self._last = payloads[0][1]
            return self._last
        if not self._stopped():
            raise Preempted  # the only other reason for a stream to end early
        return {**self._last, "rows": [], reports.SAVED: True}

    def _begin(self, config: dict[str, Any]) -> None:
        self._hung = heartbeat.announce(Path(config["folder"]))
        self._slot.leave(wait=False)
        self._new = [config]
        self._last = reports.payload(EpochReport((), Progress(), False, None))
