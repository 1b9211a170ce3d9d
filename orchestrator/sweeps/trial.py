"""Tune Trainable of one-process trials. Its process is reused for many trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ray import tune

from orchestrator.cluster.preemption import Preempted, this_node
from orchestrator.config.spec import ExperimentSpec
from orchestrator.engine import checkpoint
from orchestrator.engine.experiment import Experiment
from orchestrator.engine.loop import EpochReport
from orchestrator.runs import heartbeat, micro_batches, reports, worker
from orchestrator.runs.heartbeat import TrialTimeout
from orchestrator.runs.report_pace import ReportPace
from orchestrator.storage.object_sync import RemoteFolder


class TrialActor(tune.Trainable):  # type: ignore[misc]
    """Trainable whose ``step`` is one report of a trial's stream.

    Checkpoints are found by the trial's folder, not by Tune's ids, so that they survive a restart of the sweep. An
    error of a trial is part of its result: raised, it would end the process, which takes 3 to 4 s to replace, and Tune
    would retry the trial. Only a lost accelerator and a node that is being taken away raise.
    """

    _spec: ExperimentSpec
    _data: Path
    _experiment: Experiment
    _folder: Path
    _stream: Iterator[EpochReport]
    _last: EpochReport | None
    """The last report, or None when its state is already saved."""
    _keep: int
    _save_at_rungs: bool
    _measure: list[str]
    _failure: dict[str, Any] | None
    _carried: RemoteFolder
    _pace: ReportPace

    def setup(self, config: dict[str, Any]) -> None:
        self._begin(config, heartbeat.announce(Path(config["folder"])))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        hung = heartbeat.announce(Path(new_config["folder"]))
        self._leave()
        self._carried.finish()
        self._forget()
        self._begin(new_config, hung)
        return True

    def cleanup(self) -> None:
        self._leave()
        self._carried.close()

    def step(self) -> dict[str, Any]:
        self._pace.answered()
        while self._failure is None:
            try:
                if report := next(self._stream, None):
                    return self._reported(report)
            except Exception as error:
                self._last = None
                reports.check_device(error)
                if not micro_batches.increase(self._spec, self._folder, error):
                    self._failure = reports.failure_payload(error)
            else:
                raise Preempted  # the only reason for a stream to end early
            if self._failure is None:
                self._open()
        self._last = None
        return self._failure

    def _reported(self, report: EpochReport) -> dict[str, Any]:
        judged = report.epoch in self._experiment.plan.decide_at
        if report.checkpoint_due or (self._save_at_rungs and judged):
            self._save()
            self._last = None
        else:
            self._last = report
        if report.ended:
            worker.write_table(self._experiment.validation_units, self._folder / worker.UNITS)
            self._carried.close()  # the driver may read it now
        if not judged:
            self._pace.sent()
        return reports.payload(report, self._experiment.measured(self._measure) if report.ended else None)

    def _begin(self, config: Mapping[str, Any], hung: TrialTimeout | None) -> None:
        self._failure = reports.failure_payload(hung) if hung else None
        self._last = None
        self._stream = iter(())
        self._folder = Path(config["folder"])
        self._keep = config["keep"]
        self._save_at_rungs = config["save_at_rungs"]
        self._measure = config["measure"]
        self._carried = RemoteFolder(self._folder)
        self._pace = ReportPace(config.get("pace"))
        if hung:
            return
        self._spec = ExperimentSpec.model_validate(config["spec"])
        self._data = Path(config["data"])
        self._open()

    def _open(self) -> None:
        """Begin the stream, from the last checkpoint if there is one. An error is raised by the stream."""
        spec = self._spec
        self._forget()
        try:
            device = worker.take_device(spec.resources)
            accumulate = micro_batches.chosen(spec, self._folder)
            self._experiment = worker.experiment(
                spec, self._data, device, final=False, accumulate=accumulate, stop=this_node()
            )
            self._experiment.report_seconds = self._pace.seconds
            latest = checkpoint.latest(self._folder)
            self._stream = self._experiment.stream(checkpoint.read(latest, spec.identity) if latest else None)
        except Exception as error:
            self._stream = _raising(error)

    def _forget(self) -> None:
        """Drop the last experiment before another is built, so that its memory is free."""
        self._stream = iter(())
        self._experiment = None  # type: ignore[assignment]

    def _leave(self) -> None:
        """Save the state of a stopped trial: it may have been interrupted rather than pruned."""
        last = self._last
        self._last = None
        if last is not None and last.ended is None:
            self._save()

    def _save(self) -> None:
        worker.save(self._experiment, self._folder, self._keep)


def _raising(error: Exception) -> Iterator[EpochReport]:
    raise error
    yield
