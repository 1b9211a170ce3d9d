"""Who drives a run on a storage without locks: an object that its driver renews, valid for a minute.

On one machine the folder's file lock says it; between machines this object does. Times are the storage's own.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.storage.remote import Remote, behind, unusable

NAME = "lease.json"
LOCK = "lock"
SECONDS = 60.0
RENEW_SECONDS = 10.0
SETTLE_SECONDS = 0.5
"""After writing it, so long is waited for another who read before and writes after: the last writer has it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who wrote the lease, and when."""

    token: str
    host: str
    pid: int
    time: float

    def left(self, now: float) -> float:
        """Seconds that it is still valid for; nothing where its process was of this machine and is gone."""
        if self.host == socket.gethostname() and not _alive(self.pid):
            return 0.0
        return max(0.0, self.time + SECONDS - now)


class Lease:
    """The right to drive the run stored at ``place``; ``token`` is what its owner is known by."""

    def __init__(self, place: Remote, token: str | None = None) -> None:
        self._place = place
        self.token = token or secrets.token_hex(8)

    def take(self) -> None:
        """Raises UserError: exit 2 when another process has it, 3 when the storage can not be used."""
        try:
            found = holder(self._place)
            if found and found.token != self.token and (left := found.left(self._place.now())):
                raise refused(self._place, found, left)
            self.renew()
            time.sleep(SETTLE_SECONDS)
            if (found := holder(self._place)) is not None and found.token != self.token:
                raise refused(self._place, found, SECONDS)
        except OSError as error:
            raise unusable(self._place.uri, error) from None

    def renew(self) -> None:
        self._place.write(NAME, json.dumps(self._told()).encode())

    def kept(self) -> bool:
        """Whether nobody has taken it over; then it is renewed. Raises OSError."""
        found = holder(self._place)
        if found is not None and found.token != self.token:
            return False
        self.renew()
        return True

    def release(self) -> None:
        """Give it back, if it is still ours. An endpoint that is away lets it expire."""
        with suppress(OSError):
            found = holder(self._place)
            if found is not None and found.token == self.token:
                self._place.remove(NAME)

    def _told(self) -> dict[str, Any]:
        return {"format": 1, "token": self.token, "host": socket.gethostname(), "pid": os.getpid()}


def holder(place: Remote) -> Holder | None:
    """Who has the lease of the run at ``place``, or had it last; None when it was given back. Raises OSError."""
    stored = place.find(NAME)
    content = place.read(NAME) if stored else None
    if stored is None or content is None:
        return None
    try:
        told = json.loads(content)
        return Holder(str(told["token"]), str(told["host"]), int(told["pid"]), stored.time)
    except (ValueError, KeyError, TypeError):
        return None


def valid(place: Remote) -> bool:
    """Whether somebody drives the run now, by our clock; False where the storage does not say."""
    with suppress(OSError):
        found = holder(place)
        return found is not None and found.left(time.time()) > 0
    return False


def driven(folder: Path) -> bool:
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


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
