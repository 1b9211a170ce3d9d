"""Where datasets and their converted forms live, and how several processes share them safely."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def cache_dir() -> Path:
    """``$ORCHESTRATOR_CACHE``, else ``$XDG_CACHE_HOME/orchestrator``, else ``~/.cache/orchestrator``."""
    if own := os.environ.get("ORCHESTRATOR_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "orchestrator"
    return Path("~/.cache/orchestrator").expanduser()


def default_data_root() -> Path:
    """The folder of datasets, one sub-folder each: ``$ORCHESTRATOR_DATA``, else ``data`` in the cache."""
    if root := os.environ.get("ORCHESTRATOR_DATA"):
        return Path(root).expanduser()
    return cache_dir() / "data"


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the exclusive lock file ``path``: among processes and threads of this machine one at a time.

    The kernel frees the lock when its holder dies. The empty file stays: removing it would let a process that
    waits on the old file and one that creates a new file both believe they hold the lock.

    Raises:
        OSError: the file cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file so that ``path`` holds the old content or the whole new one, after a crash too.

    The caller holds a lock: the bytes are first written to one fixed name next to ``path``.

    Raises:
        OSError: the file cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
