"""Lease of a run on a storage without locks: an object that the driver renews, valid for a minute.

On one machine a file lock on the folder shows which process drives a run; between machines this object does. Its times
are those of the storage. It has a generation, which grows with each driver. On a store with conditional writes it is
replaced only if it has not changed since it was read, so that each generation has one driver.
:mod:`~orchestrator.storage.generations` describes the folders of generations.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from orchestrator.errors import UserError
from orchestrator.storage import commands, conditional, generations
from orchestrator.storage.conditional import Changed, Objects
from orchestrator.storage.remote import Remote, location_of

NAME = "lease.json"
LOCK = "lock"
SECONDS = 60.0
RENEW_SECONDS = 10.0
CLOCK_SECONDS = 3600.0
"""Difference between a machine's clock and the storage's up to which a live driver is found."""

SETTLE_SECONDS = 0.5
"""Without conditional writes, time after a write before the lease is read again: the last writer has it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that wrote a lease, and the time. ``generation`` is 0 in a lease of an earlier version."""

    token: str
    host: str
    pid: int
    time: float
    generation: int = 0
    kernel: str | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the process ran on this machine and has ended."""
        here = self.host == socket.gethostname() and self.kernel in (None, _kernel())
        return here and not _alive(self.pid)

    def left(self, now: float) -> float:
        """Seconds until the lease expires; 0 if its process is known to have ended."""
        return 0.0 if self.is_gone else max(0.0, self.time + SECONDS - now)


class Overtaken(Exception):
    """Another driver has taken over the run. This one must not store anything more."""


class Lease:
    """Lease of the run stored at ``location``. ``token`` identifies its owner.

    After :meth:`take` it has a ``generation``; ``exclusive`` says whether no other driver can have the same one.
    ``predecessor`` is the previous holder if it has not released the lease.
    """

    def __init__(self, location: Remote) -> None:
        self._location = run_location(location)
        self.token = secrets.token_hex(8)
        self.generation = 0
        self.predecessor: Holder | None = None
        self._objects: Objects | None = None
        self._tag: str | None = None
        self._is_lost = False
        self._writing = threading.Lock()

    @property
    def exclusive(self) -> bool:
        return self._objects is not None

    def take(self, above: int = 0) -> None:
        """Take the lease with a generation higher than ``above`` and than the previous one.

        Raises UserError if another process has it, and OSError if the storage cannot be used.
        """
        self._objects = conditional.objects(self._location)
        while True:
            current = self._read()
            if current and current.token != self.token and (left := current.left(self._location.now())):
                raise refused(self._location, current, left)
            self.generation = max(above, current.generation if current else 0) + 1
            self.predecessor = current
            try:
                self.renew()
                break
            except Changed:  # another process was faster: read its lease
                continue
        if not self.exclusive:
            time.sleep(SETTLE_SECONDS)
            if (current := holder(self._location)) is not None and current.token != self.token:
                raise refused(self._location, current, SECONDS)

    def renew(self) -> None:
        """Write the lease again. Raises OSError, and Changed if another process has written it since."""
        content = json.dumps(self._content()).encode()
        if self._objects:
            self._tag = self._objects.write(NAME, content, self._tag)
        else:
            self._location.write(NAME, content)

    def renew_or_lose(self, is_superseded: Callable[[], bool] = lambda: False) -> bool:
        """Renew the lease. Returns False if another driver has taken it over. Raises OSError.

        ``is_superseded`` returns whether a later driver has stored a record: it may have released the lease since.
        """
        with self._writing:
            self._is_lost = self._is_lost or not self._renewed(is_superseded)
            return not self._is_lost

    def _renewed(self, is_superseded: Callable[[], bool]) -> bool:
        if self._objects:
            with suppress(Changed):  # also by this process, if the answer to an earlier write was lost
                self.renew()
                return True
        current = self._read()
        if (current is None and is_superseded()) or (current is not None and self._is_later(current)):
            return False
        try:
            self.renew()
        except Changed:
            return False
        return self.exclusive or not is_superseded()  # another driver may have written in between

    def _is_later(self, current: Holder) -> bool:
        """Whether ``current`` is a successor's. A lower generation was written by a predecessor that woke up; a lease
        of an earlier version has generation 0."""
        return current.token != self.token and (current.generation == 0 or current.generation >= self.generation)

    def release(self) -> None:
        """Remove the lease if this process still has it. It expires if the storage is out of reach."""
        with suppress(OSError, Changed), self._writing:
            current = self._read()
            if current is None or current.token != self.token:
                return
            try:
                if self._objects and self._tag:
                    self._objects.remove(NAME, self._tag)
                    return
            except NotImplementedError:  # a store without conditional deletes
                pass
            self._location.remove(NAME)

    def _read(self) -> Holder | None:
        """Read the holder. With conditional writes also remember the tag for the next write."""
        if not self._objects:
            return holder(self._location)
        stored = self._objects.read(NAME)
        self._tag = stored[1] if stored else None
        written = self._location.find(NAME) if stored else None
        return _parse(stored[0], written.time) if stored and written else None

    def _content(self) -> dict[str, Any]:
        who = {"token": self.token, "host": socket.gethostname(), "pid": os.getpid(), "kernel": _kernel()}
        return {"format": 1, "generation": self.generation, **who}


def run_location(location: Remote) -> Remote:
    """Location of the lease of a run. ``location`` is its folder of any generation."""
    storage, _, name = location.uri.rpartition("/")
    return Remote(f"{storage}/{generations.run_id(name)}", location.request_seconds)


def holder(location: Remote) -> Holder | None:
    """Current or last holder of the lease of the run at ``location``; None if it was released. Raises OSError."""
    location = run_location(location)
    stored = location.find(NAME)
    content = location.read(NAME) if stored else None
    return None if stored is None or content is None else _parse(content, stored.time)


@contextmanager
def holding(location: Remote, above: int = 0) -> Iterator[None]:
    """Hold and renew the lease of the run at ``location`` within the block.

    Raises OSError, and UserError if another has it.
    """
    held = Lease(location)
    held.take(above)
    try:
        with renewing(held):
            yield
    finally:
        held.release()


@contextmanager
def renewing(held: Lease) -> Iterator[None]:
    """Renew a lease within the block, until another driver has taken it over."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(RENEW_SECONDS):
            with suppress(OSError):  # out of reach: try again
                if not held.renew_or_lose():
                    return

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def valid(location: Remote) -> bool:
    """Whether the lease is valid. False if the storage does not answer.

    A lease that has just expired by this machine's clock is checked by the storage's, which takes a write.
    """
    with suppress(OSError):
        current = holder(location)
        if current is None or current.is_gone:
            return False
        now = time.time()
        just_expired = current.time + SECONDS <= now < current.time + CLOCK_SECONDS
        return current.left(run_location(location).now() if just_expired else now) > 0
    return False


def has_live_driver(folder: Path) -> bool:
    """Whether a live process drives the run, on this machine or another."""
    location = location_of(folder)
    return driven_here(folder) or (location is not None and valid(location))


def driven_here(folder: Path) -> bool:
    """Whether a live process on this machine, or on a shared file system, holds the folder's lock."""
    try:
        lock = (folder / LOCK).open()  # open for reading: the file may belong to another user
    except FileNotFoundError:
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def open_lock(folder: Path) -> IO[str]:
    """Open the lock file of a run. Raises OSError.

    A process that is forked meanwhile, such as a DataLoader's, does not keep the lock: it may outlive this one.
    """
    lock = (folder / LOCK).open("a+")
    _open_locks.add(lock)
    return lock


_open_locks: weakref.WeakSet[IO[str]] = weakref.WeakSet()


def _leave_locks_to_the_parent() -> None:
    with open(os.devnull) as null:
        for lock in _open_locks:
            if not lock.closed:
                os.dup2(null.fileno(), lock.fileno())


os.register_at_fork(after_in_child=_leave_locks_to_the_parent)


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lock a run against drivers on this machine within the block; False if one holds the lock. Raises OSError."""
    with open_lock(folder) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def refused(location: Remote, current: Holder, left: float) -> UserError:
    storage, _, run = location.uri.rpartition("/")
    stop = f"orchestrator stop {run}{commands.storage_option(storage)}"
    return UserError(
        f"{run} is being driven by another process",
        got=f"pid {current.pid} on {current.host}",
        fix=f"Wait for it, or stop it: {stop}; if it is gone, its lease ends in {left:.0f} s",
    )


def _parse(content: bytes, written: float) -> Holder | None:
    """The holder of a lease of any version; None if it is damaged."""
    try:
        fields = json.loads(content)
        who = (str(fields["token"]), str(fields["host"]), int(fields["pid"]))
        return Holder(*who, written, int(fields.get("generation", 0)), fields.get("kernel"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@cache
def _kernel() -> str:
    """Identifies this boot of this machine, and the container, among those with the same host name."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        pass
    return True
