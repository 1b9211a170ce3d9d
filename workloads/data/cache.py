"""Folders of datasets and of their converted forms, and the locks by which processes share them."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, urlsplit

from workloads.data.errors import CacheUnwritable, DataError

STAGED = "staged"
"""Folder in the cache with copies of datasets in object stores."""


def cache_dir() -> Path:
    """``$ORCHESTRATOR_CACHE``, else ``$XDG_CACHE_HOME/orchestrator``, else ``~/.cache/orchestrator``.

    Raises:
        DataError: the user has no home folder.
    """
    if own := os.environ.get("ORCHESTRATOR_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "orchestrator"
    try:
        return Path("~/.cache/orchestrator").expanduser()
    except RuntimeError:  # HOME is unset, and the user has no entry in the system's list
        raise DataError(
            "the cache has no place, since the user has no home folder",
            fix="Set ORCHESTRATOR_CACHE to a folder that can be written",
        ) from None


def default_data_root() -> Path:
    """The data root, with a folder for each dataset: ``$ORCHESTRATOR_DATA``, else ``data`` in the cache.

    A URI's is that of its copy on this node (:mod:`workloads.data.stores`).
    """
    if root := os.environ.get("ORCHESTRATOR_DATA"):
        return staged_path(root) if is_uri(root) else Path(root).expanduser()
    return cache_dir() / "data"


def is_uri(name: str) -> bool:
    """Whether a dataset or data root is in an object store."""
    return "://" in name and not name.startswith("file://")


def staged_path(uri: str) -> Path:
    """Path of this node's copy of a dataset or data root in an object store (:mod:`workloads.data.stores`).

    Raises:
        DataError: the URI has no bucket, or more than scheme, bucket and prefix.
    """
    parts = urlsplit(uri.strip())
    path = parts.path.strip("/")
    if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment or ".." in path.split("/"):
        raise DataError(
            "the address of a dataset is not valid", expected="s3://BUCKET/PREFIX",
            fix="Credentials and endpoint come from the environment: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL_S3",
        )  # fmt: skip
    bucket = quote(f"{parts.scheme}://{parts.netloc}", safe="").replace("~", "%7E").replace("%", "~")
    return cache_dir() / STAGED / bucket / path


def local_path(name: str) -> Path:
    """The path that a dataset is named by; for a URI, that of its copy on this node. Raises DataError."""
    return staged_path(name) if is_uri(name) else Path(name)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``, which one thread of one process on this machine can hold at a time.

    The kernel releases the lock when its holder dies. The empty file stays: if it were removed, a process that waits
    for the old file and another that creates a new file would both hold the lock.

    Raises:
        OSError: the file cannot be created, or not be read.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or not path.exists():
            raise
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # of another user, or on a read-only mount
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file atomically: ``path`` has the old content or the whole new one, also after a crash.

    The caller must hold a lock, since the temporary file next to ``path`` has a fixed name.

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


@contextmanager
def cache_errors(folder: Path, what: str = "the cache") -> Iterator[None]:
    """Convert write errors of a folder of the cache to CacheUnwritable, which names ``what``."""
    try:
        yield
    except OSError as error:
        raise CacheUnwritable(
            f"{what} cannot be written ({error.strerror or error})",
            file=folder,
            fix="Free space, or set ORCHESTRATOR_CACHE to a folder that can be written",
        ) from error
