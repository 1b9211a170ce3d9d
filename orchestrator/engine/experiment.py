"""One experiment as a resumable stream: select on validation, refit, evaluate the test split once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from orchestrator.config import objectives
from orchestrator.config.plan import Plan
from orchestrator.engine.checkpoint import BestEpoch, Checkpoint
from orchestrator.engine.checkpoint_writer import copy
from orchestrator.engine.loop import (
    Diverged,
    End,
    EpochReport,
    Progress,
    Row,
    run_epochs,
)
from orchestrator.engine.method_results import exits_as_errors, named, servable, state_of
from workloads.contract import Columns, Evaluation, State, Workload

if TYPE_CHECKING:
    import torch

Phase = Literal["select", "refit"]


class Build(Protocol):
    """Creates a new workload. ``holdout=False`` adds the validation split to the training data."""

    def __call__(self, holdout: bool) -> Workload: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a finished experiment.

    ``epochs`` is the number of epochs of the final model. ``metrics`` are the validation values of the selected epoch
    and the finite test values of the final model, under their full names. ``validation_units`` are those of the
    selected epoch, empty if the selection was made elsewhere.
    """

    workload: Workload
    epochs: int
    refitted: bool
    ended: End
    metrics: Mapping[str, float]
    train_seconds: float
    test: Evaluation
    validation_units: Columns


@dataclass
class Experiment:
    """Iterate over :meth:`stream`. When it is exhausted, ``outcome`` is set, unless it was stopped or is a trial's.

    ``on_test_epoch`` is called with the final model at each of the objective's ``test_epochs``, with its values,
    including those on the test split. No other model is evaluated on test. After a crash it may be called again for an
    epoch.

    ``before_test`` is called on every rank, with the number of epochs of the model, before the test split is evaluated.

    ``accumulate`` is the number of micro-batches, for the reports, where the plan leaves it open.

    ``final`` is False for a trial of a sweep, which selects and never refits or tests. At every yield
    :meth:`checkpoint` returns the complete state, including recent rows: some may not have reached the driver when the
    process dies (Ray Train holds up to two reports), so a resume reports them again.

    ``broadcast_state`` is ``broadcast`` for the state of a workload, which may be large.

    The last report of a trial has the units of its best epoch, with ``units_at_rungs`` each report at a rung too.
    """

    build: Build
    plan: Plan
    identity: Mapping[str, str]
    final: bool = True
    rank: int = 0
    broadcast: Callable[[Any], Any] = lambda value: value
    broadcast_state: Callable[[State | None], State | None] = lambda state: state
    stop: Callable[[], bool] = lambda: False
    every_epoch: bool = False
    clock: Callable[[], float] | None = None
    report_seconds: Callable[[], float] | None = None
    units_at_rungs: bool = False
    on_test_epoch: Callable[[Workload, Row, Evaluation | None], None] = lambda workload, row, evaluation: None
    before_test: Callable[[int], None] = lambda epoch: None
    accumulate: int | None = None
    outcome: Outcome | None = field(default=None, init=False)
    _phase: Phase = field(default="select", init=False)
    _workload: Workload | None = field(default=None, init=False)
    _report: EpochReport | None = field(default=None, init=False)
    _selected: Progress | None = field(default=None, init=False)
    _best: State | None = field(default=None, init=False)
    _units: Columns = field(default_factory=dict, init=False)
    _best_epoch: BestEpoch = field(default_factory=BestEpoch, init=False)
    _recent: list[list[Row]] = field(default_factory=lambda: [[], []], init=False)
    """Rows up to the second-last checkpoint, and those since."""
    _saved: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.plan.refit is None:
            raise ValueError("the plan's refit is resolved before an experiment is built")

    def stream(self, resume: Checkpoint | None = None, selected: Progress | None = None) -> Iterator[EpochReport]:
        """All reports of the experiment from ``resume`` on. Raises the workload's errors and Diverged.

        ``selected`` is a selection made elsewhere, by a trial of a sweep: then only the refit is left. A workload that
        calls ``sys.exit`` raises RuntimeError.
        """
        with exits_as_errors():
            yield from self._stream(resume, selected)

    def _stream(self, resume: Checkpoint | None, selected: Progress | None) -> Iterator[EpochReport]:
        state = resume.state if resume else {}
        self._units = {name: np.asarray(column) for name, column in state.get("units", {}).items()}
        self._selected = Progress.from_json(state["selected"]) if state.get("selected") else selected
        if self.plan.refit != "only" and self._selected is None:
            last = yield from self._select(state)
            if not last.ended or not self.final:
                return
            if not self.plan.refit:
                self._finish(last.progress)
                return
            self._selected = last.progress
            state = {}
        last = yield from self._refit(state)
        if last.ended:
            self._finish(last.progress)

    def checkpoint(self) -> Checkpoint:
        """The state at the last yield. All ranks call it: a workload's state may be gathered."""
        self._saved = True
        return self.snapshot()

    def snapshot(self) -> Checkpoint:
        """As :meth:`checkpoint`, for another use than a resume: the next checkpoint repeats its rows."""
        workload, report = self._now()
        state = {
            "phase": self._phase,
            "progress": report.progress.to_json(),
            "selected": self._selected.to_json() if self._selected else None,
            "rows": [row.to_json() for rows in self._recent for row in rows],
            "workload": state_of(workload),
            "best": self._best,
            "units": {name: pack(column) for name, column in self._units.items()},
        }
        return Checkpoint(self.identity, report.epoch, state, self._best_epoch)

    @property
    def ends_selection(self) -> bool:
        """Whether the last report is the end of a selection of which no checkpoint stays: a refit replaces it."""
        _, report = self._now()
        stays = report.checkpoint_due and not self.plan.refit
        return self.final and self._phase == "select" and report.ended is not None and not stays

    @property
    def validation_units(self) -> Columns:
        """Units of the validation split at the best epoch so far."""
        return self._units

    def measured(self, names: Collection[str]) -> dict[str, float]:
        """Those of ``names`` that the model that would be served has, at the last yield.

        ``parameters``: number of real values in its weights, not its ids or histories. ``latency_ms``: see
        :func:`orchestrator.engine.latency.milliseconds`.
        """
        if not names:
            return {}
        served = servable(self._now()[0])
        values: dict[str, float] = {}
        if "parameters" in names:
            values["parameters"] = sum(t.numel() for t in served.weights.values() if t.is_floating_point())
        if "latency_ms" in names:
            from orchestrator.engine.latency import milliseconds

            values["latency_ms"] = milliseconds(served)
        return values

    @property
    def order(self) -> int:
        """Epochs over all phases at the last yield. Checkpoints are named by it, in the order of writing."""
        return self._now()[1].epoch + (self._selected.epoch if self._selected else 0)

    def _select(self, state: Mapping[str, Any]) -> Generator[EpochReport, None, EpochReport]:
        self._phase = "select"
        self._best = state.get("best") if self.rank == 0 else None
        workload = self._workload = self.build(holdout=True)
        for report in self._run(workload, self.plan, state, validate=True, prefix="train"):
            seen = self._seen(report)
            rung = self.units_at_rungs and report.epoch in self.plan.decide_at
            compared = not self.final and (report.ended is not None or rung)
            yield replace(seen, units=self._objective_units()) if compared else seen
        return report

    def _objective_units(self) -> Columns | None:
        """Ids of the units of the best epoch and their values of the objective. None where it has none."""
        workload, _ = self._now()
        metric = objectives.of_workload(workload, self.plan.objective)[0].metric
        names = ("id", metric)
        return {name: self._units[name] for name in names} if all(name in self._units for name in names) else None

    def _refit(self, state: Mapping[str, Any]) -> Generator[EpochReport, None, EpochReport]:
        self._phase = "refit"
        self._workload = None  # the selection's, before another one is built
        workload = self._workload = self.build(holdout=False)
        epochs = self._selected.best_epoch if self._selected else self.plan.epochs
        plan = self.plan.model_copy(update={"epochs": epochs, "patience": 0, "decide_at": ()})
        prefix = "refit" if self._selected else "train"  # train/ remains the curve of the selection
        for report in self._run(workload, plan, state, validate=False, prefix=prefix):
            yield self._seen(report)
        return report

    def _run(
        self, workload: Workload, plan: Plan, state: Mapping[str, Any], *, validate: bool, prefix: str
    ) -> Iterator[EpochReport]:
        progress = None
        if state:
            workload.load_state_dict(state["workload"])
            progress = Progress.from_json(state["progress"])
            # The process may have died before the rows of this checkpoint were delivered.
            rows = tuple(Row(*row) for row in state["rows"])
            yield EpochReport(rows, progress, False, None)
        is_final = self.final and (self._phase == "refit" or not self.plan.refit)  # the model that is tested
        yield from run_epochs(
            workload,
            plan,
            progress,
            validate=validate,
            broadcast=self.broadcast,
            stop=self.stop,
            on_best=lambda evaluation: self._keep_best(workload, evaluation),
            on_test_epoch=partial(self.on_test_epoch, workload) if is_final else None,
            before_test=self.before_test,
            prefix=prefix,
            every_epoch=self.every_epoch,
            clock=self.clock,
            report_seconds=self.report_seconds,
        )

    def _seen(self, report: EpochReport) -> EpochReport:
        report = self._report = replace(report, accumulate=self.accumulate)
        if self._saved:
            self._recent = [self._recent[1], []]
            self._saved = False
        self._recent[1].extend(report.rows)
        return report

    def _keep_best(self, workload: Workload, evaluation: Evaluation) -> None:
        self._best_epoch = BestEpoch()
        self._units = evaluation.units
        if not self.plan.refit:  # a refit does not need the best weights
            state = state_of(workload)  # a collective: every rank calls it
            self._best = copy(state) if self.rank == 0 else None

    def _finish(self, progress: Progress) -> None:
        workload, _ = self._now()
        selected = self._selected or progress
        epochs = progress.epoch
        seconds = progress.train_seconds
        if self._phase == "refit":
            seconds += self._selected.train_seconds if self._selected else 0.0
        elif progress.best_epoch != progress.epoch:
            best = self.broadcast_state(self._best)  # one rank has kept it
            assert best is not None
            workload.load_state_dict(best)
            epochs = progress.best_epoch
        self.before_test(epochs)
        test = workload.evaluate("test")
        metrics = dict(selected.best_metrics) | self._finite(named("test", workload, "evaluate", test), epochs)
        ended = selected.ended(self.plan) or "epochs"
        self.outcome = Outcome(workload, epochs, self._phase == "refit", ended, metrics, seconds, test, self._units)

    def _finite(self, tested: Mapping[str, float], epochs: int) -> dict[str, float]:
        """The test metrics without those that are NaN or infinite, with a warning. Raises Diverged for an objective."""
        workload, _ = self._now()
        lost = {name: value for name, value in tested.items() if not math.isfinite(value)}
        for objective in objectives.of_workload(workload, self.plan.objective):
            if (name := f"test/{objective.metric}") in lost:
                raise Diverged(epochs, name, lost[name])
        if lost and self.rank == 0:
            values = ", ".join(f"{name} is {value}" for name, value in lost.items())
            warnings.warn(f"{values}; what is not finite is left out of the results", stacklevel=2)
        return {name: value for name, value in tested.items() if name not in lost}

    def _now(self) -> tuple[Workload, EpochReport]:
        assert self._workload is not None
        assert self._report is not None, "nothing was reported yet"
        return self._workload, self._report


def pack(column: np.ndarray[Any, Any]) -> torch.Tensor | list[Any]:
    """A column of units for a checkpoint: numbers as a tensor, other values as a list."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(column)) if column.dtype.kind in "biuf" else column.tolist()
