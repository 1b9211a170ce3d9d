"""What no one needs any more, found and removed: never what a resume needs, never what runs, never MLflow artifacts."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.cluster import preflight
from orchestrator.console import aligned
from orchestrator.errors import UserError, one_line
from orchestrator.registry import models
from orchestrator.storage import generations, lease, records, remote, sync_state
from orchestrator.storage.lease import LOCK
from orchestrator.storage.names import HALF_WRITTEN, HISTORY, OUTCOME, RECORD, STUDY
from orchestrator.storage.records import SETTLED, RunFolder
from orchestrator.storage.settings import Settings
from orchestrator.tracking.client import OWNER, all_runs
from orchestrator.tracking.tracker import JOURNAL

COPY = "copy of what is stored"
OVERTAKEN = "folder of a driver that was overtaken"
DAY = 86_400.0
HOLDING = (STUDY, HISTORY, OUTCOME, JOURNAL)
"""Files of which one says that a run has come somewhere."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A file or folder that can go: what it is, of which run's folder, and its size."""

    kind: str
    run: Path
    path: Path
    bytes: int


@dataclass(frozen=True, slots=True)
class Stale:
    """An MLflow run that says RUNNING although its driver is gone: its id, ours, and why we know."""

    run_id: str
    id: str
    why: str


def orphans(settings: Settings, *, older_than: float = 0.0, kept: bool = False) -> list[Orphan]:
    """All that can go from the storage, of runs that no one drives and that did not change for ``older_than`` days.

    ``kept`` includes the checkpoints that ``sweep --keep all`` asked for.
    """
    found: list[Orphan] = []
    before = time.time() - older_than * DAY
    for file in sorted(settings.storage.glob(f"*/{RECORD}")):
        with suppress(FileNotFoundError):  # somebody else is cleaning too
            if file.stat().st_mtime <= before and not lease.has_live_driver(file.parent):
                found += _in(file.parent, kept)
    return found


def stale(settings: Settings) -> list[Stale]:
    """MLflow runs of ours that are left RUNNING. Raises UserError (exit 3) when MLflow is away.

    A run whose folder is not here may be driven from elsewhere: it counts a day after its start, and only one's own.
    """
    preflight.tracking(settings)
    if settings.tracking is None:
        return []
    client = models.client(settings)
    known = {folder.id: folder for folder in records.folders(settings.storage)}
    found = []
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for run in all_runs(client.search_runs, experiments, "attributes.status = 'RUNNING'"):
        owner = run.data.tags.get(OWNER)
        if owner is None:
            continue
        folder = known.get(owner)
        if folder is not None and folder.status() in ("lost", "interrupted"):  # the latter was killed while it saved
            found.append(Stale(run.info.run_id, owner, "its driver is gone"))
        elif folder is None and (
            run.data.tags.get("mlflow.user") == records.user() and run.info.start_time / 1000 < time.time() - DAY
        ):
            found.append(Stale(run.info.run_id, owner, "its folder is not here"))
    return found


def remove(found: Iterable[Orphan]) -> tuple[list[Orphan], list[str]]:
    """Remove them, from a storage that is no folder too. Returns what is gone, and what went wrong with the others.

    What its run needs again by now, or somebody drives, stays and is not told of.
    """
    gone: list[Orphan] = []
    troubles: list[str] = []
    for orphan in found:
        try:
            if _remove(orphan):
                gone.append(orphan)
        except UserError:  # another machine has taken it up since
            continue
        except OSError as error:
            troubles.append(f"{orphan.path} could not be removed: {error.strerror or error}")
    return gone, troubles


def kill(settings: Settings, runs: Iterable[Stale]) -> tuple[list[Stale], list[str]]:
    """Say KILLED of them; a resume opens them again. Returns those that are, and what went wrong with the others."""
    killed: list[Stale] = []
    troubles: list[str] = []
    client: Any = models.client(settings) if settings.tracking else None
    for run in runs if client else ():
        try:
            client.set_terminated(run.run_id, "KILLED")
            killed.append(run)
        except models.trouble() as error:
            troubles.append(f"MLflow run {run.run_id} could not be ended: {one_line(error)}")
    return killed, troubles


def _remove(orphan: Orphan) -> bool:
    """Whether it is gone; False where it is no orphan any more. Raises OSError."""
    place = remote.behind(orphan.run)
    with _alone(orphan.run) as alone:
        if not alone or not _still(orphan) or (place is not None and _leased(place)):
            return False
        if place is None or orphan.kind in (COPY, OVERTAKEN):
            _drop(orphan.path)
        elif orphan.path == orphan.run:
            with lease.holding(place):
                _drop(orphan.path)
                remote.Remote(place.uri.rpartition("/")[0]).remove_folder(orphan.run.name)
        else:
            _drop(orphan.path)
            sync_state.settle(orphan.run)
    return True


def _drop(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _still(orphan: Orphan) -> bool:
    """Whether it would be found again: a run that was taken up since and has ended may need it."""
    again = (other for kept in (False, True) for other in _in(orphan.run, kept))
    return any((other.kind, other.path) == (orphan.kind, orphan.path) for other in again)


def _leased(place: remote.Remote) -> bool:
    """Whether another machine drives the run, by the storage's own clock. Raises OSError where it does not say."""
    found = lease.holder(place)
    return found is not None and found.left(place.now()) > 0


def _in(path: Path, kept: bool) -> Iterator[Orphan]:
    """What can go from the folder of a run that no one drives."""
    try:
        folder = records.open_folder(path)
    except UserError:
        if _damaged(path):
            yield _orphan("folder with a damaged record", path, path)
        return
    yield from _of(folder, kept)


def _of(folder: RunFolder, kept: bool) -> Iterator[Orphan]:
    path, status = folder.path, folder.record["status"]
    if generations.is_superseded(path):
        yield _orphan(OVERTAKEN, path, path)
        return
    if _is_stored(path):
        yield _orphan(COPY, path, path)
        return
    if status == "running" and _holds_nothing(path):
        yield _orphan("folder of a lost run that holds nothing", path, path)
        return
    trials = path / "trials"
    asked = folder.record["spec"].get("options", {}).get("keep") == "all"
    unneeded = folder.record["kind"] == "sweep" and status in SETTLED and trials.is_dir() and (kept or not asked)
    if unneeded:
        yield _orphan("trials' checkpoints of a settled sweep", path, trials)
    for half in path.rglob(HALF_WRITTEN):
        if not (unneeded and half.is_relative_to(trials)):
            yield _orphan("half-written checkpoint", path, half)
    journal = path / JOURNAL
    if journal.exists() and journal.stat().st_size == 0:
        yield _orphan("delivered journal", path, journal)


def _orphan(kind: str, run: Path, path: Path) -> Orphan:
    size = 0
    for file in path.rglob("*") if path.is_dir() else (path,):
        with suppress(OSError):  # gone since, or somebody else's: it counts as nothing
            size += file.lstat().st_size if file.is_file() else 0
    return Orphan(kind, run, path, size)


def _damaged(path: Path) -> bool:
    """Whether it is a run's folder whose record no one can make sense of: not of another format, not out of reach."""
    if not (path / LOCK).exists():  # somebody else's folder
        return False
    try:
        record = json.loads((path / RECORD).read_text())
    except OSError:  # a colleague's
        return False
    except ValueError:
        return True
    return not (isinstance(record, dict) and "format" in record)


def _holds_nothing(path: Path) -> bool:
    held = any((path / name).exists() and (path / name).stat().st_size for name in HOLDING)
    return not held and not any(path.rglob("checkpoint-*"))


def _is_stored(path: Path) -> bool:
    """Whether a storage that is no folder has all that lies here."""
    place = remote.behind(path)
    if place is None or sync_state.undelivered(path, sync_state.manifest(path)[1]):
        return False
    with suppress(OSError):
        stored = place.files()
        return all(name in stored and stored[name].size == size for name, (size, _) in sync_state.scan(path).items())
    return False


@contextmanager
def _alone(run: Path) -> Iterator[bool]:
    """Whether no one here drives the run; and no one takes it up within the block. Raises OSError."""
    with (run / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def as_text(found: Sequence[Orphan], runs: Sequence[Stale], removed: bool) -> str:
    """One line an orphan, the size first, and what to do next."""
    if not found and not runs:
        return "Nothing to clean"
    lines = [[size(orphan.bytes), orphan.kind, str(orphan.path)] for orphan in found]
    lines += [["", f"MLflow run left RUNNING: {run.why}", f"{run.run_id} ({run.id})"] for run in runs]
    total = size(sum(orphan.bytes for orphan in found))
    killed = f", {len(runs)} MLflow run{'s' * (len(runs) != 1)} KILLED" if runs else ""
    end = f"{total} removed{killed}" if removed else f"{total} in all. Nothing is removed yet: add --yes"
    return f"{aligned(lines)}\n{end}"


def as_json(
    found: Sequence[Orphan], runs: Sequence[Stale], removed: bool, troubles: Sequence[str] = ()
) -> dict[str, Any]:
    return {
        "removed": removed,
        "troubles": list(troubles),
        "bytes": sum(orphan.bytes for orphan in found),
        "orphans": [{**asdict(orphan), "run": orphan.run.name, "path": str(orphan.path)} for orphan in found],
        "runs": [asdict(run) for run in runs],
    }


def size(count: float) -> str:
    """``512 B``, ``1.2 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
