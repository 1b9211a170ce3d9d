"""The rows of one run on their way to the tracker, the history and the console, and the run's status."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.config import objectives
from orchestrator.config.spec import ExperimentSpec
from orchestrator.engine.loop import Progress, Row, better
from orchestrator.runs import start_point
from orchestrator.runs.driver_status import DriverStatus
from orchestrator.runs.live_view import run_view
from orchestrator.runs.session import Session
from orchestrator.storage import history
from orchestrator.storage.usage_log import UsageLog

if TYPE_CHECKING:
    from rich.console import Group


class ProgressReporter:
    """Passes rows to the tracker, the history and the console, and gives the run's status.

    ``before`` is the MLflow step of epoch 0 (see :mod:`orchestrator.search.winners`), ``selected`` a selection of which
    only the refit is left.
    """

    def __init__(
        self, session: Session, spec: ExperimentSpec, before: int = 0, selected: Progress | None = None
    ) -> None:
        self._session = session
        self._spec = spec
        self._before = before
        self._selected = selected
        self._refit_epochs = selected.best_epoch if selected else 0
        self._objective, *_ = selected_by = objectives.of_plan(spec.workload, spec.plan)
        self._shown = ("loss", *(f"/{objective.metric}" for objective in selected_by))
        self._epoch = 0
        self._target = self._refit_epochs or spec.plan.epochs
        self._noun = "refit epoch" if selected else "epoch"
        self._values: Mapping[str, float] = {}
        self._first = (time.monotonic(), 0)
        """When the first epoch of this selection or refit ended, and its number."""
        self._best = start_point.progress(spec, session.folder.path).best_value
        self._select(history.read(session.folder.path))  # of a run that is resumed

    def _select(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Note the best epoch."""
        for line in lines:
            value = line.get(f"validation/{self._objective.metric}")
            if value is not None and better(value, self._best, self._objective):
                self._best = value
                if not self._selected:
                    self._refit_epochs = line["epoch"]

    def selection(self, rows: Sequence[Row]) -> None:
        """Pass the rows of a sweep's trial that was selected to the tracker and the history. They are not shown.

        A resume passes them again: the tracker drops the steps that it has, and here the written epochs are skipped.
        """
        path = self._session.folder.path
        written = {line.get("epoch") for line in history.read(path) if not any(n.startswith("refit/") for n in line)}
        self._log(rows)
        lines = [line for line in map(_line, rows) if line["epoch"] not in written]
        history.append(path, lines)
        self._select(lines)

    def _log(self, rows: Sequence[Row]) -> None:
        if self._session.tracker:
            # Epoch 0 of a later winner is not logged: its step is the last epoch of the earlier one.
            steps = [replace(row, epoch=row.epoch + self._before) for row in rows if row.epoch or not self._before]
            self._session.tracker.log(self._session.folder.id, steps)

    def rows(self, rows: list[Row]) -> None:
        if not rows:
            return
        self._log(rows)
        lines = list(map(_line, rows))
        history.append(self._session.folder.path, lines)
        self._session.publisher.trained(sum(row.epoch > 0 for row in rows))
        self._select(lines)
        last = rows[-1]
        self._epoch = last.epoch
        noun = "refit epoch" if any(name.startswith("refit/") for name in last.metrics) else "epoch"
        if noun != self._noun or not self._values:
            self._noun = noun
            if noun == "refit epoch":
                self._target = self._refit_epochs or self._target
            self._first = (time.monotonic(), last.epoch)
        self._values = {name: value for name, value in last.metrics.items() if name.endswith(self._shown)}
        detail = "  ".join(f"{name} {value:.4f}" for name, value in self._values.items())
        self._session.console.progress(last.epoch, self._target, noun, detail)

    def view(self) -> Group:
        """Live view of the run. Called in another thread."""
        best = None if self._best is None else {f"validation/{self._objective.metric}": self._best}
        status = replace(self._session.publisher.last, done=self._epoch, target=self._target, best=best)
        since, epoch = self._first
        if self._epoch > epoch:
            per_epoch = (time.monotonic() - since) / (self._epoch - epoch)
            status = replace(status, seconds_left=per_epoch * (status.target - self._epoch))
        return run_view(status, f"{self._noun}s", self._values, self._session.wall_seconds)

    def current_status(self, usage_log: UsageLog) -> DriverStatus:
        """Status of the run. ``usage_log`` gives its device seconds. Thread-safe."""
        best = None if self._best is None else {self._objective.metric: self._best}
        return DriverStatus(self._epoch, self._target, best=best, device_seconds=usage_log.seconds())


def _line(row: Row) -> dict[str, Any]:
    return {"epoch": row.epoch, "time": row.time, **row.metrics}
