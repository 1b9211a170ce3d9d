"""Keeps a run's storage equal to its folder, in the background: what changes is sent, what is gone is removed.

A storage that is slow, away or gone costs no training time: nothing here is waited for before the end. What could
not be delivered stays in the folder and is delivered by ``orchestrator sync`` or the next resume.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.provenance import private_files
from orchestrator.storage import generations, lease, remote, sync_state
from orchestrator.storage.lease import RENEW_SECONDS, Lease, Overtaken
from orchestrator.storage.remote import Remote

STOP = "stop"
LOOK_SECONDS = 2.0
LISTEN_SECONDS = 2.0
"""How often a process far from the driver asks whether to stop."""

PATIENCE_SECONDS = 10.0
"""At the end, so long is tried again while nothing can be delivered."""

BRING_SECONDS = 30.0
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)


class Mirror:
    """Threads that keep ``location`` equal to ``folder`` until :meth:`close`. They never raise.

    With a ``lease`` it is the driver's: it renews that, also before it sends anything, and when another driver has
    taken over it stops this one, which then stores nothing more. A ``stop`` that was asked for on the storage appears
    in the run's folder, ``root``.
    ``parts`` are the only files and folders right below that count; none means all.
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
        self._has_older = generations.generation(folder.name) > 0
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._due = threading.Event()  # to look now for what has changed
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
        """No more will change: the thread ends by itself once all is delivered, or cannot be."""
        self._closing.set()
        self._due.set()

    def send_now(self) -> None:
        """Send what has changed now, not at the next look."""
        self._due.set()

    def close(self) -> str | None:
        """Deliver what is left, and end. Returns one sentence when something could not be."""
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
        if left := len(sync_state.undelivered(self._folder, self._delivered, self._parts)):
            return (  # the lease is left to expire: its generation is not stored anywhere else
                f"{left} file{'s' * (left > 1)} could not be stored ({self._trouble}); they are kept here, "
                f"deliver them with: orchestrator sync {generations.run_id(self._root.name)}"
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
        failures, failing_since = 0, None
        while not self._lost:
            self._due.clear()
            closing = self._closing.is_set()  # asked before looking: all that was there until then is sent
            begun = time.monotonic()
            try:
                if sync_state.deliver(self._folder, self._location, self._delivered, self._parts, self._check_lease):
                    sync_state.remember(self._folder, self._holds, self._delivered)
                self._drop_older()
            except Overtaken:
                self._give_up()
                return
            except Exception as error:  # whatever it is, waiting is all that can be done
                failures += 1
                self._trouble = remote.reason(error)[0]
                sync_state.remember(self._folder, self._holds, self._delivered)
                failing_since = (failing_since or begun) if closing else None
                if failing_since and time.monotonic() - failing_since > PATIENCE_SECONDS:
                    return
                pause = RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1]
                time.sleep(min(pause, 1.0)) if closing else self._due.wait(pause)
            else:
                failures = 0
                if closing:
                    return
                self._due.wait(max(LOOK_SECONDS, 4 * (time.monotonic() - begun)))

    def _check_lease(self) -> None:
        """Renew the lease. Raises OSError, and Overtaken where another driver has taken the run over."""
        if self._lease and not self._lease.kept(lambda: sync_state.is_superseded(self._location, self._holds)):
            raise Overtaken(self._location.uri)

    def _give_up(self) -> None:
        """Stop the driver, which stores nothing more."""
        self._lost = True
        with suppress(OSError):
            (self._root / STOP).touch()

    def _drop_older(self) -> None:
        """Once all of a generation of its own is stored, those before it are of no use."""
        if self._lease and self._has_older:
            sync_state.drop_older(self._location)
            self._has_older = False

    def _heed(self) -> None:
        """Renew the lease, and look for a stop."""
        stop_file = self._root / STOP
        storage = remote.behind(self._root)
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


class StopWatcher:
    """The counterpart of a :class:`Mirror` for a folder on a file system, which is its own storage.

    It stops this driver when another one has gone on in a folder of a higher generation.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
        self._thread.start()

    def discard(self, name: str) -> None:
        """Nothing to do: what is removed from the folder is removed from the storage."""

    def send_now(self) -> None:
        """Nothing to do: what is written to the folder is on the storage."""

    def close(self) -> str | None:
        """End. Returns one sentence where another driver has taken over."""
        self._closing.set()
        self._thread.join()
        return overtaken(self._folder) if generations.is_superseded(self._folder) else None

    def _look(self) -> None:
        while not self._closing.wait(RENEW_SECONDS):
            with suppress(OSError):
                if generations.is_superseded(self._folder):
                    (self._folder / STOP).touch()
                    return


class RemoteFolder:
    """A context in which a process far from its driver works on ``folder``, or ``parts`` of it.

    What the storage has of it is brought first, what changes is sent, unless it only ``reads``. Where the driver's
    own folder is at hand, and with a storage that is a plain path, there is nothing to do.
    """

    def __init__(self, folder: Path, parts: Sequence[str] = (), *, reads: bool = False) -> None:
        self._mirror: Mirror | None = None
        root = remote.run_folder(folder)
        location = remote.behind(folder)
        if root is None or location is None or lease.driven_here(root):
            return
        private_files.make_folder(folder)
        (root / STOP).unlink(missing_ok=True)  # an earlier driver's; where it is meant now, it comes again
        with suppress(OSError):  # away: what is here will do, at the price of work done again
            brought = sync_state.gather(folder, parts)
            sync_state.remember(folder, 0, sync_state.manifest(folder)[1] | brought)
        if not reads:
            self._mirror = Mirror(folder, location, root, parts=parts)

    def finish(self) -> None:
        """Let the rest be sent without waiting for it."""
        if self._mirror:
            self._mirror.finish()

    def close(self) -> None:
        """Wait until all is sent, or cannot be."""
        if self._mirror:
            self._mirror.close()

    def __enter__(self) -> RemoteFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def overtaken(folder: Path) -> str:
    run = generations.run_id(folder.name)
    return f"{run} was taken over by another driver; what this one did since is not stored"


def download(folder: Path, mark: str, parts: Sequence[str] = ()) -> None:
    """Wait for what another machine stores below ``folder``, until its last file, ``mark``, is here.

    At once where it is here already. Raises UserError (exit 3) when it does not come.
    """
    location = remote.behind(folder)
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
                f"What another node has stored at {location.uri} cannot be had", got=trouble, code=UNAVAILABLE,
                fix="Resume it when the storage answers",
            )  # fmt: skip
        time.sleep(1.0)
