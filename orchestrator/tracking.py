"""MLflow tracking: one writer a process, batched, that can not hurt training.

Every operation is appended to a journal beside the run first and sent by a background thread, so a server that
is slow, away or gone costs no training time and no value; what is left at the end stays in the journal and is
delivered by ``orchestrator sync`` or the next resume. Sending twice is harmless: runs are found again by their
key, and rows at or below the last logged step of a metric are dropped.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrator import records
from orchestrator.engine import Row
from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.mlflow_client import KEY, OWNER, Client, End, Refused

JOURNAL = "tracking.jsonl"
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)


class Tracker:
    """Queues operations on runs named by our own keys (``<id>`` or ``<sweep>/<number>``) and sends them.

    ``resuming`` makes it look for runs that an earlier process opened under the same ``owner``.
    """

    def __init__(self, uri: str, experiment: str, owner: str, folder: Path, *, artifacts: Path | None, resuming: bool):
        self._uri, self._experiment, self._owner = uri, experiment, owner
        self._artifacts, self._resuming = artifacts, resuming
        self._journal = folder / JOURNAL
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._opened: dict[str, str] = {}
        self._lost: dict[str, str] = {}
        self._illegal: set[tuple[str, str]] = set()
        self._steps: dict[str, dict[str, int]] = defaultdict(dict)
        self._changed = threading.Condition()
        self._order = threading.Lock()
        self._trouble: str | None = None
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._refused: list[str] = []
        records.drop_half_line(self._journal)
        replay = _read(self._journal) if resuming else []
        self._file = self._journal.open("a")
        for operation in replay:
            self._queue.put(operation)
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    # -- what the driver says ------------------------------------------------------------------------------

    def start(
        self,
        key: str,
        name: str,
        *,
        params: Mapping[str, Any],
        tags: Mapping[str, str] | None = None,
        parent: str | None = None,
    ) -> None:
        """Open the run ``key``, or take it up again."""
        values = {k: _text(v) for k, v in params.items()}
        self._put(op="start", key=key, name=name, params=values, tags=dict(tags or {}), parent=parent, time=_now())

    def log(self, key: str, rows: Iterable[Row]) -> None:
        """Log whole rows; step is the epoch, time the epoch's own."""
        packed = [[row.epoch, round(row.time * 1000), dict(row.metrics)] for row in rows]
        if packed:
            self._put(op="log", key=key, rows=packed)

    def tag(self, key: str, tags: Mapping[str, str]) -> None:
        self._put(op="tag", key=key, tags=dict(tags))

    def end(self, key: str, status: End) -> None:
        self._put(op="end", key=key, status=status, time=_now())

    def run_id(self, key: str, timeout: float = 60.0) -> str:
        """The MLflow id of the run ``key``; waits until it is open. Raises UserError (exit 3) after ``timeout``."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._opened or key in self._lost, timeout)
        if key in self._opened:
            return self._opened[key]
        if key in self._lost:
            raise UserError("MLflow refuses the run", got=self._lost[key], code=UNAVAILABLE, fix="Try --experiment")
        raise UserError(
            "MLflow does not answer", got=self._trouble or self._uri, code=UNAVAILABLE,
            fix="Start the server, or set --tracking",
        )  # fmt: skip

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until all is sent; False when it is not within ``timeout`` seconds."""
        done = threading.Event()
        self._queue.put({"op": "mark", "event": done})
        return done.wait(timeout)

    def close(self, timeout: float = 15.0) -> str | None:
        """Send what is left and stop. Returns one sentence when something could not be delivered."""
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._queue.put(None)
        self._thread.join(timeout + 15)
        self._file.close()
        if self._thread.is_alive() or self._trouble:
            return (
                f"MLflow was not reachable ({self._trouble}): the values are kept in {self._journal}; "
                f"deliver them with: orchestrator sync {self._owner}"
            )
        self._journal.unlink(missing_ok=True)
        return f"MLflow refused some values: {self._refused[0]}" if self._refused else None

    # -- the thread ----------------------------------------------------------------------------------------

    def _put(self, **operation: Any) -> None:
        with self._order:
            self._file.write(json.dumps(operation) + "\n")
            self._file.flush()
            self._queue.put(operation)

    def _forget_delivered(self) -> None:
        with self._order:
            if self._queue.empty():
                self._file.truncate(0)

    def _work(self) -> None:
        client: Client | None = None
        attempt = 0
        operation = self._queue.get()
        while operation is not None:
            try:
                if operation["op"] == "mark":
                    operation["event"].set()
                else:
                    client = client or Client(self._uri, self._experiment, self._artifacts)
                    operation = self._merge(operation)
                    self._send(client, operation)
            except Refused as error:  # it will not become right by waiting
                self._refused.append(str(error))
                if operation["op"] == "start":
                    self._settle(self._lost, operation["key"], str(error))
            except Exception as error:  # any trouble of a server that is away: keep, wait, send again
                self._resuming = True  # what was not answered may have been done: a run may be there already
                self._trouble = f"{type(error).__name__}: {(str(error) or 'no detail').splitlines()[0][:200]}"
                if time.monotonic() > self._deadline:
                    return
                wait = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
                attempt += 1
                time.sleep(0.5) if self._closing.is_set() else self._closing.wait(wait)
                continue
            attempt, self._trouble = 0, None
            self._forget_delivered()
            operation = self._queue.get()

    def _merge(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Take the following rows of the same run along: one request for a batch."""
        if operation["op"] != "log":
            return operation
        rows = list(operation["rows"])
        with self._queue.mutex:
            waiting = self._queue.queue
            while waiting and waiting[0] and waiting[0]["op"] == "log" and waiting[0]["key"] == operation["key"]:
                rows += waiting.popleft()["rows"]
        return operation | {"rows": rows}

    def _send(self, client: Client, operation: dict[str, Any]) -> None:
        key = operation["key"]
        run = self._opened.get(key) or (self._take_up(client, key) if self._resuming else None)
        if operation["op"] == "start":
            if run is None:
                parent = self._opened.get(operation["parent"])
                tags = operation["tags"] | {KEY: key, OWNER: self._owner}
                run = client.create(operation["name"], tags, parent, operation["time"])
                self._settle(self._opened, key, run)
            else:
                client.reopen(run)
            self._deliver(client.params, run, list(operation["params"].items()))
            return
        if run is None:
            raise Refused(f"the run {key} was never opened")
        match operation["op"]:
            case "log":
                steps = self._steps[key]
                fresh = [
                    (name, value, moment, epoch)
                    for epoch, moment, metrics in operation["rows"]
                    for name, value in metrics.items()
                    if epoch > steps.get(name, -1)
                ]
                self._deliver(client.metrics, run, fresh)
                for name, _, _, epoch in fresh:
                    steps[name] = max(epoch, steps.get(name, -1))
            case "tag":
                self._deliver(client.tags, run, list(operation["tags"].items()))
            case "end":
                client.end(run, operation["status"], operation["time"])

    def _take_up(self, client: Client, key: str) -> str | None:
        """Find the run an earlier process opened, and where its metrics end."""
        run = client.find(self._owner, key)
        if run is not None:
            self._steps[key] = client.last_steps(run)
            self._settle(self._opened, key, run)
        return run

    def _deliver(self, send: Callable[[str, Any], None], run: str, values: list[tuple[Any, ...]]) -> None:
        """Send named values together; where the server refuses them, by name: an illegal one costs itself alone."""
        values = [value for value in values if (run, value[0]) not in self._illegal]
        if not values:
            return
        try:
            send(run, values)
        except Refused as error:
            names = dict.fromkeys(value[0] for value in values)
            if len(names) == 1:
                self._illegal.add((run, *names))
                self._refused.append(str(error))
            for name in names if len(names) > 1 else ():
                self._deliver(send, run, [value for value in values if value[0] == name])

    def _settle(self, book: dict[str, str], key: str, value: str) -> None:
        with self._changed:
            book[key] = value
            self._changed.notify_all()


def _read(journal: Path) -> list[dict[str, Any]]:
    if not journal.exists():
        return []
    operations = []
    for line in journal.read_text().splitlines():
        try:
            operations.append(json.loads(line))
        except json.JSONDecodeError:  # damaged on disk: what stands around it is still good
            continue
    return operations


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _now() -> int:
    return round(time.time() * 1000)
