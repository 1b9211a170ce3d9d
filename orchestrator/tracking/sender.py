"""Send the journal's operations to an MLflow store. Sending one twice is harmless."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.tracking.client import KEY, OWNER, RECORD, Client, Doubtful, Refused
from orchestrator.tracking.journal import Operation
from orchestrator.tracking.names import Names


class Sender:
    """Applies operations to the runs of ``owner``, which it identifies by key.

    Values at or below the last logged step of their metric are dropped. Only files below ``folder`` are sent, since a
    journal from another machine may name any path. Fills ``runs`` (key to MLflow id) as runs are opened, and
    ``refused`` with messages about what the store rejected. While ``is_patient``, a doubtful rejection is raised and
    nothing is dropped for it.
    """

    is_patient = True

    def __init__(
        self,
        client: Client,
        owner: str,
        folder: Path,
        runs: dict[str, str],
        refused: list[str],
        uid: str | None = None,
    ) -> None:
        self._client = client
        self._owner = owner
        self._uid = uid
        self._folder = folder
        self._runs = runs
        self._refused = refused
        self._steps: dict[str, dict[str, int]] = defaultdict(dict)
        self._illegal: set[tuple[str, str]] = set()
        self._not_finite: set[tuple[str, str]] = set()
        self._in_doubt: set[str] = set()
        self.names = {"metric": Names(), "parameter": Names(), "tag": Names()}

    def send(self, operation: Operation) -> None:
        """Send one operation. Raises Refused when a retry would not help, other errors during an outage."""
        match operation["op"]:
            case "recall":
                for key, run in self._client.existing_runs(self._owner, self._uid):
                    self._runs[key] = run.run_id
                    self._steps[key] = dict(run.steps)
            case "start":
                self._start(operation)
            case "log":
                self._log(*self._open(operation), operation)
            case "input":
                self._client.input(self._open(operation)[1], operation["dataset"])
            case "files":
                self._client.files(self._open(operation)[1], filter(self._within, operation["paths"]))
            case "end":
                self._client.end(self._open(operation)[1], operation["status"], operation["time"])

    def _within(self, path: str) -> bool:
        within = Path(path).resolve().is_relative_to(self._folder.resolve())
        if not within:
            self._refused.append(f"{path} is not sent: it lies outside the run's folder")
        return within

    def note_unanswered(self, operation: Operation) -> None:
        """Note that an operation got no answer: a run that it should create may exist."""
        if operation["op"] == "start":
            self._in_doubt.add(operation["key"])

    def _start(self, operation: Operation) -> None:
        key = operation["key"]
        is_in_doubt = key in self._in_doubt and key not in self._runs
        if is_in_doubt and (run := self._client.find(self._owner, key, self._uid)):
            self._runs[key] = run
        if key in self._runs:
            self._client.reopen(self._runs[key])
        else:
            given = self.names["tag"].give(operation["tags"])
            tags = {given[name]: value for name, value in operation["tags"].items()} | {KEY: key, OWNER: self._owner}
            tags |= {RECORD: self._uid} if self._uid else {}
            parent = self._runs.get(operation["parent"])
            self._runs[key] = self._client.create(operation["name"], tags, parent, operation["time"])
        self._in_doubt.discard(key)
        given = self.names["parameter"].give(operation["params"])
        params = [(given[name], value) for name, value in operation["params"].items()]
        self._log(key, self._runs[key], operation, params)

    def _log(self, key: str, run: str, operation: Operation, params: Sequence[tuple[str, str]] = ()) -> None:
        """Send the rows and tags of an operation, and parameters, in one request."""
        rows = operation.get("rows", ())
        given = self.names["metric"].give(dict.fromkeys(name for _, _, metrics in rows for name in metrics))
        steps = dict(self._steps[key])
        fresh: list[tuple[str, float, int, int]] = []
        not_finite: dict[str, str] = {}
        for epoch, moment, metrics in rows:
            for ours, value in metrics.items():
                name = given[ours]
                if epoch <= steps.get(name, -1):
                    continue
                if math.isfinite(value):
                    fresh.append((name, value, moment, epoch))
                    steps[name] = epoch
                elif (run, name) not in self._not_finite:  # MLflow shows infinity as 1.8e308
                    not_finite.setdefault(name, f"{value:g} at epoch {epoch}")
        tags = operation.get("set_tags", {}) | {f"nonfinite.{name}": text for name, text in not_finite.items()}
        given = self.names["tag"].give(tags)
        renamed = [(given[name], value) for name, value in tags.items()]
        self._deliver(run, params=params, metrics=fresh, tags=renamed)
        self._steps[key] = steps
        self._not_finite.update((run, name) for name in not_finite)

    def _deliver(self, run: str, **values: Sequence[tuple[Any, ...]]) -> None:
        """Send named values, by kind, in one request.

        If the server rejects it, they are sent kind by kind, and of one kind name by name, to drop the invalid alone.
        """
        valid = {
            kind: kept
            for kind, given in values.items()
            if (kept := [value for value in given if (run, value[0]) not in self._illegal])
        }
        if not valid:
            return
        try:
            self._client.log(run, **valid)
        except Refused as error:
            if self.is_patient and isinstance(error, Doubtful):
                raise
            parts = [{kind: kept} for kind, kept in valid.items()]
            if len(parts) == 1:
                ((kind, kept),) = valid.items()
                names = dict.fromkeys(value[0] for value in kept)
                if len(names) == 1:
                    self._illegal.add((run, *names))
                    self._refused.append(str(error))
                    return
                parts = [{kind: [value for value in kept if value[0] == name]} for name in names]
            for part in parts:
                self._deliver(run, **part)

    def _open(self, operation: Operation) -> tuple[str, str]:
        key = operation["key"]
        if key not in self._runs:
            raise Refused(f"the run {key} was never opened")
        return key, self._runs[key]
