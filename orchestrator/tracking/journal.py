"""The sender's queue on disk: operations as JSON lines, read back by byte offset.

An outage of hours uses disk space, not memory. When the disk is full, operations wait in memory, up to a limit;
beyond it they are dropped and counted. Adding an operation never blocks.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.provenance import private_files
from orchestrator.storage import disk

FORMAT = 1
WINDOW = 1 << 18
"""Bytes read ahead, enough to batch the rows of trials that report in turns."""

HELD = 1000
"""Reports held in memory while the disk is full; starts, ends and tags are always held."""

Operation = dict[str, Any]


class Journal:
    """Persistent queue of operations with one reader, which calls :meth:`take`, sends, then calls :meth:`forget`.

    Operations that are not forgotten stay in ``path``; a later process reads them first. Raises UserError when
    ``path`` has another format.
    """

    def __init__(self, path: Path) -> None:
        disk.drop_half_line(path)
        _check_format(path)
        self.path = path
        self.lost = 0
        self.trouble: str | None = None
        self._file = private_files.open_file(path, "a+b", buffering=0)
        self._size = os.fstat(self._file.fileno()).st_size
        self._start = self._taken = 0  # file offsets: end of what is delivered, end of what is being delivered
        self._memory: deque[Operation] = deque()
        self._taken_memory = 0
        self._waiting = _lines(path)  # operations in the file that are not delivered
        self._taken_lines = 0
        self._closed = False
        self._ready = threading.Condition()

    def put(self, **operation: Any) -> None:
        """Append an operation. Does not wait for the reader or raise when the disk is full."""
        with self._ready:
            if not self._taken_memory:
                self._store_held()
            if self._memory or not self._append(operation):
                self._hold(operation)
            self._ready.notify_all()

    def take(self) -> list[Operation]:
        """Wait for operations; return the oldest, about WINDOW bytes. Empty once all is sent or it is closed."""
        with self._ready:
            self._ready.wait_for(lambda: self._closed or not self._empty())
            if self._file.closed:
                return []
            if self._start == self._size:
                self._taken_memory = len(self._memory)
                return list(self._memory)
            end = self._size
        lines = self._read(end)
        self._taken = self._start + len(lines) if lines else end  # no lines: the file was emptied by others
        self._taken_lines = lines.count(b"\n") if lines else self._waiting
        return list(disk.json_objects(lines.split(b"\n"))) or [{"op": "none"}]

    def forget(self, later: Iterable[Operation] = ()) -> None:
        """Remove the operations taken last, which are delivered; those to be sent ``later`` follow all others."""
        with self._ready:
            if self._file.closed:  # the delivery took longer than its owner waited: it is repeated
                return
            for _ in range(self._taken_memory):
                self._memory.popleft()
            self._start = self._taken
            self._taken_memory = 0
            self._waiting -= self._taken_lines
            self._taken_lines = 0
            if self._start == self._size:
                self._file.truncate(0)
                self._start = self._taken = self._size = 0
            for operation in later:  # under the lock: the journal is not empty in between
                self.put(**operation)

    def empty(self) -> bool:
        """Whether every operation is delivered."""
        with self._ready:
            return self._empty()

    @property
    def depth(self) -> int:
        """The number of operations that are not delivered."""
        with self._ready:
            return self._waiting + len(self._memory)

    def finish(self) -> None:
        """Declare the end of the input: :meth:`take` no longer waits."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def close(self) -> None:
        """Keep what is left for the next process; remove the file if it is empty."""
        with self._ready:
            self._store_held()
            self.lost += sum(map(_weight, self._memory))
            self._file.close()
            if self._size == 0:
                self.path.unlink(missing_ok=True)

    def _read(self, end: int) -> bytes:
        """Whole lines from the first that is not delivered: about WINDOW bytes, at least one line."""
        size = WINDOW
        while True:
            block = os.pread(self._file.fileno(), min(size, end - self._start), self._start)
            if (whole := block.rfind(b"\n") + 1) or len(block) < size:
                return block[:whole] or block
            size *= 2

    def _empty(self) -> bool:
        return self._start == self._size and not self._memory

    def _append(self, operation: Operation) -> bool:
        line = memoryview(json.dumps({"format": FORMAT, **operation}, default=str).encode() + b"\n")
        size = self._size + len(line)
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            self.trouble = error.strerror or str(error)
            with suppress(OSError):  # remove a partial line, which would damage the next one
                self._file.truncate(self._size)
            return False
        self._size = size
        self._waiting += 1
        return True

    def _store_held(self) -> None:
        """Move what is held in memory to the file, as much as the disk has room for."""
        while self._memory and self._append(self._memory[0]):
            self._memory.popleft()

    def _hold(self, operation: Operation) -> None:
        if operation["op"] == "log" and len(self._memory) >= HELD:
            self.lost += _weight(operation)
        else:
            self._memory.append(operation)


def batches(operations: Iterable[Operation]) -> list[Operation]:
    """Merge the rows and tags that a run logs between two of its other operations, and its start, into one request.

    The order within each run stays; between runs it may change, so that trials that report in turns are batched. The
    tags of a ``log`` operation, and those that are set after a start (``set_tags``), are merged ones.
    """
    merged: list[Operation] = []
    open_for: dict[Any, Operation] = {}
    for operation in operations:
        key = operation.get("key")
        kind = operation.get("op")
        if kind not in ("start", "log", "tag"):
            open_for.pop(key, None)
            merged.append(operation)
        elif kind != "start" and key in open_for:
            own = open_for[key]
            if kind == "log":
                own.setdefault("rows", []).extend(operation["rows"])
            else:
                own["set_tags"] = {**own.get("set_tags", {}), **operation["tags"]}
        else:
            open_for[key] = dict(operation)
            if kind == "log":
                open_for[key]["rows"] = list(operation["rows"])
            elif kind == "tag":
                open_for[key] = {"op": "log", "key": key, "rows": [], "set_tags": operation["tags"]}
            merged.append(open_for[key])
    return merged


def _lines(path: Path) -> int:
    """The number of operations that an earlier process left."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _weight(operation: Mapping[str, Any]) -> int:
    return len(operation.get("rows", "1"))


def _check_format(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb") as file:
        first = next(disk.json_objects([file.readline()]), {})
    if first.get("format", FORMAT) != FORMAT:
        raise UserError(
            f"The journal {path} has another format", got=first["format"], allowed=FORMAT,
            fix="Deliver it with the version that wrote it",
        )  # fmt: skip
