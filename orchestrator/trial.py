"""The reused trial actor: the engine inside a Tune Trainable, one process for many trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ray import tune

from orchestrator import checkpoint, worker
from orchestrator.engine import EpochReport
from orchestrator.experiment import Experiment
from orchestrator.spec import ExperimentSpec


class TrialActor(tune.Trainable):  # type: ignore[misc]
    """``step`` is one report of the stream. Checkpoints are ours: found by (sweep, number), they outlive Tune's ids.

    What a trial does wrong is part of its result, not an exception: an exception costs the process (3 to 4 s) and
    Tune would retry it. Exceptions are for processes that die.
    """

    _experiment: Experiment
    _folder: Path
    _stream: Iterator[EpochReport]
    _last: EpochReport | None
    _error: str | None

    def setup(self, config: dict[str, Any]) -> None:
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._leave()
        self._begin(new_config)
        return True

    def cleanup(self) -> None:
        self._leave()

    def step(self) -> dict[str, Any]:
        if self._error is None:
            try:
                report = next(self._stream)
                if report.checkpoint_due:
                    worker.save(self._experiment, self._folder)
                self._last = report
                return worker.payload(report)
            except Exception as error:
                self._error = worker.describe(error)
        self._last = None
        return {"error": self._error, "done": True}

    def _begin(self, config: Mapping[str, Any]) -> None:
        self._error = self._last = None
        self._stream = iter(())
        self._folder = Path(config["folder"])
        try:
            spec = ExperimentSpec.model_validate(config["spec"])
            device = worker.take_device(spec.resources)
            self._experiment = worker.experiment(spec, Path(config["data"]), device, final=False)
            found = checkpoint.latest(self._folder)
            self._stream = self._experiment.stream(checkpoint.read(found, spec.identity) if found else None)
        except Exception as error:
            self._error = worker.describe(error)

    def _leave(self) -> None:
        """Save what a stopped trial has done, in case it was interrupted rather than pruned."""
        last, self._last = self._last, None
        if last is not None and last.ended is None and not last.checkpoint_due:
            worker.save(self._experiment, self._folder)
