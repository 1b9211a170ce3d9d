"""Run folders: ``<storage>/<id>/`` with a record of what was asked, who runs it, and how it ended.

A folder is held under a file lock while its driver lives, so "is it still running" has a true answer, and two
drivers can not resume one id.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from orchestrator.errors import UNAVAILABLE, UserError, nearest

FORMAT = 1
Kind = Literal["run", "sweep"]
Status = Literal["finished", "failed", "partial", "interrupted"]


class RunFolder:
    """One run's or sweep's folder. ``record`` is its JSON; change it through :meth:`update`."""

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self.path, self.record = path, record
        self._lock: IO[str] | None = None

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def stop_file(self) -> Path:
        """While it exists the run stops cleanly at the end of its epoch: how ``stop`` and Ctrl-C reach workers."""
        return self.path / "stop"

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
        """Take the folder for this process. Raises UserError when another process drives it."""
        lock = (self.path / "lock").open("a+")
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
        self._lock = lock
        self.stop_file.unlink(missing_ok=True)
        self.update(status="running", pid=os.getpid(), host=socket.gethostname(), ended=None, exit_code=None)

    def release(self, status: Status, exit_code: int, **values: Any) -> None:
        self.update(status=status, exit_code=exit_code, ended=_now(), **values)
        if self._lock:
            self._lock.close()
            self._lock = None

    def driven(self) -> bool:
        """Whether a live process holds the folder."""
        with (self.path / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
            return False

    def status(self) -> str:
        """The recorded status; a run whose driver died without a word is ``lost`` (and resumable)."""
        status = str(self.record["status"])
        return "lost" if status == "running" and not self.driven() else status


def create(storage: Path, kind: Kind, workload: str, spec: dict[str, Any], command: str) -> RunFolder:
    """Make the folder of a new run or sweep, held by this process. Raises UserError (exit 3) when it can not."""
    while True:
        path = storage / f"{workload}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise unwritable(storage, error) from None
    record = {
        "format": FORMAT,
        "kind": kind,
        "workload": workload,
        "spec": spec,
        "command": command,
        "started": _now(),
        "status": "running",
    }
    folder = RunFolder(path, record)
    folder.update()
    folder.hold()
    return folder


def folders(storage: Path, kind: Kind | None = None) -> Iterator[RunFolder]:
    """All run folders, newest first."""
    if not storage.is_dir():
        return
    records = sorted(storage.glob("*/record.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in records:
        try:
            folder = _open(file.parent)
        except UserError:  # one broken folder must not hide the others; named directly, it says what is wrong
            continue
        if kind is None or folder.record["kind"] == kind:
            yield folder


def find(storage: Path, reference: str, kind: Kind | None = None) -> RunFolder:
    """The folder for ``latest``, an id, or an MLflow run id. Raises UserError for an unknown one."""
    if reference in {file.parent.name for file in storage.glob("*/record.json")}:
        named = _open(storage / reference)
        if kind not in (None, named.record["kind"]):
            is_a = named.record["kind"]
            raise UserError(f"{reference} is a {is_a}, no {kind}", fix=f"Try: orchestrator {is_a} --resume {reference}")
        return named
    known = []
    for folder in folders(storage, kind):
        if reference in ("latest", folder.record.get("run_id")):
            return folder
        known.append(folder.id)
    what = kind or "run or sweep"
    if not known:
        raise UserError(f"There is no {what} yet", got=repr(reference), fix=f"Looked in {storage}")
    close = nearest(reference, known)
    raise UserError(
        f"Unknown {what}", got=repr(reference), allowed=["latest", *known[:5]],
        fix=f"Did you mean {close}?" if close else None,
    )  # fmt: skip


def drop_half_line(journal: Path) -> None:
    """Cut off the line that a killed writer left unfinished: what is appended next would be lost with it."""
    if journal.exists():
        content = journal.read_bytes()
        if len(whole := content[: content.rfind(b"\n") + 1]) < len(content):
            os.truncate(journal, len(whole))


def check_writable(storage: Path) -> None:
    """Raises UserError (exit 3) unless a file can be written and removed below ``storage``."""
    probe = storage / f".probe-{os.getpid()}-{time.monotonic_ns()}"
    try:
        storage.mkdir(parents=True, exist_ok=True)
        probe.write_text("probe")
        probe.unlink()
    except OSError as error:
        raise unwritable(storage, error) from None


def unwritable(storage: Path, error: OSError) -> UserError:
    return UserError(
        f"The storage {storage} can not be written", got=error.strerror or str(error),
        fix="Free space or rights there, or choose another with --storage", code=UNAVAILABLE,
    )  # fmt: skip


def _open(path: Path) -> RunFolder:
    try:
        record = json.loads((path / "record.json").read_text())
        form = record["format"]
    except (OSError, json.JSONDecodeError, KeyError, TypeError):
        raise UserError(f"The record of {path} is damaged", fix="Remove the folder, or restore record.json") from None
    if form != FORMAT:
        raise UserError(f"The record of {path} has another format", got=form, allowed=FORMAT)
    return RunFolder(path, record)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
