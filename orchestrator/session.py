"""What every command that trains shares: its folder, its tracker, its console, Ctrl-C, and a truthful end."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from orchestrator import provenance, store
from orchestrator.console import Console
from orchestrator.errors import DONE, FAILED, INTERRUPTED, UNAVAILABLE, Interrupted, UserError
from orchestrator.interrupts import Interrupts
from orchestrator.mlflow_client import End
from orchestrator.records import RunFolder, Status
from orchestrator.settings import Settings
from orchestrator.tracking import JOURNAL, Tracker

if TYPE_CHECKING:
    import pandas

ENDS: Mapping[Status, End] = {
    "finished": "FINISHED",
    "partial": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}
"""The MLflow status of each end of ours."""


HISTORY = "history.jsonl"


@dataclass(frozen=True)
class Result:
    """What ``--json`` prints and a notebook gets."""

    id: str
    run_id: str | None
    status: str
    metrics: Mapping[str, float]
    model_uri: str | None
    wall_seconds: float
    train_seconds: float
    device_seconds: float
    folder: Path
    exit_code: int = DONE
    extra: Mapping[str, Any] = field(default_factory=dict)

    def history(self) -> pandas.DataFrame:
        """The rows of the run, or of a sweep's winner: a row an epoch, a column a metric."""
        import pandas as pd

        rows = [json.loads(line) for line in (self.folder / HISTORY).read_text().splitlines()]
        unique = {
            (row["epoch"], any(name.startswith("refit/") for name in row)): row for row in rows
        }  # a resume states its last rows again
        return pd.DataFrame(list(unique.values()))

    def trials(self) -> pandas.DataFrame:
        """The trials of a sweep, a row each; empty for a run."""
        import pandas as pd

        file = self.folder / "trials.json"
        return pd.DataFrame(json.loads(file.read_text()) if file.exists() else [])

    def to_json(self) -> dict[str, Any]:
        names = ("id", "run_id", "status", "model_uri", "exit_code")
        seconds = {n: round(getattr(self, n), 3) for n in ("wall_seconds", "train_seconds", "device_seconds")}
        return {n: getattr(self, n) for n in names} | {"metrics": dict(self.metrics)} | seconds | dict(self.extra)


class Session:
    """A context manager around one run or sweep. On the way out the folder's record and the MLflow run get their
    true end, whatever happened; an exception passes on.
    """

    def __init__(
        self,
        folder: RunFolder,
        settings: Settings,
        console: Console,
        *,
        resuming: bool,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> None:
        self.folder, self.settings, self.console = folder, settings, console
        self.started = time.monotonic()
        self._params, self._tags, self._resuming = params, tags, resuming
        self._status: tuple[Status, int, dict[str, Any]] | None = None
        self.tracker: Tracker | None = None
        self.interrupts = Interrupts(folder.stop_file, console)

    def __enter__(self) -> Session:
        self.console.log_to(self.folder.log)
        self.folder.update(tracking=self.settings.tracking, experiment=self.settings.experiment)
        self.tracker = open_tracker(self.settings, self.folder, resuming=self._resuming)
        if self.tracker:
            self.tracker.start(
                self.folder.id, self.folder.id, params=self._params, tags={**self._tags, **identity_tags()}
            )
        self.interrupts.__enter__()
        return self

    @property
    def run_id(self) -> str | None:
        """The MLflow run; waits until it is open."""
        return self.tracker.run_id(self.folder.id) if self.tracker else None

    @property
    def wall_seconds(self) -> float:
        return time.monotonic() - self.started

    def settle(self, status: Status, code: int, **values: Any) -> None:
        """Say how it ended; written on the way out."""
        self._status = (status, code, values)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.interrupts.__exit__(kind, error, trace)
        status, code, values = self._ending(error)
        if error is not None and not isinstance(error, UserError | Interrupted):
            with self.folder.log.open("a") as log:
                traceback.print_exception(error, file=log)
        if self.tracker is not None:
            self.tracker.end(self.folder.id, ENDS[status])
            if trouble := self.tracker.close():
                self.console.say(trouble)
        self.folder.release(status, code, **values)

    def _ending(self, error: BaseException | None) -> tuple[Status, int, dict[str, Any]]:
        if isinstance(error, Interrupted | KeyboardInterrupt):
            return "interrupted", INTERRUPTED, {}
        if error is not None:
            return "failed", getattr(error, "code", FAILED), {"error": str(error)}
        assert self._status is not None, "a session ends with settle() or an exception"
        return self._status


def open_tracker(settings: Settings, folder: RunFolder, *, resuming: bool) -> Tracker | None:
    """The writer of a run; None with ``--tracking none``."""
    if settings.tracking is None:
        return None
    artifacts = store.ensure(settings.tracking)
    experiment = settings.experiment or str(folder.record["workload"])
    return Tracker(settings.tracking, experiment, folder.id, folder.path, artifacts=artifacts, resuming=resuming)


def adopt(settings: Settings, folder: RunFolder) -> Settings:
    """Settings for going on with a run: its own store, unless another is named on the command line."""
    kept = {
        name: folder.record[name]
        for name in ("tracking", "experiment")
        if settings.sources[name] != "flag" and name in folder.record
    }
    return replace(settings, **kept)


def sync(settings: Settings, folder: RunFolder) -> str:
    """Deliver what an outage kept in the folder's journal. Raises UserError (exit 3) when MLflow is still away."""
    if folder.driven():
        raise UserError(f"{folder.id} is still running and delivers by itself", fix="Wait for its end")
    if not (folder.path / JOURNAL).exists():
        return f"{folder.id}: everything is delivered"
    tracker = open_tracker(adopt(settings, folder), folder, resuming=True)
    if tracker is None:
        raise UserError("Tracking is off, so there is nowhere to deliver to", fix="Name a server with --tracking")
    if trouble := tracker.close(timeout=30):
        raise UserError(trouble, code=UNAVAILABLE)
    return f"{folder.id}: delivered"


def identity_tags() -> dict[str, str]:
    """Who ran what code: tags of every run."""
    import getpass

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container user without a name
        user = "unknown"
    return {"mlflow.user": user, **provenance.tags()}
