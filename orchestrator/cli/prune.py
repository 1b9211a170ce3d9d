"""Find and remove stale run data. Never removes what a resume or a running driver needs, or MLflow artifacts."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.cluster import preflight
from orchestrator.console import aligned
from orchestrator.errors import UserError, one_line, plural
from orchestrator.registry import models
from orchestrator.storage import generations, lease, records, remote, run_lookup, sync_state
from orchestrator.storage.lease import LOCK
from orchestrator.storage.names import HALF_WRITTEN, HISTORY, OUTCOME, RECORD, STATUS_FILE, STUDY
from orchestrator.storage.records import SETTLED, RunFolder
from orchestrator.storage.settings import Settings
from orchestrator.tracking.client import OWNER, all_pages, all_runs
from orchestrator.tracking.client import RECORD as RECORD_TAG
from orchestrator.tracking.tracker import JOURNAL

COPY = "copy of what is stored"
DAMAGED = "folder with a damaged record"
OVERTAKEN = "folder of a driver that was overtaken"
DAY = 86_400.0
HOLDING = (STUDY, HISTORY, OUTCOME, JOURNAL)
"""A run without any of these files has no results."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A file or folder that can be removed: its kind, the folder of its run, its size."""

    kind: str
    run: Path
    path: Path
    bytes: int


@dataclass(frozen=True, slots=True)
class Stale:
    """An MLflow run that is RUNNING although its driver is gone: its id, the id of our run, the reason."""

    run_id: str
    id: str
    why: str


def orphans(settings: Settings, *, older_than: float = 0.0, kept: bool = False) -> list[Orphan]:
    """Everything that can be removed: of runs without a live driver that did not change for ``older_than`` days.

    ``kept`` includes the checkpoints that ``sweep --keep all`` keeps.
    """
    orphans: list[Orphan] = []
    before = time.time() - older_than * DAY
    for file in sorted(settings.storage.glob(f"*/{RECORD}")):
        with suppress(FileNotFoundError):  # another process is cleaning too
            if file.stat().st_mtime <= before and not lease.has_live_driver(file.parent):
                orphans += _orphans_in(file.parent, kept)
    return orphans


def stale(settings: Settings) -> list[Stale]:
    """MLflow runs of ours that are left RUNNING. Raises UserError (exit 3) during an outage of MLflow.

    A run without a folder in this storage may have a driver elsewhere: it counts only a day after its start, and only
    if it belongs to this user.
    """
    preflight.tracking(settings)
    if settings.tracking is None:
        return []
    client = models.client(settings)
    folders = {folder.id: folder for folder in run_lookup.folders(settings.storage)}
    stale_runs = []
    experiments = [experiment.experiment_id for experiment in all_pages(client.search_experiments)]
    for run in all_runs(client.search_runs, experiments, "attributes.status = 'RUNNING'"):
        owner = run.data.tags.get(OWNER)
        if owner is None:
            continue
        folder = folders.get(owner)
        uid = folder.record.get("uid") if folder else None
        if run.data.tags.get(RECORD_TAG, uid) != uid:
            folder = None  # a run of another storage has the same name
        lost = folder is not None and folder.status() in ("lost", "interrupted")  # interrupted: killed while saving
        if folder is not None and lost and not _driven_elsewhere(folder):
            stale_runs.append(Stale(run.info.run_id, owner, "its driver is gone"))
        elif folder is None and (
            run.data.tags.get("mlflow.user") == records.user() and run.info.start_time / 1000 < time.time() - DAY
        ):
            stale_runs.append(Stale(run.info.run_id, owner, "its folder is not here"))
    return stale_runs


def remove(orphans: Iterable[Orphan]) -> tuple[list[Orphan], list[str]]:
    """Remove orphans, also from an object store. Returns those removed and error messages about others.

    One that its run needs again, or whose run has a live driver again, is skipped without a message.
    """
    removed: list[Orphan] = []
    troubles: list[str] = []
    for orphan in orphans:
        try:
            if _remove(orphan):
                removed.append(orphan)
        except UserError:  # another machine has resumed the run since
            continue
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not orphan.run.exists():  # another process is cleaning too
                continue
            troubles.append(f"{orphan.path} could not be removed: {error.strerror or error}")
    return removed, troubles


def kill(settings: Settings, runs: Iterable[Stale]) -> tuple[list[Stale], list[str]]:
    """Set the status of MLflow runs to KILLED; a resume opens them again. Returns those set, and error messages."""
    killed: list[Stale] = []
    troubles: list[str] = []
    client: Any = models.client(settings) if settings.tracking else None
    for run in runs if client else ():
        try:
            client.set_terminated(run.run_id, "KILLED")
            killed.append(run)
        except models.outage_errors() as error:
            troubles.append(f"MLflow run {run.run_id} could not be ended: {one_line(error)}")
    return killed, troubles


def _remove(orphan: Orphan) -> bool:
    """Remove an orphan; False if it is no orphan any more. Raises OSError."""
    stored = remote.location_of(orphan.run)
    with lease.locked(orphan.run) as locked:
        if not locked or not _is_orphan(orphan) or (stored is not None and _leased(stored)):
            return False
        if stored is None or orphan.kind in (COPY, OVERTAKEN):
            _delete(orphan.path)
        elif orphan.path == orphan.run:
            with lease.holding(stored):
                is_kept = _is_further(stored, orphan)
                _delete(orphan.path)
                if not is_kept:
                    remote.Remote(stored.uri.rpartition("/")[0]).remove_folder(orphan.run.name)
        else:
            _delete(orphan.path)
            sync_state.upload_pending(orphan.run)
    return True


def _is_further(stored: remote.Remote, orphan: Orphan) -> bool:
    """Whether the storage has more of a run than its folder here: a later driver's record, or an intact one."""
    if orphan.kind == DAMAGED:
        return sync_state.record(stored) is not None
    return sync_state.is_superseded(stored, sync_state.manifest(orphan.run)[0])


def _delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _is_orphan(orphan: Orphan) -> bool:
    """Whether it still is an orphan: a run that was resumed meanwhile may need it."""
    current = (other for kept in (False, True) for other in _orphans_in(orphan.run, kept))
    return any((other.kind, other.path) == (orphan.kind, orphan.path) for other in current)


def _driven_elsewhere(folder: RunFolder) -> bool:
    """Whether another machine drives the run, also if this machine's clock is wrong or the storage does not answer."""
    stored = remote.location_of(folder.path)
    try:
        return _may_have_another_host(folder) if stored is None else _leased(stored)
    except OSError:
        return True


def _leased(stored: remote.Remote) -> bool:
    """Whether another machine drives the run, by the clock of the storage. Raises OSError if it does not answer."""
    holder = lease.holder(stored)
    return holder is not None and holder.left(stored.now()) > 0


def _orphans_in(path: Path, kept: bool) -> Iterator[Orphan]:
    """The orphans in the folder of a run without a live driver."""
    try:
        folder = records.open_folder(path)
    except UserError:
        if _damaged(path):
            yield _orphan(DAMAGED, path, path)
        return
    yield from _of(folder, kept)


def _of(folder: RunFolder, kept: bool) -> Iterator[Orphan]:
    path = folder.path
    status = folder.record["status"]
    if generations.is_superseded(path):
        yield _orphan(OVERTAKEN, path, path)
        return
    if _may_have_another_host(folder):
        return
    if _is_stored(path):
        yield _orphan(COPY, path, path)
        return
    if status == "running" and _has_no_results(path):
        yield _orphan("folder of a lost run that holds nothing", path, path)
        return
    trials = path / "trials"
    keep_all = folder.record["spec"].get("options", {}).get("keep") == "all"
    unneeded = folder.record["kind"] == "sweep" and status in SETTLED and trials.is_dir() and (kept or not keep_all)
    if unneeded:
        yield _orphan("trials' checkpoints of a settled sweep", path, trials)
    for half in path.rglob(HALF_WRITTEN):
        if half.is_dir() and not (unneeded and half.is_relative_to(trials)):
            yield _orphan("half-written checkpoint", path, half)
    journal = path / JOURNAL
    if journal.exists() and journal.stat().st_size == 0:
        yield _orphan("delivered journal", path, journal)


def _may_have_another_host(folder: RunFolder) -> bool:
    """Whether another host of a shared file system may drive the run: not all of these share locks between hosts.

    A driver writes its status every two seconds, so a day is more than clocks differ.
    """
    is_of_this_host = folder.record.get("host") in (None, socket.gethostname())
    if is_of_this_host or folder.record.get("ended") or remote.location_of(folder.path):
        return False
    files = [folder.path / RECORD, *folder.path.glob(STATUS_FILE)]
    return max(file.stat().st_mtime for file in files) > time.time() - DAY


def _orphan(kind: str, run: Path, path: Path) -> Orphan:
    size = 0
    for file in path.rglob("*") if path.is_dir() else (path,):
        with suppress(OSError):  # removed meanwhile, or not readable: counts as 0 bytes
            size += file.lstat().st_size if file.is_file() else 0
    return Orphan(kind, run, path, size)


def _damaged(path: Path) -> bool:
    """Whether it is the folder of a run with an invalid record; one of another format, or not readable, is not."""
    if not (path / LOCK).exists():  # not the folder of a run
        return False
    try:
        record = json.loads((path / RECORD).read_text())
    except OSError:  # of another user
        return False
    except ValueError:
        return True
    return not (isinstance(record, dict) and "format" in record)


def _has_no_results(path: Path) -> bool:
    held = any((path / name).exists() and (path / name).stat().st_size for name in HOLDING)
    return not held and not any(path.rglob("checkpoint-*"))


def _is_stored(path: Path) -> bool:
    """Whether the object store has all files of this folder."""
    store = remote.location_of(path)
    if store is None:
        return False
    with suppress(OSError):
        if sync_state.undelivered(path, sync_state.manifest(path)[1]):
            return False
        stored = store.files()
        return all(name in stored and stored[name].size == size for name, (size, _) in sync_state.scan(path).items())
    return False


def as_text(orphans: Sequence[Orphan], runs: Sequence[Stale], removed: bool) -> str:
    """One line an orphan or MLflow run, and the next step."""
    if not orphans and not runs:
        return "Nothing to clean"
    lines = [[size(orphan.bytes), orphan.kind, str(orphan.path)] for orphan in orphans]
    lines += [["", f"MLflow run left RUNNING: {run.why}", f"{run.run_id} ({run.id})"] for run in runs]
    total = size(sum(orphan.bytes for orphan in orphans))
    killed = f", {plural(len(runs), 'MLflow run')} KILLED" if runs else ""
    end = f"{total} removed{killed}" if removed else f"{total} in all. Nothing is removed yet: add --yes"
    return f"{aligned(lines)}\n{end}"


def as_json(
    orphans: Sequence[Orphan], runs: Sequence[Stale], removed: bool, troubles: Sequence[str] = ()
) -> dict[str, Any]:
    return {
        "removed": removed,
        "troubles": list(troubles),
        "bytes": sum(orphan.bytes for orphan in orphans),
        "orphans": [{**asdict(orphan), "run": orphan.run.name, "path": str(orphan.path)} for orphan in orphans],
        "runs": [asdict(run) for run in runs],
    }


def size(count: float) -> str:
    """``512 B``, ``1.2 MiB``."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.{3 if count < 100 else 4}g} {units[0]}"
