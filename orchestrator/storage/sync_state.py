"""Differences between a run's folder and its copy in object storage.

``.mirror.json`` in the folder records what was uploaded, so that only changes are sent, and the number of the last
driver on this machine: a stored record with a higher number (``holds``) was written by a later driver elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from orchestrator.storage import conditional, disk, generations, lease, record_index, remote
from orchestrator.storage.conditional import Changed, Objects
from orchestrator.storage.names import OUTCOME, RECORD
from orchestrator.storage.remote import Remote, Stored

MANIFEST = ".mirror.json"
FORMAT = 1
MARKS = ("checkpoint.json", OUTCOME)
"""Files that mark others as complete. They are sent after all others, and the run's record last."""

_CHECKPOINT = re.compile(r"(?:.*/)?checkpoint-[^/]+(?=/)")
"""The checkpoint folder in a name."""

HERE = ("lock", "process.json", "stack.txt", "given-up")
"""Files that are never sent: they concern this machine only. Hidden and partial files are not sent either."""

PARALLEL = 4

Stamp = tuple[int, int]
"""Size of a file and its modification time in nanoseconds."""

Stamps = dict[str, Stamp]
"""Files by their names relative to the run's folder. A name with a trailing slash is a folder to remove."""


def deliver(
    folder: Path,
    location: Remote,
    delivered: Stamps,
    parts: Sequence[str] = (),
    before: Callable[[], None] = lambda: None,
) -> bool:
    """Upload changes since ``delivered``, which is updated. Returns whether there were any.

    ``before`` is called if there is something to send or remove. Raises OSError, also when the folder is gone or cannot
    be read: nothing is removed from the storage for that. Raises Overtaken if a later driver has stored the record.
    """
    files = scan(folder, parts)
    changed = [name for name, stamp in files.items() if delivered.get(name) != stamp]
    if changed or any(name not in files for name in delivered):
        before()

    def send(name: str) -> None:
        try:
            if name == RECORD:
                _send_record(folder / name, location)
            else:
                location.send(folder / name, name)
        except FileNotFoundError:
            if (folder / name).exists():
                raise
        else:
            delivered[name] = files[name]

    _each(send, changed)
    gone = [name for name in list(delivered) if name not in files]
    os.stat(folder)  # it may have been removed since
    for name in gone:
        if name in delivered:
            _remove(name, folder, location, delivered)
    return bool(changed or gone)


def undelivered(folder: Path, delivered: Mapping[str, Stamp], parts: Sequence[str] = ()) -> list[str]:
    """Differences between the folder and what was delivered. Raises OSError if the folder cannot be read."""
    files = scan(folder, parts)
    return sorted(name for name in {*files, *delivered} if files.get(name) != delivered.get(name))


def gather(folder: Path, parts: Sequence[str] = ()) -> Stamps:
    """Download what other processes of the run stored below ``folder``. Raises OSError.

    ``parts`` limits this to files and folders directly below; empty means all.
    """
    location = remote.location_of(folder)
    if location is None:
        return {}
    missing = {n for n in _whole(location.files()) if _within(n, parts) and not (folder / n).exists()}
    return _fetch(folder, location, missing)


def refresh(folder: Path, *, everything: bool) -> None:
    """Update the local copy from storage, unless this machine drove the run last. Raises OSError.

    Without ``everything``, checkpoints and models are not downloaded.
    """
    location = remote.location_of(folder)
    if location is None or lease.driven_here(folder) or (theirs := record(location)) is None:
        return
    holds, delivered = manifest(folder)
    if int(theirs.get("holds", 0)) <= holds:  # the local copy is newer, except for files of other processes
        if everything:
            missing = {n for n in _whole(location.files()) if n not in delivered and not (folder / n).exists()}
            delivered |= _fetch(folder, location, missing)
            remember(folder, holds, delivered)
        return
    stored = _whole(location.files())
    files = scan(folder) if folder.exists() else {}
    for name in files.keys() - stored.keys():
        if everything or name in delivered:  # without ``everything`` no file that exists only here is removed
            _drop(folder, name)
    old = {n for n, s in stored.items() if n not in files or (s.size, round(s.time * 1e9)) != files[n]}
    fetched = _fetch(folder, location, {name for name in old if everything or not _is_bulky(name)})
    for name, stamp in fetched.items():
        moment = round(stored[name].time * 1e9)  # identifies the version
        os.utime(folder / name, ns=(moment, moment))
        fetched[name] = (stamp[0], moment)
    remember(folder, 0, {name: stamp for name, stamp in files.items() if name in stored} | fetched)


def try_refresh(folder: Path) -> None:
    """:func:`refresh` if the storage can be reached; otherwise the local copy is used."""
    with suppress(OSError):
        refresh(folder, everything=False)


def try_refresh_newest(storage: Path, run: str) -> None:
    """:func:`try_refresh` at the stored folder of the run's highest generation."""
    location = remote.location_of(storage)
    if location is not None:
        with suppress(OSError):
            refresh(storage / (newest(location, run) or run), everything=False)


def newest(location: Remote, run: str) -> str | None:
    """Name of the run's folder of the highest generation with a record, below ``location``. Raises OSError."""
    names = generations.by_run(location.folders()).get(run, [])
    return next((name for name in names if record(location / name) is not None), None)


def is_superseded(location: Remote, holds: int) -> bool:
    """Whether the storage has a record of the run by a later driver than the one with ``holds``. Raises OSError."""
    storage, _, name = location.uri.rpartition("/")
    latest = newest(Remote(storage), generations.run_id(name)) or name
    theirs = record(Remote(storage) / latest) or {}
    return generations.generation(latest) > generations.generation(name) or int(theirs.get("holds", 0)) > holds


def drop_older(location: Remote) -> None:
    """Remove earlier generations than ``location``'s from the storage, except shared objects. Raises OSError."""
    storage, _, name = location.uri.rpartition("/")
    every = Remote(storage)
    for older in generations.by_run(every.folders()).get(generations.run_id(name), []):
        if generations.generation(older) >= generations.generation(name):
            continue
        if generations.generation(older):
            every.remove_folder(older)
        else:
            for file in (every / older).files().keys() - {lease.NAME, RECORD}:
                (every / older).remove(file)


def has(storage: Path, name: str) -> bool:
    """Whether an object storage has a run of this name. False if it is out of reach."""
    location = remote.location_of(storage)
    with suppress(OSError):
        return location is not None and record(location / name) is not None
    return False


def upload_pending(folder: Path) -> int | None:
    """Upload the pending files of a run with no live driver. Returns the number uploaded.

    None if a later driver has gone on without some of them: they are not uploaded. Raises OSError, and UserError if
    another process drives the run.
    """
    location = remote.location_of(folder)
    if location is None:
        return 0
    holds, delivered = manifest(folder)
    left = len(undelivered(folder, delivered))
    if not left:
        return None if _is_left_behind(folder) else 0
    with lease.holding(location, holds):
        if is_superseded(location, holds):
            return None
        try:
            deliver(folder, location, delivered)
        except lease.Overtaken:
            return None
        finally:
            remember(folder, holds, delivered)
    return left


def _is_left_behind(folder: Path) -> bool:
    """Whether the folder here of an earlier driver of the run has files that were never uploaded."""
    names = generations.of_run(folder.parent, generations.run_id(folder.name))
    earlier = [name for name in names if generations.generation(name) < generations.generation(folder.name)]
    return any(undelivered(folder.parent / name, manifest(folder.parent / name)[1]) for name in earlier)


def record(location: Remote) -> dict[str, Any] | None:
    """The stored record of a run; None if it is missing or damaged. Raises OSError."""
    content = location.read(RECORD)
    with suppress(ValueError):
        stored = json.loads(content or b"")
        return stored if isinstance(stored, dict) else None
    return None


def records(storage: Path) -> dict[str, dict[str, Any]]:
    """Stored records that are newer than the local copies, by folder name. Raises OSError."""
    location = remote.location_of(storage)
    if location is None:
        return {}

    newer = {}
    for stored in record_index.records(storage, location, record).values():
        if int(stored.record.get("holds", 0)) > manifest(storage / stored.folder)[0]:
            newer[stored.folder] = stored.record
    return newer


def scan(folder: Path, parts: Sequence[str] = ()) -> Stamps:
    """Files below ``folder``, or its ``parts``, that are to be stored. Raises OSError if they cannot be listed."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError) or error.filename == os.fspath(folder):
            raise error  # else it was removed in the meantime

    stamps: Stamps = {}
    for where, folders, names in os.walk(folder, onerror=refuse):
        below = Path(where).relative_to(folder)
        folders[:] = [n for n in folders if _travels((below / n).as_posix()) and _within((below / n).as_posix(), parts)]
        for name in names:
            relative = (below / name).as_posix()
            if _travels(relative) and _within(relative, parts):
                with suppress(OSError):  # removed in the meantime
                    about = os.lstat(os.path.join(where, name))
                    if not stat.S_ISREG(about.st_mode):  # a link could point outside the folder
                        continue
                    stamps[relative] = (about.st_size, about.st_mtime_ns)
    return stamps


def manifest(folder: Path) -> tuple[int, Stamps]:
    """Generation of the run's driver in this copy (0: none), and the files that the storage has of it."""
    try:
        values = json.loads((folder / MANIFEST).read_text())
        if values["format"] != FORMAT:
            return 0, {}
        return int(values["holds"]), {name: (size, moment) for name, (size, moment) in values["files"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return 0, {}


def remember(folder: Path, holds: int, delivered: Mapping[str, Stamp]) -> None:
    """Write what :func:`manifest` reads. If the disk is full, files are sent once more."""
    with suppress(OSError):
        disk.write_json(folder / MANIFEST, {"format": FORMAT, "holds": holds, "files": dict(delivered)})


def _send_record(file: Path, location: Remote) -> None:
    """Send the record to its folder, and with conditional writes also to the shared one of all generations."""
    content = file.read_bytes()
    shared = lease.run_location(location)
    store = conditional.objects(shared)
    if store is None or location.uri != shared.uri:
        location.send(file, RECORD)
    if store is not None:
        _publish(store, content)
    record_index.note(location)


def _publish(store: Objects, content: bytes) -> None:
    """Replace the shared record, unless a later driver has written it. Raises OSError and Overtaken."""
    holds = json.loads(content)["holds"]
    while True:
        stored = store.read(RECORD)
        with suppress(ValueError, KeyError, TypeError):
            if stored and int(json.loads(stored[0])["holds"]) > holds:
                raise lease.Overtaken(store.location.uri)
        with suppress(Changed):
            store.write(RECORD, content, stored[1] if stored else None)
            return


def _fetch(folder: Path, location: Remote, names: set[str]) -> Stamps:
    """Download the named objects."""
    _each(lambda name: location.fetch(name, folder / name), names)
    stamps = {name: os.stat(folder / name) for name in names}
    return {name: (stamp.st_size, stamp.st_mtime_ns) for name, stamp in stamps.items()}


def _drop(folder: Path, name: str) -> None:
    """Remove a file and the folders left empty: an empty checkpoint folder would count as damaged."""
    (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        for parent in Path(name).parents[:-1]:
            (folder / parent).rmdir()


def _each(work: Callable[[str], None], names: Iterable[str]) -> None:
    """Call ``work`` for each name, a few at once, marks last. Stops at the first error and raises it."""

    def turn(name: str) -> int:
        return 2 if name == RECORD else 1 if name.rpartition("/")[2] in MARKS else 0

    for mark, part in groupby(sorted(names, key=lambda name: (turn(name), name)), key=turn):
        with ThreadPoolExecutor(1 if mark else PARALLEL) as pool:
            futures = [pool.submit(work, name) for name in part]
            try:
                for future in futures:
                    future.result()
            except Exception:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _remove(name: str, folder: Path, location: Remote, delivered: Stamps) -> None:
    """Remove a locally deleted file from the storage, with its outermost deleted folder if there is one."""
    parents = [parent for parent in reversed(Path(name).parents) if parent != Path()]
    if name.endswith("/"):
        parents.append(Path(name))
    top = next((parent.as_posix() for parent in parents if not (folder / parent).exists()), None)
    if top is None:
        location.remove(name)
        del delivered[name]
    else:
        location.remove_folder(top)
        for inside in [other for other in list(delivered) if other.startswith(f"{top}/")]:
            del delivered[inside]


def _whole(stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """Objects to download. Checkpoints without their mark are incomplete and left out."""

    def sealed(name: str) -> bool:
        checkpoint = _CHECKPOINT.match(name)
        return checkpoint is None or f"{checkpoint[0]}/checkpoint.json" in stored

    return {name: entry for name, entry in stored.items() if _travels(name) and sealed(name)}


def _travels(name: str) -> bool:
    """Whether a file is synchronised: not a hidden or partial file, nor one of Ray Tune, nor outside."""
    parts = name.split("/")
    return (
        not any(part.startswith(".") or not part for part in parts)
        and parts[-1] not in HERE
        and parts[0] != "tune"
        and name != lease.NAME
        and not name.endswith((".partial", ".lock", "/"))
    )


def _within(name: str, parts: Sequence[str]) -> bool:
    return not parts or name.split("/")[0] in parts


def _is_bulky(name: str) -> bool:
    return any(part.startswith("checkpoint-") or part == "model" for part in name.split("/"))
