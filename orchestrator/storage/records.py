"""Run folders: ``<storage>/<id>/`` with a record of the request, the driver and the end.

The driver holds a file lock on the folder while it lives. The lock shows whether the run is still running, and keeps
two drivers from resuming one id.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import re
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from orchestrator.config import user_code
from orchestrator.errors import FAILED, INTERRUPTED, UNAVAILABLE, USAGE, Interrupted, RunFailed, UserError, one_line
from orchestrator.provenance import private_files
from orchestrator.storage import commands, conditional, disk, generations, lease, remote, requests, sync_state, takeover
from orchestrator.storage.lease import Lease
from orchestrator.storage.names import RECORD
from orchestrator.storage.object_sync import STOP, FolderSync, StopWatcher

FORMAT = 1
"""Format of the record and of the files without a format of their own: study, history, events, curves."""

NAME = re.compile(r"(?!latest$)[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
Kind = Literal["run", "sweep"]
Status = Literal["finished", "failed", "partial", "interrupted"]
DRIVEN: set[str] = set()
"""Ids of the runs and sweeps that this process has driven."""

UNRECORDED_SECONDS = 10.0
"""Age from which a folder without a record is one of a killed driver. A record is written within milliseconds."""

SETTLED: tuple[Status, ...] = ("finished", "partial")
"""Statuses of runs with a result."""


class RunFolder:
    """Folder of a run or sweep. ``record`` is its JSON; change it with :meth:`update`."""

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self.path = path
        self.record = record
        self._lock: IO[str] | None = None
        self._lease: Lease | None = None
        self._updating = threading.Lock()

    @property
    def id(self) -> str:
        return generations.run_id(self.path.name)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def stop_file(self) -> Path:
        """Stop file. While it exists, the workers stop cleanly at the end of their epoch."""
        return self.path / STOP

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def resume_command(self) -> str:
        return commands.for_run(self.path, f"{self.record['kind']} --resume")

    def update(self, **values: Any) -> None:
        """Change the record and write it atomically."""
        with self._updating:
            self.record.update(values)
            private_files.replace(self.path / RECORD, json.dumps(self.record, indent=1))

    def acquire(self) -> None:
        """Take the folder for this process.

        Raises UserError if another process drives it, on any machine, and (exit 3) if it cannot be written.
        """
        with ExitStack() as undone, self._writing():
            lock: IO[str] = undone.enter_context(lease.open_lock(self.path))
            self._take_lock(lock)
            claim, stored = self._take_lease()
            if claim:
                undone.callback(claim.release)
            # Number of drivers so far, which is this driver's generation. The copy with the higher number is newer.
            holds = claim.generation if claim else int(self.record.get("holds", 0)) + 1
            if takeover.may_be_shared(self.path, self.record, stored, claim):
                lock = undone.enter_context(self._move(claim, holds, lock))
            self.stop_file.unlink(missing_ok=True)
            begun = {"status": "running", "ended": None, "exit_code": None, "error": None}  # clear the earlier end
            self.update(**begun, holds=holds, generation=holds, pid=os.getpid(), host=socket.gethostname())
            self._lock = lock
            self._lease = claim
            DRIVEN.add(self.id)
            undone.pop_all()

    def renewing(self) -> AbstractContextManager[None]:
        """Renew the lease within the block. Once :meth:`start_sync` was called, synchronisation does that."""
        return lease.renewing(self._lease) if self._lease else nullcontext()

    def provisional_end(self, status: Status, exit_code: int) -> None:
        """Record the end that applies if the driver is killed from now on. :meth:`release` records the actual end."""
        self.update(status=status, exit_code=exit_code)

    def release(self, status: Status, exit_code: int, **values: Any) -> None:
        """Record the end and release the folder."""
        try:
            self.update(status=status, exit_code=exit_code, ended=_now(), **values)
        finally:
            if self._lock:
                self._lock.close()
                self._lock = None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Record the end if an error leaves the block before a session has taken over.

        KeyboardInterrupt becomes Interrupted, also if a session has recorded it: it may come before handlers are set.
        """
        try:
            yield
        except BaseException as error:
            reported = disk.explained(self.path, error)
            if self._lock:
                if self._lease:
                    self._lease.release()
                status, code, values = ending(reported)
                with suppress(OSError):  # ``error`` is the cause, or tells more
                    self.release(status, code, **values)
            if isinstance(error, KeyboardInterrupt) and self.record["status"] == "interrupted":
                raise Interrupted(self.resume_command) from error
            if reported is not error:
                raise reported from error
            raise

    def has_live_driver(self) -> bool:
        """Whether a live process drives the run, on this machine or another."""
        return lease.has_live_driver(self.path)

    def stop(self) -> None:
        """Ask the driver to stop. Raises UserError (exit 3) if the request cannot be written."""
        location = remote.location_of(self.path)
        if location is None or lease.driven_here(self.path):
            with self._writing():
                self.stop_file.touch()
            return
        with remote.answering(location.uri):
            location.write(STOP, b"")

    def request(self, values: Mapping[str, Any]) -> None:
        """Send a request to the driver, or to the next one. Raises UserError (exit 3) if it cannot be written."""
        location = remote.location_of(self.path)
        with self._writing() if location is None or lease.driven_here(self.path) else remote.answering(location.uri):
            requests.send(self.path, values)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Convert errors of writing to the folder to UserError."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"The folder {self.path} cannot be written", got=error.strerror or str(error),
                fix=f"Free space there, or get the rights from {self.record.get('user', 'its owner')}",
                code=UNAVAILABLE,
            ) from None  # fmt: skip

    def _take_lock(self, lock: IO[str]) -> None:
        for patience in (0.05, 0.2, None):  # another process may be checking the lock for a moment
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except (BlockingIOError, PermissionError):  # PermissionError on some network file systems
                if patience is None:
                    now = _read(self.path) or self.record  # another resume may have been faster
                    raise UserError(
                        f"{self.id} is being driven by another process",
                        got=f"pid {now.get('pid')}",
                        fix=f"Wait for it, or stop it: {commands.for_run(self.path, 'stop')}",
                    ) from None
                time.sleep(patience)

    def _take_lease(self) -> tuple[Lease | None, Mapping[str, Any]]:
        """Take the lease and return it with the newest stored record. The lease is None for a plain folder.

        Raises UserError if the stored run is further than this copy.
        """
        storage = remote.location_of(self.path.parent)
        if storage is None:
            latest = generations.current(self.path.parent, self.id)
            return None, self._check_is_newest(latest.name, _read(latest))
        claim = Lease(storage / self.id)
        with remote.answering((storage / self.id).uri):
            claim.take(above=int(self.record.get("holds", 0)))
        try:
            with remote.answering(storage.uri):
                name = sync_state.newest(storage, self.id) or self.path.name
                stored = self._check_is_newest(name, sync_state.record(storage / name) or {})
                (storage / name).remove(STOP)  # of an earlier driver: what is to be stored first may take minutes
                return claim, stored
        except BaseException:
            claim.release()
            raise

    def _check_is_newest(self, name: str, theirs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``theirs``, the record of the newest folder, ``name``. Raises UserError if it is newer than ours."""
        further = int(theirs.get("holds", 0)) > int(self.record.get("holds", 0))
        ended = theirs.get("status") in SETTLED and self.record["status"] not in SETTLED
        if generations.generation(name) > generations.generation(self.path.name) or further or ended:
            raise UserError(f"{self.id} was continued on another machine meanwhile", fix="Try again")
        return theirs

    def _move(self, claim: Lease | None, number: int, lock: IO[str]) -> IO[str]:
        """Continue in a new folder of generation ``number`` or higher. Returns its lock, which is held.

        The lock of the old folder is kept: without a record the new folder is not current yet.
        """
        if claim:
            self.path = takeover.rename(self.path, claim)
            return lock
        try:
            self.path = takeover.copy(self.path, number)
        except FileExistsError:
            raise UserError(f"{self.id} is being driven by another process", fix="Wait for it") from None
        ours = lease.open_lock(self.path)
        self._take_lock(ours)
        return ours

    def start_sync(self) -> FolderSync | StopWatcher:
        """Start to synchronise the held folder to the storage, until another driver takes over."""
        location = remote.location_of(self.path)
        if location is None:
            return StopWatcher(self.path)
        return FolderSync(self.path, location, self.path, lease=self._lease, holds=self.record["holds"])

    def fetch(self) -> RunFolder:
        """Download everything that is stored of the run, for a resume. Raises UserError (exit 3)."""
        location = remote.location_of(self.path)
        if location is None:
            return self
        with remote.answering(location.uri):
            sync_state.refresh(self.path, everything=True)
        return open_folder(self.path)

    def warning(self) -> str | None:
        """A warning if the storage cannot guarantee a single driver, else None."""
        location = remote.location_of(self.path)
        return (
            None if location is None or self._lease is None or self._lease.exclusive else conditional.warning(location)
        )

    def status(self) -> str:
        """The recorded status; a run whose driver died unrecorded is ``lost`` (and can be resumed).

        A run whose driver is about to end is still running: it may be saving.
        """
        status = str(self.record["status"])
        if status != "running" and self.record.get("ended"):
            return status
        if self.has_live_driver():
            return "running"
        return "lost" if status == "running" else status

    def result(self) -> dict[str, Any]:
        """The recorded result; empty until the run has one, and while a sweep that had one is continued.

        A sweep that fails when it is continued keeps the earlier result until another winner replaces its model.
        """
        result = self.record.get("result")
        return dict(result) if result and self.status() in (*SETTLED, "failed") else {}


def create(
    storage: Path, kind: Kind, workload: str, spec: dict[str, Any], command: str, name: str | None = None, **more: Any
) -> RunFolder:
    """Create the folder of a new run or sweep, held by this process. Its id is ``name``, or generated.

    ``more`` is added to the record, which is complete from its first moment: a process can be killed at any.

    Raises UserError for a name that is in use or not valid, and (exit 3) if the storage cannot be written.
    """
    if name is not None and not NAME.fullmatch(name):
        fix = "The word latest is reserved for the newest run or sweep" if name == "latest" else None
        raise UserError(
            "The name is not valid", got=repr(name), allowed="letters, digits, . _ - (at most 100)", fix=fix
        )
    if name is not None:
        _remove_unrecorded(storage / name)
        if sync_state.has(storage, name) or generations.of_run(storage, name):
            raise _in_use(storage, name)
    try:
        private_files.make_folder(storage)
    except OSError as error:
        raise disk.unwritable(storage, error) from None
    while True:
        made_up = f"{user_code.label(workload)}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        path = storage / (name or made_up)
        try:
            path.mkdir()
            break
        except FileExistsError:
            if name is not None:
                raise _in_use(storage, name) from None
        except OSError as error:
            raise disk.unwritable(storage, error) from None
    record = {
        "format": FORMAT,
        "uid": secrets.token_hex(8),  # another storage may have the same name
        "kind": kind, "workload": workload, "spec": spec, "command": command,
        "user": user(), "started": _now(), "status": "running", **more,
    }  # fmt: skip
    folder = RunFolder(path, record)
    try:
        folder.acquire()
    except BaseException:  # a folder without a record would block its name
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return folder


def _remove_unrecorded(path: Path) -> None:
    """Remove a folder whose driver was killed before it had written the record.

    A younger one may be that of a driver that is about to take its lock.
    """
    with suppress(OSError):
        mere = all(file == lease.LOCK or file.startswith(".record.") for file in os.listdir(path))
        is_old = time.time() - path.stat().st_mtime > UNRECORDED_SECONDS
        if mere and is_old and not lease.has_live_driver(path):
            shutil.rmtree(path)


def ending(error: BaseException) -> tuple[Status, int, dict[str, Any]]:
    """Status, exit code and cause of a failure, as the record has them for the error that ended a run.

    Our own errors are sentences; of others the cause includes the class.
    """
    if isinstance(error, Interrupted | KeyboardInterrupt):
        return "interrupted", INTERRUPTED, {}
    kind = "" if isinstance(error, UserError | RunFailed) else f"{type(error).__name__}: "
    return "failed", getattr(error, "code", FAILED), {"error": kind + one_line(error)}


def user() -> str:
    """Name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container user without a name
        return "unknown"


def open_folder(path: Path) -> RunFolder:
    """Open the run in ``path``. Raises UserError if its record cannot be read, is damaged or of another format."""
    try:
        record = json.loads((path / RECORD).read_text())
        form = record["format"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        raise UserError(f"The record of {path} is damaged", fix=f"Remove the folder, or restore its {RECORD}") from None
    except OSError as error:
        raise disk.unreadable(path / RECORD, "record", error) from None
    if form != FORMAT:
        raise UserError(f"The record of {path} has another format", got=form, allowed=FORMAT)
    return RunFolder(path, record)


def _read(path: Path) -> dict[str, Any]:
    """The record on disk; empty if there is no readable one."""
    with suppress(UserError):
        return open_folder(path).record
    return {}


def _in_use(storage: Path, name: str) -> UserError:
    """The error for a name that is in use, with the command that continues what has it, if that can be continued."""
    latest = generations.current(storage, name)
    folder = RunFolder(latest, _read(latest))
    kind = folder.record.get("kind")
    fix = "Choose another with --name"
    wrong = folder.record.get("exit_code") == USAGE  # another start has the same error
    if kind and not wrong and folder.status() not in (*SETTLED, "running"):
        fix = f"Continue it: {folder.resume_command}, or choose another with --name"
    return UserError(f"The name {name} is in use" + (f" by a {kind}" if kind else ""), fix=fix)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
