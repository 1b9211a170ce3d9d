"""The session of a command that trains: its folder, tracker, console, signals, and its recorded end."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from orchestrator.cluster.interrupts import Interrupts
from orchestrator.config import objectives, user_code, workload_loader
from orchestrator.config.spec import ExperimentSpec
from orchestrator.console import Console
from orchestrator.errors import DONE, INTERRUPTED, Interrupted, UserError, mask
from orchestrator.provenance import record as provenance
from orchestrator.provenance.source import Source
from orchestrator.runs import description, micro_batches
from orchestrator.runs.driver_status import StatusPublisher
from orchestrator.storage import disk, history, notifications
from orchestrator.storage.look_ledger import Look
from orchestrator.storage.names import TRIALS
from orchestrator.storage.notifications import Notifier
from orchestrator.storage.object_sync import FolderSync, StopWatcher
from orchestrator.storage.records import RunFolder, Status, ending, user
from orchestrator.storage.settings import Settings
from orchestrator.tracking import lineage, store
from orchestrator.tracking.client import End
from orchestrator.tracking.system_metrics import SystemMetrics
from orchestrator.tracking.tracker import Tracker

if TYPE_CHECKING:
    import pandas

MLFLOW_STATUS: Mapping[Status, End] = {
    "finished": "FINISHED",
    "partial": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}
"""The MLflow status of each way to end."""

STATUS_TEXT: Mapping[Status, str] = {
    "finished": "has finished",
    "partial": "has finished, some trials failed",
    "failed": "has failed",
    "interrupted": "was interrupted and can be resumed",
}
"""Each way to end in words."""

SECRET = "***"

LOGINS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Variables whose values MLflow's client sends to the tracking address."""


@dataclass(frozen=True)
class Result:
    """Result of a run or sweep: printed by ``--json`` and returned in a notebook."""

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
        """The rows of the run, or of a sweep's winner: one for each epoch of the selection, then of the refit.

        There is one column for each metric; those of a refit begin with ``refit/``. A sweep's selection is the winning
        trial, of several seeds the first one.
        """
        import pandas as pd

        rows = history.read(self.folder)
        unique = {
            (any(name.startswith("refit/") for name in row), row["epoch"]): row for row in rows
        }  # a resume repeats its last rows
        return pd.DataFrame([row for _, row in sorted(unique.items())])

    def trials(self) -> pandas.DataFrame:
        """One row per trial of a sweep. Empty for a run."""
        import pandas as pd

        file = self.folder / TRIALS
        return pd.DataFrame(json.loads(file.read_text()) if file.exists() else [])

    def to_json(self) -> dict[str, Any]:
        names = ("id", "run_id", "status", "model_uri", "exit_code")
        seconds = {n: round(getattr(self, n), 3) for n in ("wall_seconds", "train_seconds", "device_seconds")}
        return {n: getattr(self, n) for n in names} | {"metrics": dict(self.metrics)} | seconds | dict(self.extra)

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any], folder: Path) -> Result:
        """The result that :meth:`to_json` gave."""
        names = {one.name for one in fields(cls)} - {"folder", "extra"}
        own = {name: value for name, value in recorded.items() if name in names}
        return cls(**own, folder=folder, extra={k: v for k, v in recorded.items() if k not in names})


class Session:
    """Context manager around one run or sweep. On exit it records how the run ended.

    ``name`` is its name in MLflow, ``summary`` the first part of its description there. The folder's record and the
    MLflow run get this end for every exception, also for one during ``__enter__``. The exception is raised again.
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
        name: str | None = None,
        summary: str = "",
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.console = console
        self.started = time.monotonic()
        self._params = params
        self._tags = tags
        self._datasets: dict[str | None, dict[str, str] | None] = {}
        self._resuming = resuming
        self._name = name or folder.id
        self._summary = summary
        self._status: tuple[Status, int, dict[str, Any]] | None = None
        self.tracker: Tracker | None = None
        self._system: SystemMetrics | None = None
        self.task_nodes: set[str] = set()
        """Nodes of the Ray tasks that train now. Ray lists nodes of actors only."""
        self._sync: FolderSync | StopWatcher | None = None
        about = {"queue": settings.queue, "priority": settings.priority}
        self.publisher = StatusPublisher(folder, lambda: self.tracker.unsent if self.tracker else 0, about)
        self.interrupts = Interrupts(folder.stop_file, console, self._record_stop)
        identity = {"id": folder.id, "kind": folder.record["kind"], "workload": folder.record["workload"]}
        self._notifier = Notifier(settings.notify, identity)

    def __enter__(self) -> Session:
        try:
            self._begin()
        except BaseException as error:  # Python calls no __exit__ after a failed __enter__
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _begin(self) -> None:
        self.console.log_to(self.folder.log)
        self.interrupts.__enter__()  # before the tracker, so that a signal cannot leave it half open
        self.folder.update(**self.settings.recorded())
        self._sync = self.folder.start_sync()
        if warning := self.folder.warning():
            self.console.say(warning)
        apart = (self.settings.home, self.settings.storage)
        sources = provenance.sources(apart=apart, workload=self.folder.record["workload"])
        data = self._tags.get("orchestrator.data_fingerprint")
        inputs = self.folder.record.get("inputs")
        if self._resuming:
            for file in provenance.changed_code(self.folder.path, self.folder.record["spec"]):
                self.console.say(f"{file} has changed since the {self.folder.record['kind']} began")
        record = provenance.write(self.folder.path, self.folder.record["spec"], sources, data, inputs)
        self.tracker = open_tracker(
            self.settings, self.folder, resuming=self._resuming, is_overtaken=self._sync.is_overtaken
        )
        if self.tracker:
            tags = {**self._tags, **identity_tags(sources), **self._description("Running")}
            self.tracker.start(self.folder.id, self._name, params=self._params, tags=tags)
            if self._resuming:  # a run that is opened again keeps its tags
                self.tracker.tag(self.folder.id, self._description("Running"))
            if self.interrupts.stopped:  # a signal came before the tracker
                self.tracker.provisional_end(MLFLOW_STATUS["interrupted"])
            self.tracker.files(self.folder.id, record)
            began = datetime.fromisoformat(self.folder.record["started"]).timestamp()
            self._system = SystemMetrics(partial(self.tracker.log, self.folder.id), began).__enter__()
        self.publisher.__enter__()
        self.notify("start", f"{self.folder.id} {'goes on' if self._resuming else 'starts'}", "running")

    @property
    def run_id(self) -> str | None:
        """Id of the MLflow run. None before it is open and without tracking."""
        return self.tracker.opened(self.folder.id) if self.tracker else None

    @property
    def wall_seconds(self) -> float:
        return time.monotonic() - self.started

    @contextmanager
    def on_cluster(self) -> Iterator[None]:
        """Record the connected Ray cluster, and sample the metrics of its nodes within the block."""
        provenance.note_cluster(self.folder.path)
        with ExitStack() as stack:
            if self.tracker and self._system:
                self.tracker.files(self.folder.id, [self.folder.path / provenance.ENVIRONMENT])
                from orchestrator.cluster.ray_compat import nodes_of_job

                stack.enter_context(self._system.of_cluster(lambda: nodes_of_job() | self.task_nodes))
            stack.enter_context(self.publisher.on_cluster())
            yield

    def trained_on(self, key: str, params: Mapping[str, Any]) -> None:
        """Log the dataset of the run ``key`` to MLflow. A dataset is described once a session, not once a trial."""
        if not self.tracker or not workload_loader.entry(self.folder.record["workload"]).data:
            return
        name = params.get("dataset")
        if name not in self._datasets:
            self._datasets[name] = lineage.dataset(params, self.settings.data)
        if dataset := self._datasets[name]:
            self.tracker.input(key, dataset)

    def look(self, spec: ExperimentSpec) -> Look:
        """The entry for the ledger of looks, to be recorded before the test split is evaluated with ``spec``."""
        objective, *_ = objectives.of_plan(spec.workload, spec.plan)
        what = "trial and epochs" if self.folder.record["kind"] == "sweep" else "epochs"
        by = f"{what} by {objective.metric} ({objective.direction}) on validation"
        selection = "parameters and epochs were given" if spec.plan.refit == "only" else by
        if workload_loader.reads_test(spec.workload, spec.params):
            selection += "; training used test"
        fingerprint = self._tags.get("orchestrator.data_fingerprint", "none")
        return Look(
            storage=self.settings.storage,
            workload=spec.workload,
            dataset=spec.params.get("dataset"),
            fingerprint=None if fingerprint == "none" else fingerprint,
            run=self.folder.id,
            kind=self.folder.record["kind"],
            selection=selection,
            spec=spec.fingerprint(),
            seed=spec.seed,
            by=user(),
            host=socket.gethostname(),
        )

    def notify(self, event: notifications.Kind, message: str, status: str = "running", **more: Any) -> None:
        """Send a message to the targets of the setting ``notify``. Returns at once and never raises."""
        self._notifier.send(event, status, message, **more)

    def discard(self, folder: Path) -> None:
        """Remove a folder of the run, here and from its storage."""
        shutil.rmtree(folder, ignore_errors=True)
        if self._sync is not None:
            self._sync.discard(folder.relative_to(self.folder.path).as_posix())

    def print_progress(self, done: int, total: int, noun: str, detail: str | Callable[[], str] = "") -> None:
        """Print progress with the time left of the last published status, the one that ``orchestrator top`` shows."""
        self.console.progress(done, total, noun, detail, self.publisher.last.seconds_left)

    def split_batch(self, parts: int) -> None:
        """Note the new number of micro-batches in the record, which ``status`` shows, in MLflow and on the console."""
        self.console.say(f"Out of memory; continuing with {parts} micro-batches of a batch")
        self.folder.update(accumulate=parts)
        if self.tracker:
            self.tracker.tag(self.folder.id, {micro_batches.TAG: str(parts)})

    def set_end(self, status: Status, code: int, **values: Any) -> None:
        """Set the end that is recorded on exit."""
        self._status = (status, code, values)

    def _description(self, state: str) -> dict[str, str]:
        """The tag with the description in MLflow as long as the run has not finished."""
        return {description.NOTE: description.unfinished(self._summary, f"{state}.", self.folder.resume_command)}

    def _record_stop(self) -> None:
        """Record an interruption at once after a signal: Ray kills a job 3 s after it asks it to stop."""
        with suppress(OSError):
            self.folder.provisional_end("interrupted", INTERRUPTED)
        if self.tracker is not None:
            with suppress(ValueError):  # already closed
                self.tracker.tag(self.folder.id, self._description("Interrupted"))
                self.tracker.provisional_end(MLFLOW_STATUS["interrupted"])
        if self._sync is not None:
            self._sync.send_now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.console.end_view()
        reported = error and disk.explained(self.folder.path, error)
        if error and self.interrupts.signalled and not isinstance(error, UserError | Interrupted) and reported is error:
            # The signal may have stopped Ray too, which is no failure of the run.
            reported = Interrupted(self.folder.resume_command)
        status, code, values = self._ending(reported)
        cause = f": {values['error']}" if "error" in values else ""
        try:
            self._notify_end(status, values, cause)
            if error is not None and not isinstance(error, UserError | Interrupted):
                with suppress(OSError), self.folder.log.open("a", encoding="utf-8") as log:
                    log.write(mask("".join(traceback.format_exception(error))))
            if self._system is not None:
                self._system.__exit__(kind, error, trace)
            if self.tracker is not None:
                if error is not None:
                    self.tracker.tag(self.folder.id, self._description(f"{status.capitalize()}{cause}"))
                self.tracker.end(self.folder.id, MLFLOW_STATUS[status])
                if trouble := self.tracker.close():
                    self.console.say(trouble)
        finally:  # the end is recorded even if the steps above fail
            self.publisher.__exit__(kind, error, trace)
            self.interrupts.end_recording()
            try:
                self.folder.release(status, code, **values)
            except OSError as failure:
                explained = disk.explained(self.folder.path, failure)
                if explained is failure:
                    raise
                if reported is None or disk.is_full(failure):  # a full storage is the cause of the other errors
                    reported = explained
            self.interrupts.__exit__(kind, error, trace)
        if self._sync is not None and (trouble := self._sync.close()):  # after the record's last change
            self.console.say(trouble)
        if trouble := self._notifier.close():
            with suppress(OSError), self.folder.log.open("a", encoding="utf-8") as log:
                log.write(f"{trouble}\n")
        if reported is not None and reported is not error:
            raise reported from error

    def _notify_end(self, status: Status, values: Mapping[str, Any], cause: str) -> None:
        tracking = self.settings.tracking or ""
        run_id = values.get("run_id")
        self.notify(
            "failure" if status == "failed" else "finish",
            f"{self.folder.id} {STATUS_TEXT[status]}{cause}",
            status,
            metrics=values.get("result", {}).get("metrics"),
            url=f"{tracking}/#/runs/{run_id}" if run_id and tracking.startswith("http") else None,
        )

    def _ending(self, error: BaseException | None) -> tuple[Status, int, dict[str, Any]]:
        if error is not None:
            return ending(error)
        assert self._status is not None, "a session ends with set_end() or an exception"
        return self._status


def open_tracker(
    settings: Settings, folder: RunFolder, *, resuming: bool, is_overtaken: Callable[[], bool] = lambda: False
) -> Tracker | None:
    """The tracker of a run, or None with ``--tracking none``."""
    if settings.tracking is None:
        return None
    artifacts = store.ensure(settings.tracking, settings.home)
    experiment = settings.experiment or user_code.label(str(folder.record["workload"]))
    return Tracker(
        settings.tracking,
        experiment,
        folder.id,
        folder.path,
        artifacts=artifacts,
        resuming=resuming,
        is_overtaken=is_overtaken,
        uid=folder.record.get("uid"),
        follow=resuming and settings.sources["experiment"] != "flag",
    )


def adopt(settings: Settings, folder: RunFolder) -> Settings:
    """Settings to resume a run: with its recorded tracking store, unless the command line names another one.

    Raises UserError if only the record names a server and this environment has a login, which would be sent to it.
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


def identity_tags(sources: Sequence[Source]) -> dict[str, str]:
    """Tags of every run: user, command and source code."""
    return {"mlflow.user": user(), **provenance.tags(sources)}
