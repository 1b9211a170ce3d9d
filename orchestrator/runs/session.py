"""What every command that trains shares: its folder, its tracker, its console, Ctrl-C, and a truthful end."""

from __future__ import annotations

import json
import os
import shutil
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from orchestrator.cluster.interrupts import Interrupts
from orchestrator.config import workload_loader
from orchestrator.console import Console
from orchestrator.errors import DONE, INTERRUPTED, Interrupted, UserError, mask
from orchestrator.provenance import record as provenance
from orchestrator.provenance.source import Source
from orchestrator.runs.driver_status import StatusPublisher
from orchestrator.storage import disk, notifications
from orchestrator.storage.names import HISTORY, TRIALS
from orchestrator.storage.notifications import Notifier
from orchestrator.storage.object_sync import Mirror, StopWatcher
from orchestrator.storage.records import RunFolder, Status, ending, user
from orchestrator.storage.settings import Settings
from orchestrator.tracking import lineage, store
from orchestrator.tracking.client import End
from orchestrator.tracking.system_metrics import SystemMetrics
from orchestrator.tracking.tracker import Tracker

if TYPE_CHECKING:
    import pandas

ENDS: Mapping[Status, End] = {
    "finished": "FINISHED",
    "partial": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}
"""The MLflow status of each end of ours."""


ENDINGS: Mapping[Status, str] = {
    "finished": "has finished",
    "partial": "has finished, some trials failed",
    "failed": "has failed",
    "interrupted": "was interrupted and can be resumed",
}
"""Each end in words."""

SECRET = "***"

LOGINS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""What MLflow's client sends to whatever address it is given."""


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

        file = self.folder / TRIALS
        return pd.DataFrame(json.loads(file.read_text()) if file.exists() else [])

    def to_json(self) -> dict[str, Any]:
        names = ("id", "run_id", "status", "model_uri", "exit_code")
        seconds = {n: round(getattr(self, n), 3) for n in ("wall_seconds", "train_seconds", "device_seconds")}
        return {n: getattr(self, n) for n in names} | {"metrics": dict(self.metrics)} | seconds | dict(self.extra)


class Session:
    """A context manager around one run or sweep. On the way out, or where the way in fails, the folder's record and
    the MLflow run get their true end, whatever happened; an exception passes on.
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
        self._system: SystemMetrics | None = None
        self._mirror: Mirror | StopWatcher | None = None
        standing = {"queue": settings.queue, "priority": settings.priority}
        self.publisher = StatusPublisher(folder, lambda: self.tracker.unsent if self.tracker else 0, standing)
        self.interrupts = Interrupts(folder.stop_file, console, self._record_stop)
        about = {"id": folder.id, "kind": folder.record["kind"], "workload": folder.record["workload"]}
        self._notifier = Notifier(settings.notify, about)

    def __enter__(self) -> Session:
        try:
            self._begin()
        except BaseException as error:  # there will be no way out of what was not entered
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _begin(self) -> None:
        self.console.log_to(self.folder.log)
        self.interrupts.__enter__()  # from here on a stop is a clean one: half a tracker could not be closed
        tracking = self.settings.tracking and mask(self.settings.tracking)  # a database's password is not recorded
        self.folder.update(tracking=tracking, experiment=self.settings.experiment)
        self._mirror = self.folder.mirror()
        if warning := self.folder.warning():
            self.console.say(warning)
        apart = (self.settings.home, self.settings.storage)
        sources = provenance.sources(apart=apart, workload=self.folder.record["workload"])
        data = self._tags.get("orchestrator.data_fingerprint")
        record = provenance.write(self.folder.path, self.folder.record["spec"], sources, data)
        self.tracker = open_tracker(self.settings, self.folder, resuming=self._resuming)
        if self.tracker:
            tags = {**self._tags, **identity_tags(sources)}
            self.tracker.start(self.folder.id, self.folder.id, params=self._params, tags=tags)
            if self.interrupts.stopped:  # before there was a tracker
                self.tracker.provisional_end(ENDS["interrupted"])
            self.tracker.files(self.folder.id, record)
            began = datetime.fromisoformat(self.folder.record["started"]).timestamp()
            self._system = SystemMetrics(partial(self.tracker.log, self.folder.id), began).__enter__()
        self.publisher.__enter__()
        self.notify("start", f"{self.folder.id} {'goes on' if self._resuming else 'starts'}", "running")

    @property
    def run_id(self) -> str | None:
        """The MLflow run; None while it is not open, and without tracking."""
        return self.tracker.opened(self.folder.id) if self.tracker else None

    @property
    def wall_seconds(self) -> float:
        return time.monotonic() - self.started

    @contextmanager
    def on_cluster(self) -> Iterator[None]:
        """While the body works on the Ray cluster that is connected now: it is in the record, its nodes are watched."""
        provenance.note_cluster(self.folder.path)
        with ExitStack() as stack:
            if self.tracker and self._system:
                self.tracker.files(self.folder.id, [self.folder.path / provenance.ENVIRONMENT])
                from orchestrator.cluster.ray_compat import nodes_of_job

                stack.enter_context(self._system.of_cluster(nodes_of_job))
            stack.enter_context(self.publisher.on_cluster())
            yield

    def trained_on(self, key: str, params: Mapping[str, Any]) -> None:
        """Say which dataset the run ``key`` is trained on."""
        ours = workload_loader.entry(self.folder.record["workload"]).data
        if self.tracker and ours and (dataset := lineage.dataset(params, self.settings.data)):
            self.tracker.input(key, dataset)

    def notify(self, event: notifications.Kind, message: str, status: str = "running", **more: Any) -> None:
        """Tell whoever the setting ``notify`` names; returns at once and never raises."""
        self._notifier.send(event, status, message, **more)

    def discard(self, folder: Path) -> None:
        """Remove a folder of the run's, from the storage too."""
        shutil.rmtree(folder, ignore_errors=True)
        if self._mirror is not None:
            self._mirror.discard(folder.relative_to(self.folder.path).as_posix())

    def settle(self, status: Status, code: int, **values: Any) -> None:
        """Say how it ended; written on the way out."""
        self._status = (status, code, values)

    def _record_stop(self) -> None:
        """Write down the end that a kill would be, at once after a signal: Ray leaves a job that it stops 3 s."""
        with suppress(OSError):
            self.folder.provisional_end("interrupted", INTERRUPTED)
        if self.tracker is not None:
            with suppress(ValueError):  # it is closed already
                self.tracker.provisional_end(ENDS["interrupted"])
        if self._mirror is not None:
            self._mirror.send_now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        told = disk.unwritable(self.settings.storage, error) if disk.is_full(error) else error
        if error and self.interrupts.signalled and not isinstance(error, UserError | Interrupted) and told is error:
            # What stops us may have stopped Ray, or broken off the connecting to it: no failure of the run's.
            told = Interrupted(f"orchestrator {self.folder.record['kind']} --resume {self.folder.id}")
        status, code, values = self._ending(told)
        try:
            self._notify_end(status, values)
            if error is not None and not isinstance(error, UserError | Interrupted):
                with suppress(OSError), self.folder.log.open("a") as log:
                    log.write(mask("".join(traceback.format_exception(error))))
            if self._system is not None:
                self._system.__exit__(kind, error, trace)
            if self.tracker is not None:
                self.tracker.end(self.folder.id, ENDS[status])
                if trouble := self.tracker.close():
                    self.console.say(trouble)
        finally:  # whoever looks finds how it ended, also when the last seconds were cut short
            self.publisher.__exit__(kind, error, trace)
            self.interrupts.end_recording()
            try:
                self.folder.release(status, code, **values)
            except OSError as full:  # the storage takes no record either, which is the cause of all else
                if not disk.is_full(full):
                    raise
                told = disk.unwritable(self.settings.storage, full)
            self.interrupts.__exit__(kind, error, trace)
        if self._mirror is not None and (trouble := self._mirror.close()):  # the record's end is to be stored too
            self.console.say(trouble)
        if trouble := self._notifier.close():
            with suppress(OSError), self.folder.log.open("a") as log:
                log.write(f"{trouble}\n")
        if told is not None and told is not error:
            raise told from error

    def _notify_end(self, status: Status, values: Mapping[str, Any]) -> None:
        cause = f": {values['error']}" if "error" in values else ""
        tracking, run_id = self.settings.tracking or "", values.get("run_id")
        self.notify(
            "failure" if status == "failed" else "finish",
            f"{self.folder.id} {ENDINGS[status]}{cause}",
            status,
            metrics=values.get("result", {}).get("metrics"),
            url=f"{tracking}/#/runs/{run_id}" if run_id and tracking.startswith("http") else None,
        )

    def _ending(self, error: BaseException | None) -> tuple[Status, int, dict[str, Any]]:
        if error is not None:
            return ending(error)
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
    """Settings for going on with a run: its own store, unless another is named on the command line.

    Raises UserError where the store's address is the record's alone and this environment has a login: whoever wrote
    the record would be sent it.
    """
    kept = {
        name: folder.record[name]
        for name in ("tracking", "experiment")
        if settings.sources[name] != "flag" and name in folder.record and SECRET not in str(folder.record[name])
    }
    server = str(kept.get("tracking"))
    if server.startswith("http") and server != settings.tracking and any(map(os.environ.get, LOGINS)):
        raise UserError(
            f"{folder.id} was tracked at {server}, and the login in this environment is not known to be for that",
            fix=f"If it is, name it: --tracking {server}",
        )
    return replace(settings, **kept)


def identity_tags(sources: Sequence[Source] = ()) -> dict[str, str]:
    """Who, with which command, and from which code: tags of every run."""
    return {"mlflow.user": user(), **provenance.tags(sources)}
