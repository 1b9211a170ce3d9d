"""Who drives a run on a storage without locks: an object that its driver renews, valid for a minute.

On one machine the folder's file lock says it; between machines this object does. Times are the storage's own. It
carries a generation, which grows with each driver. On a store with conditional writes it is replaced only where it is
what was read, so each generation has one driver. :mod:`~orchestrator.storage.generations` says what follows from it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.storage import conditional, generations
from orchestrator.storage.conditional import Changed, Objects
from orchestrator.storage.remote import Remote, behind, unusable

NAME = "lease.json"
LOCK = "lock"
SECONDS = 60.0
RENEW_SECONDS = 10.0
SETTLE_SECONDS = 0.5
"""Without conditional writes, the time waited for another who read before and writes after: the last writer has it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who wrote the lease, and when. ``generation`` is 0 in a lease of an earlier version."""

    token: str
    host: str
    pid: int
    time: float
    generation: int = 0
    kernel: str | None = None

    @property
    def is_gone(self) -> bool:
        """Whether its process was of this machine and has ended."""
        here = self.host == socket.gethostname() and self.kernel in (None, _kernel())
        return here and not _alive(self.pid)

    def left(self, now: float) -> float:
        """Seconds that it is still valid for; nothing where its process is known to have ended."""
        return 0.0 if self.is_gone else max(0.0, self.time + SECONDS - now)


class Overtaken(Exception):
    """Another driver has taken the run over: this one is to store nothing more."""


class Lease:
    """The right to drive the run stored at ``place``; ``token`` is what its owner is known by.

    Once taken it has a ``generation``; ``exclusive`` says whether no other driver can have the same one.
    ``predecessor`` is the holder before, where that one has not given it back.
    """

    def __init__(self, place: Remote, token: str | None = None) -> None:
        self._place = run_place(place)
        self.token = token or secrets.token_hex(8)
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
        """Take it with a generation higher than ``above`` and than the lease before.

        Raises UserError: exit 2 when another process has it, 3 when the storage cannot be used.
        """
        try:
            self.claim(above)
        except OSError as error:
            raise unusable(self._place.uri, error) from None

    def claim(self, above: int = 0) -> None:
        """:meth:`take`, but a storage that cannot be used is an OSError."""
        self._objects = conditional.objects(self._place)
        while True:
            found = self._read()
            if found and found.token != self.token and (left := found.left(self._place.now())):
                raise refused(self._place, found, left)
            self.generation = max(above, found.generation if found else 0) + 1
            self.predecessor = found
            try:
                self.renew()
                break
            except Changed:  # another one was faster: look who
                continue
        if not self.exclusive:
            time.sleep(SETTLE_SECONDS)
            if (found := holder(self._place)) is not None and found.token != self.token:
                raise refused(self._place, found, SECONDS)

    def renew(self) -> None:
        """Write it again. Raises OSError, and Changed where somebody else has written it since."""
        content = json.dumps(self._content()).encode()
        if self._objects:
            self._tag = self._objects.write(NAME, content, self._tag)
        else:
            self._place.write(NAME, content)

    def kept(self, is_superseded: Callable[[], bool] = lambda: False) -> bool:
        """Whether no one has taken it over; then it is renewed. Raises OSError.

        ``is_superseded`` says whether a later driver has stored a record: it may have ended, and given the lease back.
        """
        with self._writing:
            self._is_lost = self._is_lost or not self._renewed(is_superseded)
            return not self._is_lost

    def _renewed(self, is_superseded: Callable[[], bool]) -> bool:
        if self._objects:
            with suppress(Changed):  # by ourselves too, where the answer to an earlier write was lost
                self.renew()
                return True
        found = self._read()
        if (found is None and is_superseded()) or (found is not None and self._is_later(found)):
            return False
        try:
            self.renew()
        except Changed:
            return False
        return self.exclusive or not is_superseded()  # another one may have come between the look and the write

    def _is_later(self, found: Holder) -> bool:
        """Whether it is a successor's. One of a lower generation was written by a predecessor that woke up; one of
        an earlier version has no generation."""
        return found.token != self.token and (found.generation == 0 or found.generation >= self.generation)

    def release(self) -> None:
        """Give it back, if it is still ours. An endpoint that is away lets it expire."""
        with suppress(OSError, Changed), self._writing:
            found = self._read()
            if found is None or found.token != self.token:
                return
            try:
                if self._objects and self._tag:
                    self._objects.remove(NAME, self._tag)
                    return
            except NotImplementedError:  # a store whose condition is for writes alone
                pass
            self._place.remove(NAME)

    def _read(self) -> Holder | None:
        """The holder, and on a store with conditional writes the tag that the next write depends on."""
        if not self._objects:
            return holder(self._place)
        stored = self._objects.read(NAME)
        self._tag = stored[1] if stored else None
        written = self._place.find(NAME) if stored else None
        return _parse(stored[0], written.time) if stored and written else None

    def _content(self) -> dict[str, Any]:
        who = {"token": self.token, "host": socket.gethostname(), "pid": os.getpid(), "kernel": _kernel()}
        return {"format": 1, "generation": self.generation, **who}


def run_place(place: Remote) -> Remote:
    """Where the lease of the run lies whose folder, of any generation, is ``place``."""
    storage, _, name = place.uri.rpartition("/")
    return Remote(f"{storage}/{generations.run_id(name)}", place.request_seconds)


def holder(place: Remote) -> Holder | None:
    """Who has the lease of the run at ``place``, or had it last; None when it was given back. Raises OSError."""
    place = run_place(place)
    stored = place.find(NAME)
    content = place.read(NAME) if stored else None
    return None if stored is None or content is None else _parse(content, stored.time)


@contextmanager
def holding(place: Remote, above: int = 0) -> Iterator[None]:
    """No one else drives the run at ``place`` within the block. Raises OSError, and UserError where somebody does."""
    held = Lease(place)
    held.claim(above)
    try:
        yield
    finally:
        held.release()


def valid(place: Remote) -> bool:
    """Whether somebody drives the run now, by our clock; False where the storage does not say."""
    with suppress(OSError):
        found = holder(place)
        return found is not None and found.left(time.time()) > 0
    return False


def has_live_driver(folder: Path) -> bool:
    """Whether a live process holds the run's folder, here or elsewhere."""
    place = behind(folder)
    return driven_here(folder) or (place is not None and valid(place))


def driven_here(folder: Path) -> bool:
    """Whether a live process of this machine (or of a file system that is shared with it) holds the folder."""
    try:
        lock = (folder / LOCK).open()  # to look is enough: it may be a colleague's
    except FileNotFoundError:
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def refused(place: Remote, found: Holder, left: float) -> UserError:
    run = place.uri.rpartition("/")[2]
    return UserError(
        f"{run} is being driven by another process",
        got=f"pid {found.pid} on {found.host}",
        fix=f"Wait for it, or stop it: orchestrator stop {run}; if it is gone, its lease ends in {left:.0f} s",
    )


def _parse(content: bytes, written: float) -> Holder | None:
    """A lease of any version; None for a damaged one."""
    try:
        told = json.loads(content)
        who = (str(told["token"]), str(told["host"]), int(told["pid"]))
        return Holder(*who, written, int(told.get("generation", 0)), told.get("kernel"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@cache
def _kernel() -> str:
    """What tells this machine since its start, and this container on it, from others that have the same name."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True
