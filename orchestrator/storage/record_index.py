"""When the record of each run in an object storage was stored last, and the settled records read before.

An object ``.index/ID`` is written after each record of the run ``ID``: one listing of them has the time of every run's
last record, and drivers never write the same object. Settled records are kept in a file here, each with that time, so
that a listing reads those that are new, changed or of running runs. A run without such an object, of an earlier version
or of a driver that was killed in between, is read each time; the reader writes its object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.provenance import private_files
from orchestrator.storage import generations
from orchestrator.storage.remote import Remote

FOLDER = ".index"
FILE = ".records.jsonl"
"""In the local copy of the storage; one line a record, of which a run's last one counts."""

PARALLEL = 16


class Stored(NamedTuple):
    """A record, and the name of its folder."""

    folder: str
    record: dict[str, Any]


def note(location: Remote) -> None:
    """Note that the record of the run at ``location`` was stored. Raises OSError."""
    storage, _, name = location.uri.rpartition("/")
    _write(Remote(storage, location.request_seconds), generations.run_id(name))


def records(storage: Path, location: Remote, read: Callable[[Remote], dict[str, Any] | None]) -> dict[str, Stored]:
    """The newest record of each run at ``location``, by run. Raises OSError.

    Args:
        storage: local copy of the storage.
        location: of the storage.
        read: reads the record of a folder; None if there is none.
    """
    folders = generations.by_run(name for name in location.folders() if not name.startswith("."))
    changed = {name: entry.time for name, entry in (location / FOLDER).files().items()}
    kept = _kept(storage / FILE)

    def newest(run: str) -> Stored | None:
        if run in changed and run in kept and kept[run][0] == changed[run]:
            return kept[run][1]
        return _read(folders[run])

    def _read(names: Sequence[str]) -> Stored | None:
        for name in names:
            if (record := read(location / name)) is not None:
                return Stored(name, record)
        return None

    with ThreadPoolExecutor(PARALLEL) as pool:
        newest_records = {run: stored for run, stored in zip(folders, pool.map(newest, folders)) if stored is not None}
        with suppress(OSError):  # the storage may be readable only
            list(pool.map(lambda run: _write(location, run), [run for run in newest_records if run not in changed]))
    fresh = {
        run: (changed[run], stored)
        for run, stored in newest_records.items()
        if run in changed and stored.record.get("status") != "running" and kept.get(run, (0.0,))[0] != changed[run]
    }
    if fresh:
        _keep(storage / FILE, fresh, {run: entry for run, entry in kept.items() if run in folders})
    return newest_records


def _write(location: Remote, run: str) -> None:
    location.write(f"{FOLDER}/{run}", b"1")


def _kept(file: Path) -> dict[str, tuple[float, Stored]]:
    """The records in the file, by run, each with its time."""
    kept: dict[str, tuple[float, Stored]] = {}
    with suppress(OSError), file.open() as lines:
        for line in lines:
            with suppress(ValueError, TypeError):  # cut short
                run, time, folder, record = json.loads(line)
                kept[run] = (float(time), Stored(folder, record))
    return kept


def _keep(file: Path, fresh: dict[str, tuple[float, Stored]], kept: dict[str, tuple[float, Stored]]) -> None:
    """Add records to the file. It is written again, without old ones, once most of the records are new."""
    again = len(fresh) >= len(kept)
    lines = "".join(
        f"{json.dumps([run, time, *stored])}\n"
        for run, (time, stored) in ({**kept, **fresh} if again else fresh).items()
    )
    with suppress(OSError):  # a full disk: they are read again next time
        private_files.make_folder(file.parent)
        with private_files.open_file(file, "w" if again else "a") as stream:
            stream.write(lines)
