"""MLflow tracking that never slows training: one background writer a process, with batches.

Every operation is appended to a journal in the run's folder, from which a thread sends it. A server that is slow or
out of reach costs no training time and loses no value: what is left at the end stays in the journal, and
``orchestrator sync`` or the next resume sends it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.engine.loop import Row
from orchestrator.errors import UNAVAILABLE, UserError, one_line
from orchestrator.storage import commands
from orchestrator.tracking.client import Client, DeletedExperiment, Doubtful, End, Refused
from orchestrator.tracking.journal import Journal, Operation, batches
from orchestrator.tracking.sender import Sender

JOURNAL = "tracking.jsonl"
GATHER_SECONDS = 0.1
"""Pause between two rounds of sending, unless someone waits: what a short trial logs meets in one request."""

CONNECT_SECONDS = 10.0
"""Longest time that a local sweep waits for MLflow before it trains."""

RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
DOUBTS = 8
"""Attempts of a request that MLflow rejects as it would for an error of its database."""

DEFERRABLE = ("files", "input")
"""Operations that nothing depends on: while one of them fails, the others are sent first."""

WRONG = (Refused, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""Errors that a retry does not cure. An outage raises MLflow's exceptions and OSError."""


class Tracker:
    """Queues and sends operations on runs, which are named by our keys (``<id>`` or ``<sweep>/<number>``).

    With ``resuming``, runs that an earlier process opened for the same ``owner`` are used again. Once ``is_overtaken``
    returns True, nothing more is sent: the runs belong to another process, and what is queued is dropped. ``uid`` is
    that of the record, which tells runs of the same owner in several storages apart. With ``follow``, the experiment
    of earlier runs is used even if it was renamed.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        owner: str,
        folder: Path,
        *,
        artifacts: Path | None,
        resuming: bool,
        is_overtaken: Callable[[], bool] = lambda: False,
        uid: str | None = None,
        follow: bool = False,
    ) -> None:
        self._uri = uri
        self._experiment = experiment
        self._owner = owner
        self._uid = uid
        self._followed = uid if follow else None
        self._artifacts = artifacts
        self._journal = Journal(folder / JOURNAL)
        self._resuming = resuming or not self._journal.empty()
        self._is_overtaken = is_overtaken
        self._sender: Sender | None = None
        self._tried = threading.Event()
        self._opened: dict[str, str] = {}
        self._running: set[str] = set()
        self._ending = threading.Lock()
        self._lost: dict[str, str] = {}
        self._refused: list[str] = []
        self._trouble: str | None = None
        self._deferred_trouble: str | None = None
        self._deleted: str | None = None
        self._changed = threading.Condition()
        self._progress = 0.0
        self._away_since = 0.0
        self._closing = threading.Event()
        self._awaited = threading.Event()
        self._patience = 0.0
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    # -- called by the driver ------------------------------------------------------------------------------

    def start(
        self,
        key: str,
        name: str,
        *,
        params: Mapping[str, Any],
        tags: Mapping[str, str] | None = None,
        parent: str | None = None,
    ) -> None:
        """Open or reopen the run ``key``."""
        values = {k: v if isinstance(v, str) else json.dumps(v, default=str) for k, v in params.items()}
        with self._ending:
            self._running.add(key)
            self._journal.put(
                op="start", key=key, name=name, params=values, tags=dict(tags or {}), parent=parent, time=_now()
            )

    def log(self, key: str, rows: Iterable[Row]) -> None:
        """Log rows, with the epoch as step and the row's own time, and the values within epochs by their own steps.

        A value that is not finite becomes a tag.
        """
        packed: list[list[Any]] = []
        for row in rows:
            packed += [[step, round(moment * 1000), dict(metrics)] for step, moment, metrics in row.steps]
            packed.append([row.epoch, round(row.time * 1000), dict(row.metrics)])
        if packed:
            self._journal.put(op="log", key=key, rows=packed)

    def tag(self, key: str, tags: Mapping[str, str]) -> None:
        self._journal.put(op="tag", key=key, tags=dict(tags))

    def input(self, key: str, dataset: Mapping[str, str]) -> None:
        """Log the training dataset: ``name``, ``digest``, ``source`` and, if available, ``profile``."""
        self._journal.put(op="input", key=key, dataset=dict(dataset))

    def files(self, key: str, paths: Iterable[Path]) -> None:
        """Log files as artifacts, as they are when they are sent; one that no longer exists is skipped."""
        self._journal.put(op="files", key=key, paths=[str(path) for path in paths])

    def end(self, key: str, status: End) -> None:
        with self._ending:
            self._running.discard(key)
            self._journal.put(op="end", key=key, status=status, time=_now())

    def provisional_end(self, status: End) -> None:
        """End every open run with the status it should have if this process is killed later. Thread-safe.

        Values can still be logged, and a later :meth:`end` replaces the status.
        """
        with self._ending:
            for key in sorted(self._running):
                self._journal.put(op="end", key=key, status=status, time=_now())

    @property
    def unsent(self) -> int:
        """The number of operations that are not sent."""
        return self._journal.depth

    def opened(self, key: str) -> str | None:
        """The MLflow id of the run ``key``, or None if it is not open yet."""
        return self._opened.get(key)

    def await_connection(self) -> None:
        """Wait until MLflow is imported and its store has answered or failed, at most :data:`CONNECT_SECONDS`.

        For a process that is about to train: the import would take the interpreter from it.
        """
        self._tried.wait(CONNECT_SECONDS)

    def run_id(self, key: str, timeout: float = 60.0) -> str:
        """The MLflow id of the run ``key``; waits until it is open.

        Raises UserError (exit 3) after ``timeout``, or if another process has taken over the run.
        """
        self._awaited.set()
        with self._changed:
            self._changed.wait_for(
                lambda: key in self._opened or key in self._lost or self._deleted or self._is_overtaken(), timeout
            )
        if self._is_overtaken():
            raise UserError(f"{self._owner} was taken over by another driver", code=UNAVAILABLE)
        if key in self._opened:
            return self._opened[key]
        if refusal := self._lost.get(key) or self._deleted:
            raise UserError("MLflow refuses the run", got=refusal, code=UNAVAILABLE, fix="Try another --experiment")
        raise UserError(
            "MLflow does not answer", got=self._trouble or self._uri, code=UNAVAILABLE,
            fix="Start the server, or set --tracking",
        )  # fmt: skip

    def flush(self, timeout: float = 20.0) -> bool:
        """Wait until everything is sent; False if nothing could be sent for ``timeout`` seconds.

        An outage that began before the call counts from its beginning.
        """
        self._awaited.set()
        begun = time.monotonic()
        with self._changed:
            while not self._journal.empty():
                since = self._away_since or max(begun, self._progress)
                left = since + timeout - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self, timeout: float = 15.0) -> str | None:
        """Send what is left and stop; give up when nothing could be sent for ``timeout`` seconds.

        Returns a warning when values were not sent or were sent under other names, else None.
        """
        self._patience = timeout
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._awaited.set()
        self._journal.finish()
        while self._thread.is_alive() and time.monotonic() < self._deadline + 15:  # a request may be on its way
            self._thread.join(1)
        delivered = self._journal.empty() and not self._trouble
        self._journal.close()
        return self._warning(delivered)

    def _warning(self, delivered: bool) -> str | None:
        warnings = []
        if not delivered:
            trouble = self._trouble or self._deferred_trouble or "no answer"
            warnings.append(
                f"Not everything was sent to MLflow ({trouble}): the values are kept in {self._journal.path}; "
                f"send them with: {commands.for_run(self._journal.path.parent.with_name(self._owner), 'sync')}"
            )
        if self._journal.lost:
            warnings.append(f"{self._journal.lost} reports for MLflow were dropped ({self._journal.trouble})")
        if self._refused:
            warnings.append(f"MLflow refused some values: {self._refused[0]}")
        for kind, names in self._sender.names.items() if self._sender else ():
            for ours, theirs in list(names.changed().items())[:1]:
                warnings.append(f"MLflow does not accept the {kind} name {ours!r}; it is logged as {theirs!r}")
        return "; ".join(warnings) or None

    # -- the thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        if self._resuming and not self._send_with_retries({"op": "recall"}):
            return
        failures = 0
        while operations := self._journal.take():
            deferred: list[Operation] = []
            for operation in batches(operations):
                if operation.get("op") in DEFERRABLE:
                    if deferred or not self._try_to_send(operation, failures + 1):
                        deferred.append(operation)
                elif not self._send_with_retries(operation):
                    return
            self._journal.forget(deferred[1:] + deferred[:1])  # the one that failed comes last
            self._wake()
            failures = failures + 1 if deferred else 0
            if deferred and not self._wait_to_retry(failures):
                return
            self._awaited.wait(GATHER_SECONDS)
            if not self._closing.is_set():
                self._awaited.clear()

    def _send_with_retries(self, operation: Operation) -> bool:
        """Send an operation, retrying until the deadline. Returns whether it was sent."""
        attempt = 1
        while not self._try_to_send(operation, attempt):
            if not self._wait_to_retry(attempt):
                return False
            attempt += 1
        return True

    def _wait_to_retry(self, failures: int) -> bool:
        """Wait after a number of failures before the next attempt. Returns False if the deadline has passed."""
        if time.monotonic() > self._deadline:
            return False
        wait = RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1]
        if self._closing.is_set():
            time.sleep(0.5)
        else:
            self._closing.wait(wait)
        return True

    def _try_to_send(self, operation: Operation, attempt: int) -> bool:
        """Try once to send an operation. Returns False if the server is out of reach.

        An operation that is refused, or dropped because another process has taken over, counts as sent.
        """
        is_deferrable = operation.get("op") in DEFERRABLE
        try:
            if not self._is_overtaken():
                sender = self._connected()
                sender.is_patient = attempt < DOUBTS
                sender.send(operation)
        except Exception as error:
            if not self._is_wrong(operation, error, attempt):
                trouble = f"{type(error).__name__}: {one_line(error)[:200]}"
                if isinstance(error, DeletedExperiment):
                    self._deleted = str(error)
                    self._wake()
                if is_deferrable:
                    self._deferred_trouble = trouble
                else:
                    self._trouble = trouble
                self._away_since = self._away_since or time.monotonic()
                if self._sender:
                    self._sender.note_unanswered(operation)
                return False
            self._refuse(operation, error)
        if is_deferrable:
            self._deferred_trouble = None
        self._trouble = self._deleted = None
        self._away_since = 0.0
        self._progress = time.monotonic()
        if self._closing.is_set():
            self._deadline = self._progress + self._patience
        self._wake()
        return True

    def _is_wrong(self, operation: Operation, error: Exception, attempt: int) -> bool:
        """Whether a retry does not cure an error. Without an answer to ``recall`` every run would be opened twice."""
        if self._sender is None or operation.get("op") == "recall" or isinstance(error, OSError):
            return False
        return isinstance(error, WRONG) and (attempt >= DOUBTS or not isinstance(error, Doubtful))

    def _connected(self) -> Sender:
        if self._sender is None:
            try:
                client = Client(self._uri, self._experiment, self._artifacts, self._followed)
            finally:
                self._tried.set()
            folder = self._journal.path.parent
            self._sender = Sender(client, self._owner, folder, self._opened, self._refused, self._uid)
        return self._sender

    def _refuse(self, operation: Operation, error: Exception) -> None:
        """Record an operation that a retry does not cure."""
        self._refused.append(str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {one_line(error)}")
        if operation.get("op") == "start" and operation.get("key") not in self._opened:
            self._lost[operation["key"]] = self._refused[-1]

    def _wake(self) -> None:
        """Wake up the callers of :meth:`run_id` and :meth:`flush`."""
        with self._changed:
            self._changed.notify_all()


def _now() -> int:
    return round(time.time() * 1000)
