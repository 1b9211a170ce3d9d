"""One trial of a pack: its stream, and the proxy of its workload that takes results from the pack."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from orchestrator.engine import loop
from orchestrator.engine.experiment import Experiment
from orchestrator.engine.loop import EpochReport, Progress, Row
from orchestrator.runs import reports, worker
from orchestrator.storage.object_sync import RemoteFolder
from workloads.contract import Evaluation, Metrics, Servable, Split, State, StepLogged, StepValues, Workload


class Member:
    """Proxy workload that returns results precomputed by the pack and delegates everything else."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.objective = workload.objective
        self.pretrained = loop.is_pretrained(workload)
        self.seconds = 0.0
        """Time of training and evaluation. Time in a pack is divided equally among its members."""
        self._prepared: dict[int | Split, tuple[Metrics | Evaluation, float]] = {}

    def prepare(self, what: int | Split, result: Metrics | Evaluation, seconds: float = 0.0) -> None:
        """Store the result of an epoch, or of a split's evaluation, until it is requested."""
        self._prepared[what] = (result, seconds)

    def train_epoch(self, epoch: int) -> Metrics | Evaluation:
        return self._take(epoch, lambda: self.workload.train_epoch(epoch))

    def evaluate(self, split: Split) -> Evaluation:
        return cast(Evaluation, self._take(split, lambda: self.workload.evaluate(split)))

    def take_steps(self) -> Sequence[StepValues]:
        return self.workload.take_steps() if isinstance(self.workload, StepLogged) else ()

    def state_dict(self) -> State:
        return self.workload.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.workload.load_state_dict(state)

    def servable(self) -> Servable:
        return self.workload.servable()

    def _take(self, what: int | Split, compute: Callable[[], Metrics | Evaluation]) -> Metrics | Evaluation:
        if what not in self._prepared:
            started = time.monotonic()
            self.prepare(what, compute(), time.monotonic() - started)
        result, seconds = self._prepared.pop(what)
        self.seconds += seconds
        return result


@dataclass
class PackTrial:
    """A running trial."""

    config: Mapping[str, Any]
    experiment: Experiment
    stream: Iterator[EpochReport]
    member: Member
    progress: Progress | None
    """Progress so far. None until a stream that does not start with epoch 1 has reported."""
    carried: RemoteFolder
    rows: list[Row] = field(default_factory=list)
    report: EpochReport | None = None
    unsaved: bool = False
    """Whether the state is that of the last report and not saved. Within an epoch it is that of none."""

    @property
    def epoch(self) -> int | None:
        """The next epoch of its stream, or None."""
        plan = self.experiment.plan
        return None if self.progress is None or self.progress.ended(plan) else self.progress.epoch + 1

    def advance(self) -> bool:
        """Advance to the next report. Returns False when the stream was stopped."""
        self.unsaved = False
        report = next(self.stream, None)
        if report is None:
            return False
        self.report = report
        self.progress = self.report.progress
        self.rows += self.report.rows
        rung = self.report.epoch in self.experiment.plan.decide_at
        self.unsaved = report.ended is None
        if self.report.checkpoint_due or (self.config["save_at_rungs"] and rung):
            self.save()
        if self.report.ended:
            worker.write_table(self.experiment.validation_units, Path(self.config["folder"]) / worker.UNITS)
            self.carried.close()  # the driver may read it now
        return True

    def save(self) -> None:
        worker.save(self.experiment, Path(self.config["folder"]), self.config["keep"])
        self.unsaved = False

    @property
    def is_to_be_judged(self) -> bool:
        return self.report is not None and (
            self.report.ended is not None or self.report.epoch in self.experiment.plan.decide_at
        )

    def payload(self) -> dict[str, Any]:
        """All rows since the last payload, as one report."""
        assert self.report is not None
        rows = tuple(self.rows)
        self.rows = []
        measured = self.experiment.measured(self.config["measure"]) if self.report.ended else None
        return reports.payload(replace(self.report, rows=rows), measured)
