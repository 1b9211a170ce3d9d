"""Find the runs of a storage: all, the newest, or one by ``latest``, its id or its MLflow run id."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError, nearest
from orchestrator.storage import commands, generations, remote, sync_state
from orchestrator.storage.names import RECORD
from orchestrator.storage.records import FORMAT, NAME, Kind, RunFolder, open_folder

_RUN_ID = re.compile(r"[0-9a-z]{32}")
"""An MLflow run id. The records are read only for a reference of this form: there may be 100,000 of them."""


def folders(storage: Path, kind: Kind | None = None) -> Iterator[RunFolder]:
    """All run folders, newest first. Of a run that another machine drove last, only the record may be here."""
    for _, _, open_one in _by_moment(storage):
        folder = open_one()
        if folder and kind in (None, folder.record["kind"]):
            yield folder


def started_last(storage: Path, count: int) -> tuple[list[RunFolder], int]:
    """At most ``count`` runs, those started last first, and the number of all. Reads few records: a run was not started
    after its record was changed last."""
    every = _by_moment(storage)
    newest: list[tuple[str, str, RunFolder]] = []
    for moment, _, open_one in every:
        if len(newest) >= count and datetime.fromisoformat(newest[count - 1][0]).timestamp() >= moment:
            break
        if folder := open_one():
            newest.append((str(folder.record["started"]), folder.id, folder))
            newest.sort(key=lambda one: one[:2], reverse=True)
            del newest[count:]
    return [folder for *_, folder in newest], len(every)


def _by_moment(storage: Path) -> list[tuple[float, str, Callable[[], RunFolder | None]]]:
    """The moment of each run's last event, or of its record's last change, its id, and a function that opens it; newest
    first.

    The function returns None for a damaged folder, which must not hide the others: naming it raises its error.
    """
    elsewhere = {name: RunFolder(storage / name, record) for name, record in _elsewhere(storage).items()}
    changed = {}
    for name in os.listdir(storage) if storage.is_dir() else ():
        with suppress(OSError):  # no run, or one that only another user may read
            changed[name] = os.stat(f"{storage}/{name}/{RECORD}").st_mtime
    moments = {
        name: (_moment(elsewhere[name].record) if name in elsewhere else changed[name], run)
        for run, (name, *_) in generations.by_run({*elsewhere, *changed}).items()
    }

    def open_one(name: str) -> RunFolder | None:
        with suppress(UserError):
            return elsewhere.get(name) or open_folder(storage / name)
        return None

    newest = sorted(moments, key=lambda name: moments[name][0], reverse=True)
    return [(*moments[name], partial(open_one, name)) for name in newest]


def find(storage: Path, reference: str, kind: Kind | None = None) -> RunFolder:
    """The folder for ``latest``, an id, or an MLflow run id. Raises UserError for an unknown one."""
    if folder := find_here(storage, reference, kind):
        return folder
    what = kind or "run or sweep"
    openers = {run: open_one for _, run, open_one in _by_moment(storage)}

    def is_of_kind(run: str) -> bool:
        folder = openers[run]()
        return folder is not None and kind in (None, folder.record["kind"])

    newest = list(islice(filter(is_of_kind, openers), 5))
    if not newest:
        raise UserError(
            f"There is no {what} yet", got=repr(reference), fix=f"Looked in {remote.uri_of(storage) or storage}"
        )
    close = nearest(reference, openers)
    if close and not is_of_kind(close):
        close = nearest(reference, newest)
    raise UserError(
        f"Unknown {what}", got=repr(reference), allowed=["latest", *newest],
        fix=f"Did you mean {close}?" if close else None,
    )  # fmt: skip


def find_here(storage: Path, reference: str, kind: Kind | None = None) -> RunFolder | None:
    """As :func:`find`, but returns None for an unknown run. Raises UserError for one of another kind or unreadable."""
    if NAME.fullmatch(reference):
        sync_state.try_refresh_newest(storage, reference)
        path = generations.current(storage, reference)
        if os.path.exists(path / RECORD):
            named = open_folder(path)
            if kind not in (None, named.record["kind"]):
                raise UserError(
                    f"{reference} is a {named.record['kind']}, not a {kind}",
                    fix=f"Try: {commands.for_run(path, 'status')}, or {named.resume_command}",
                )
            return named
    if reference == "latest" or _RUN_ID.fullmatch(reference):
        for folder in folders(storage, kind):
            if reference in ("latest", folder.record.get("run_id")):
                sync_state.try_refresh(folder.path)
                return open_folder(folder.path)
    if location := remote.location_of(storage):  # unknown, or the storage is out of reach
        location.check()
    return None


def _elsewhere(storage: Path) -> dict[str, dict[str, Any]]:
    """Records by id of runs that another machine drove last. Empty if the storage is out of reach."""
    with suppress(OSError):
        return {name: record for name, record in sync_state.records(storage).items() if record.get("format") == FORMAT}
    return {}


def _moment(record: Mapping[str, Any]) -> float:
    """Time of the last event in a record (Unix seconds)."""
    return datetime.fromisoformat(record.get("ended") or record["started"]).timestamp()
