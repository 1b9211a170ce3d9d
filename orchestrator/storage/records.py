"""Run folders: ``<storage>/<id>/`` with a record of what was asked, who runs it, and how it ended.

A folder is held under a file lock while its driver lives, so "is it still running" has a true answer, and two
drivers can not resume one id.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from orchestrator.errors import UNAVAILABLE, USAGE, UserError, nearest
from orchestrator.storage import copies, lease, remote
from orchestrator.storage.lease import Lease
from orchestrator.storage.mirror import STOP, Mirror

FORMAT = 1
"""Of the record, and of all beside it that has no format of its own: study, history, events, curves."""

NAME = re.compile(r"(?!latest$)[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
Kind = Literal["run", "sweep"]
Status = Literal["finished", "failed", "partial", "interrupted"]


class RunFolder:
    """One run's or sweep's folder. ``record`` is its JSON; change it through :meth:`update`."""

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self.path, self.record = path, record
        self._lock: IO[str] | None = None
        self._lease: Lease | None = None

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def stop_file(self) -> Path:
        """While it exists the run stops cleanly at the end of its epoch: how ``stop`` and Ctrl-C reach workers."""
        return self.path / STOP

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    def update(self, **values: Any) -> None:
        """Change the record, atomically on disk."""
        self.record.update(values)
        partial = self.path / f".record.{os.getpid()}"
        partial.write_text(json.dumps(self.record, indent=1))
        partial.replace(self.path / "record.json")

    def hold(self) -> None:
        """Take the folder for this process. Raises UserError when another process drives it, here or elsewhere."""
        lock = (self.path / lease.LOCK).open("a+")
        for patience in (0.05, 0.2, None):  # another process' look at the lock takes a moment, no longer
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if patience is not None:
                    time.sleep(patience)
                    continue
                lock.close()
                raise UserError(
                    f"{self.id} is being driven by another process",
                    got=f"pid {self.record.get('pid')}",
                    fix=f"Wait for it, or stop it: orchestrator stop {self.id}",
                ) from None
        try:
            self._take_lease()
        except UserError:
            lock.close()
            raise
        self._lock = lock
        self.stop_file.unlink(missing_ok=True)
        holds = int(self.record.get("holds", 0)) + 1  # how often it was taken: the copy that counts more is newer
        self.update(
            status="running", holds=holds, pid=os.getpid(), host=socket.gethostname(), ended=None, exit_code=None
        )

    def release(self, status: Status, exit_code: int, **values: Any) -> None:
        self.update(status=status, exit_code=exit_code, ended=_now(), **values)
        if self._lock:
            self._lock.close()
            self._lock = None

    def driven(self) -> bool:
        """Whether a live process holds the folder, here or elsewhere."""
        place = remote.behind(self.path)
        return lease.driven_here(self.path) or (place is not None and lease.valid(place))

    def stop(self) -> None:
        """Ask whoever drives it to stop. Raises UserError (exit 3) when that is elsewhere and can not be reached."""
        place = remote.behind(self.path)
        if place is None or lease.driven_here(self.path):
            self.stop_file.touch()
            return
        try:
            place.write(STOP, b"")
        except OSError as error:
            raise remote.unusable(place.uri, error) from None

    def _take_lease(self) -> None:
        place = remote.behind(self.path)
        if place is None:
            return
        claim = Lease(place)
        try:
            claim.take()
            theirs = copies.record(place) or {}
            if int(theirs.get("holds", 0)) > int(self.record.get("holds", 0)):
                claim.release()
                raise UserError(f"{self.id} has gone on elsewhere meanwhile", fix="Try again")
        except OSError as error:
            raise remote.unusable(place.uri, error) from None
        self._lease = claim

    def mirror(self) -> Mirror | None:
        """From now on the storage follows the folder that is held; None where the folder is the storage itself."""
        place = remote.behind(self.path)
        if place is None:
            return None
        return Mirror(self.path, place, self.path, lease=self._lease, holds=self.record["holds"])

    def fetch(self) -> RunFolder:
        """The folder with all that is stored of it, as a resume needs it. Raises UserError (exit 3)."""
        place = remote.behind(self.path)
        if place is None:
            return self
        try:
            copies.refresh(self.path, everything=True)
        except OSError as error:
            raise remote.unusable(place.uri, error) from None
        return open_folder(self.path)

    def status(self) -> str:
        """The recorded status; a run whose driver died without a word is ``lost`` (and resumable)."""
        status = str(self.record["status"])
        return "lost" if status == "running" and not self.driven() else status


def create(
    storage: Path, kind: Kind, workload: str, spec: dict[str, Any], command: str, name: str | None = None
) -> RunFolder:
    """Make the folder of a new run or sweep, held by this process; its id is ``name``, or made up.

    Raises UserError for a name that is in use or can not be one, and (exit 3) when the storage can not be written.
    """
    if name is not None and not NAME.fullmatch(name):
        raise UserError("The name can not be one", got=repr(name), allowed="letters, digits, . _ - (at most 100)")
    if name is not None and copies.has(storage, name):
        raise _in_use(name, kind)
    while True:
        made_up = f"{workload}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        path = storage / (name or made_up)
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            if name is not None:
                raise _in_use(name, kind) from None
        except OSError as error:
            raise unwritable(storage, error) from None
    record = {
        "format": FORMAT,
        "kind": kind,
        "workload": workload,
        "spec": spec,
        "command": command,
        "user": user(),
        "started": _now(),
        "status": "running",
    }
    folder = RunFolder(path, record)
    folder.update()
    folder.hold()
    return folder


def user() -> str:
    """Who runs this process, as the system knows them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container user without a name
        return "unknown"


def folders(storage: Path, kind: Kind | None = None) -> Iterator[RunFolder]:
    """All run folders, newest first. Of one that another machine drove last, there may only be the record here."""
    elsewhere = {name: RunFolder(storage / name, record) for name, record in _elsewhere(storage).items()}
    moments = {name: _moment(folder.record) for name, folder in elsewhere.items()}
    for file in storage.glob("*/record.json"):
        if file.parent.name not in elsewhere:
            moments[file.parent.name] = file.stat().st_mtime
    for name in sorted(moments, key=lambda name: moments[name], reverse=True):
        try:
            folder = elsewhere.get(name) or open_folder(storage / name)
        except UserError:  # one broken folder must not hide the others; named directly, it says what is wrong
            continue
        if kind is None or folder.record["kind"] == kind:
            yield folder


def find(storage: Path, reference: str, kind: Kind | None = None) -> RunFolder:
    """The folder for ``latest``, an id, or an MLflow run id. Raises UserError for an unknown one."""
    if NAME.fullmatch(reference):
        copies.look(storage / reference)
    if reference in {file.parent.name for file in storage.glob("*/record.json")}:
        named = open_folder(storage / reference)
        if kind not in (None, named.record["kind"]):
            is_a = named.record["kind"]
            raise UserError(f"{reference} is a {is_a}, no {kind}", fix=f"Try: orchestrator {is_a} --resume {reference}")
        return named
    names = []
    for folder in folders(storage, kind):
        if reference in ("latest", folder.record.get("run_id")):
            copies.look(folder.path)
            return open_folder(folder.path)
        names.append(folder.id)
    if place := remote.behind(storage):  # is it unknown, or is nobody there to know it?
        place.check()
    what = kind or "run or sweep"
    if not names:
        raise UserError(
            f"There is no {what} yet", got=repr(reference), fix=f"Looked in {remote.uri_of(storage) or storage}"
        )
    close = nearest(reference, names)
    raise UserError(
        f"Unknown {what}", got=repr(reference), allowed=["latest", *names[:5]],
        fix=f"Did you mean {close}?" if close else None,
    )  # fmt: skip


def known(storage: Path, reference: str) -> RunFolder | None:
    """As :func:`find`, but None for an unknown one: somebody else may know it."""
    try:
        return find(storage, reference)
    except UserError as error:
        if error.code != USAGE or (storage / reference / "record.json").exists():  # away, or nobody can read it
            raise
    return None


def drop_half_line(journal: Path) -> None:
    """Cut off the line that a killed writer left unfinished: what is appended next would be lost with it."""
    if not journal.exists():
        return
    with journal.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65_536)  # from its end: a journal may be long
            file.seek(start)
            if whole := file.read(end - start).rfind(b"\n") + 1:
                end = start + whole
                break
            end = start
        file.truncate(end)


def check_writable(storage: Path) -> None:
    """Raises UserError (exit 3) unless a file can be written and removed below ``storage``, and where it is stored."""
    probe = storage / f".probe-{os.getpid()}-{time.monotonic_ns()}"
    try:
        storage.mkdir(parents=True, exist_ok=True)
        probe.write_text("probe")
        probe.unlink()
    except OSError as error:
        raise unwritable(storage, error) from None
    if place := remote.behind(storage):
        place.check()


def unwritable(storage: Path, error: OSError) -> UserError:
    return UserError(
        f"The storage {storage} can not be written", got=error.strerror or str(error),
        fix="Free space or rights there, or choose another with --storage", code=UNAVAILABLE,
    )  # fmt: skip


def open_folder(path: Path) -> RunFolder:
    """The run in ``path``. Raises UserError when its record is damaged, or of another format."""
    try:
        record = json.loads((path / "record.json").read_text())
        form = record["format"]
    except (OSError, json.JSONDecodeError, KeyError, TypeError):
        raise UserError(f"The record of {path} is damaged", fix="Remove the folder, or restore record.json") from None
    if form != FORMAT:
        raise UserError(f"The record of {path} has another format", got=form, allowed=FORMAT)
    return RunFolder(path, record)


def _elsewhere(storage: Path) -> dict[str, dict[str, Any]]:
    """The records, by id, of what another machine drove last; nothing where the storage is away or has none."""
    with suppress(OSError):
        return {name: record for name, record in copies.records(storage).items() if record.get("format") == FORMAT}
    return {}


def _in_use(name: str, kind: Kind) -> UserError:
    return UserError(
        f"The name {name} is in use", fix=f"Go on with it: orchestrator {kind} --resume {name}, or choose another"
    )


def _moment(record: Mapping[str, Any]) -> float:
    """When it was last heard of, as far as its record knows (Unix seconds)."""
    return datetime.fromisoformat(record.get("ended") or record["started"]).timestamp()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
