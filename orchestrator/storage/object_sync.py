"""Synchronise a run's folder to its object storage in the background: send changed files, remove deleted ones.

A slow or unreachable storage costs no training time: nothing waits for it before the end of the run. Files that could
not be sent stay in the folder; ``orchestrator sync`` or the next resume sends them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.provenance import private_files
from orchestrator.storage import commands, generations, lease, remote, requests, sync_state
from orchestrator.storage.lease import RENEW_SECONDS, Lease, Overtaken
from orchestrator.storage.remote import Remote

STOP = "stop"
POLL_SECONDS = 2.0
LISTEN_SECONDS = 2.0
"""Interval at which a process on another machine than the driver checks for a stop request."""

PATIENCE_SECONDS = 10.0
"""At the end of a run, time of failed attempts after which sending is given up."""

BRING_SECONDS = 30.0
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)


class FolderSync:
    """Threads that synchronise ``folder`` to ``location`` until :meth:`close`. They never raise.

    The driver passes its ``lease``. The threads renew it, also before each upload. When another driver has taken over,
    they stop this one and store nothing more. A stop request on the storage is copied to the run's folder, ``root``.

    ``parts`` limits the synchronisation to these files and folders directly below; empty means all.
    """

    def __init__(
        self,
        folder: Path,
        location: Remote,
        root: Path,
        *,
        lease: Lease | None = None,
        holds: int = 0,
        parts: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._location = location
        self._root = root
        self._lease = lease
        self._holds = holds
        self._parts = parts
        _, self._delivered = sync_state.manifest(folder)
        sync_state.remember(folder, holds, self._delivered)
        self._trouble = "nothing was tried"
        self._lost = False
        self._renewed = time.monotonic()  # begin of the last renewal of the lease
        self._failed = -float("inf")  # end of the last attempt without an answer
        self._has_older = generations.generation(folder.name) > 0
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._due = threading.Event()  # look for changes now
        # Two: a large checkpoint may take longer than the lease lasts.
        self._threads = [threading.Thread(target=work, name="mirror", daemon=True) for work in (self._send, self._heed)]
        for thread in self._threads:
            thread.start()

    def discard(self, name: str) -> None:
        """Remove the folder ``name`` and everything in it from the storage, at once if possible."""
        if self._lost:
            return
        try:
            self._location.remove_folder(name)
        except OSError:
            self._delivered[f"{name}/"] = (0, 0)

    def finish(self) -> None:
        """Announce that nothing more will change. The thread ends when everything is sent or cannot be sent."""
        self._closing.set()
        self._due.set()

    def send_now(self) -> None:
        """Send changes now, not at the next interval."""
        self._due.set()

    def is_overtaken(self) -> bool:
        """Whether another driver has taken over the run. False if the storage does not answer.

        Asks the storage only if the lease was not renewed lately, after a pause of this process for example.
        """
        oldest = time.monotonic() - 2 * RENEW_SECONDS
        if not self._lost and max(self._renewed, self._failed) < oldest:
            try:
                self._check_lease()
            except Overtaken:
                self._give_up()
            except OSError:
                self._failed = time.monotonic()
        return self._lost

    def close(self) -> str | None:
        """Send what is left and end the threads. Returns a sentence if something could not be sent, else None."""
        self.finish()
        for thread in self._threads:
            thread.join()
        try:
            with suppress(OSError):
                self._check_lease()  # it may have been lost since the last file was sent
        except Overtaken:
            self._lost = True
        if self._lost:
            return overtaken(self._folder)
        try:
            left = len(sync_state.undelivered(self._folder, self._delivered, self._parts))
        except OSError as error:
            return f"The last files were not stored: {self._folder} cannot be read ({error.strerror or error})"
        if left:
            return (  # let the lease expire: nothing else records its generation
                f"{left} file{'s' * (left > 1)} could not be stored ({self._trouble}); they are kept here, "
                f"deliver them with: {commands.for_run(self._root, 'sync')}"
            )
        if self._lease:
            self._lease.release()
        return None

    def _send(self) -> None:
        try:
            self._send_until_closed()
        finally:
            self._ended.set()

    def _send_until_closed(self) -> None:
        failures = 0
        failing_since: float | None = None
        while not self._lost:
            self._due.clear()
            closing = self._closing.is_set()  # read first, so that everything written before it is sent
            begun = time.monotonic()
            try:
                if sync_state.deliver(self._folder, self._location, self._delivered, self._parts, self._check_lease):
                    sync_state.remember(self._folder, self._holds, self._delivered)
                self._drop_older()
            except Overtaken:
                self._give_up()
                return
            except Exception as error:  # for any error, wait and try again
                failures += 1
                self._trouble = remote.reason(error)[0]
                sync_state.remember(self._folder, self._holds, self._delivered)
                failing_since = (failing_since or begun) if closing else None
                if failing_since and time.monotonic() - failing_since > PATIENCE_SECONDS:
                    return
                pause = RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1]
                if closing:
                    time.sleep(min(pause, 1.0))
                else:
                    self._due.wait(pause)
            else:
                failures = 0
                if closing:
                    return
                self._due.wait(max(POLL_SECONDS, 4 * (time.monotonic() - begun)))

    def _check_lease(self) -> None:
        """Renew the lease. Raises OSError, and Overtaken if another driver has taken over the run."""
        begun = time.monotonic()
        if self._lease and not self._lease.renew_or_lose(lambda: sync_state.is_superseded(self._location, self._holds)):
            raise Overtaken(self._location.uri)
        self._renewed = begun  # only now: until the storage has answered, the lease may be another driver's

    def _give_up(self) -> None:
        """Stop the driver. It stores nothing more."""
        self._lost = True
        with suppress(OSError):
            (self._root / STOP).touch()

    def _drop_older(self) -> None:
        """Remove the earlier generations, once everything of this one is stored."""
        if self._lease and self._has_older:
            sync_state.drop_older(self._location)
            self._has_older = False

    def _heed(self) -> None:
        """Renew the lease, check for stop requests and fetch other requests."""
        stop_file = self._root / STOP
        storage = remote.location_of(self._root)
        while not self._lost and not self._ended.wait(RENEW_SECONDS if self._lease else LISTEN_SECONDS):
            with suppress(OSError):
                try:
                    self._check_lease()
                except Overtaken:
                    self._give_up()
                    return
                stopped = storage is not None and not stop_file.exists() and storage.find(STOP) is not None
                if stopped and not self._closing.is_set():
                    stop_file.touch()
                if storage is not None and self._lease:
                    requests.fetch(self._root, storage)


class StopWatcher:
    """Counterpart of :class:`FolderSync` for a folder on a file system, which is its own storage.

    Stops this driver when another one has continued in a folder of a higher generation.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lost = False
        self._due = 0.0  # time of the next poll
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    def discard(self, name: str) -> None:
        """Does nothing: the folder is the storage."""

    def send_now(self) -> None:
        """Does nothing: the folder is the storage."""

    def is_overtaken(self) -> bool:
        """Whether another driver has taken over the run. False if the file system does not answer.

        Lists the storage, which may hold many runs, but for no more than a fifth of the time.
        """
        if time.monotonic() >= self._due:
            self._poll()
        return self._lost

    def close(self) -> str | None:
        """End the thread. Returns a sentence if another driver has taken over, else None."""
        self._closing.set()
        self._thread.join()
        self._poll()
        return overtaken(self._folder) if self._lost else None

    def _poll(self) -> None:
        begun = time.monotonic()
        with suppress(OSError):
            self._lost = self._lost or generations.is_superseded(self._folder)
            # Soon after a long pause: another driver may have taken over within it.
            self._due = begun + min(5 * (time.monotonic() - begun), RENEW_SECONDS)

    def _watch(self) -> None:
        while not self._lost and not self._closing.wait(RENEW_SECONDS):
            self._poll()
        if self._lost:
            with suppress(OSError):
                (self._folder / STOP).touch()


class RemoteFolder:
    """Context manager in which a process on another machine than the driver works on ``folder``, or ``parts`` of it.

    Downloads the storage's files first. Sends changed files, unless ``reads``. Does nothing on the driver's machine and
    with a storage that is a plain path.
    """

    def __init__(self, folder: Path, parts: Sequence[str] = (), *, reads: bool = False) -> None:
        self._sync: FolderSync | None = None
        root = remote.run_folder(folder)
        location = remote.location_of(folder)
        if root is None or location is None or lease.driven_here(root):
            return
        private_files.make_folder(folder)
        (root / STOP).unlink(missing_ok=True)  # from an earlier driver; a current request is copied again
        with suppress(OSError):  # out of reach: continue with the local files, and repeat some work
            brought = sync_state.gather(folder, parts)
            sync_state.remember(folder, 0, sync_state.manifest(folder)[1] | brought)
        if not reads:
            self._sync = FolderSync(folder, location, root, parts=parts)

    def finish(self) -> None:
        """Send the rest without waiting for it."""
        if self._sync:
            self._sync.finish()

    def close(self) -> None:
        """Wait until everything is sent or cannot be sent."""
        if self._sync:
            self._sync.close()

    def __enter__(self) -> RemoteFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def overtaken(folder: Path) -> str:
    run = generations.run_id(folder.name)
    return f"{run} was taken over by another driver; what this one did since is not stored"


def download(folder: Path, mark: str, parts: Sequence[str] = ()) -> None:
    """Download what another machine stores below ``folder``, until its last file, ``mark``, is here.

    Returns at once if it is here already. Raises UserError (exit 3) if it does not arrive in time.
    """
    location = remote.location_of(folder)
    deadline = time.monotonic() + BRING_SECONDS
    trouble = f"there is no {mark}"
    while location is not None and not (folder / mark).exists():
        try:
            sync_state.gather(folder, parts)
        except OSError as error:
            trouble = remote.reason(error)[0]
        if (folder / mark).exists():
            return
        if time.monotonic() > deadline:
            raise UserError(
                f"Files that another node stored at {location.uri} cannot be downloaded", got=trouble, code=UNAVAILABLE,
                fix="Resume it when the storage answers",
            )  # fmt: skip
        time.sleep(1.0)
