"""Datasets in object stores: copied to a folder of the node once, where its processes find them as files.

The copy of ``s3://BUCKET/PREFIX`` is ``staged/BUCKET/PREFIX`` in the cache, with the bucket's address as one name, so
that a path says what it is a copy of. Credentials and endpoint come from the environment, as for storages.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from glob import escape
from io import BufferedWriter
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from workloads.data.cache import STAGED, cache_errors, file_lock, replacing, staged_path
from workloads.data.errors import DataError, DataUnreachable

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

CONNECT_SECONDS, REQUEST_SECONDS, ATTEMPTS = 5.0, 60.0, 5
PARALLEL = 8
PROGRESS_SECONDS = 5.0

_CHUNK = 1 << 22


def uri_of(path: Path) -> str | None:
    """What a path is the copy of; None for a path that is no copy."""
    for parent in (path, *path.parents):
        if parent.parent.name == STAGED and "~3A~2F~2F" in parent.name:
            bucket = unquote(parent.name.replace("~", "%"))
            below = path.relative_to(parent).as_posix()
            return bucket if below == "." else f"{bucket}/{below}"
    return None


def here(path: Path) -> Path:
    """A path of another node on this one, whose cache may be elsewhere."""
    uri = uri_of(path)
    return path if uri is None else staged_path(uri)


def is_staged(path: Path) -> bool:
    """Whether the copy at ``path`` is complete."""
    return _mark(path).exists() and path.exists()


_staged: set[Path] = set()


def stage(path: Path) -> None:
    """Copy what ``path`` is the copy of, an object or all objects below it, unless that is done.

    One process of the node copies while others wait. A copy that was cut off is continued: files that have the object's
    size and time, and the first part of one, are not fetched again. Progress is printed to stderr. A complete copy is
    not compared with the store again: remove the folder to have it fetched.

    Raises:
        DataUnreachable: the store does not answer, or the transfer is interrupted.
        DataError: there is nothing at this address.
        CacheUnwritable: the copy cannot be written.
    """
    uri = uri_of(path)
    if uri is None or path in _staged:
        return
    if not is_staged(path):
        with cache_errors(path, "the copy of a dataset"), file_lock(path.with_name(f".{path.name}.lock")):
            if not is_staged(path):  # another process may have copied it
                _copy(uri, path)
    _staged.add(path)


def file_system(uri: str, *, connect: float, request: float, attempts: int) -> tuple[FileSystem, str]:
    """File system of a URI, and the path in it.

    Args:
        connect, request: time limits in seconds.
        attempts: number of times that a failed request is made.

    Raises:
        OSError: the scheme is not supported, or the store does not answer.
    """
    from pyarrow.fs import AwsStandardS3RetryStrategy, FileSystem, S3FileSystem, resolve_s3_region

    if not uri.startswith("s3://"):
        try:
            system, path = FileSystem.from_uri(uri)
        except (ValueError, ImportError, NotImplementedError) as error:  # this build does not support the scheme
            raise OSError(str(error)) from None
        return system, path
    bucket = uri.removeprefix("s3://")
    options: dict[str, Any] = {}
    if endpoint := s3_endpoint():
        parts = urlsplit(endpoint)
        options = {"endpoint_override": f"{parts.netloc}{parts.path.rstrip('/')}", "scheme": parts.scheme}
    try:
        region = s3_region() or resolve_s3_region(bucket.partition("/")[0])
        system = S3FileSystem(
            region=region,
            connect_timeout=connect,
            request_timeout=request,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=attempts),
            allow_delayed_open=True,  # a small object is one request
            **options,
        )
    except ValueError as error:
        raise OSError(str(error)) from None
    return system, bucket


def s3_endpoint() -> str | None:
    """URL of the endpoint from the environment; None for AWS."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return endpoint if not endpoint or "://" in endpoint else f"https://{endpoint}"


def s3_region() -> str | None:
    """Region from the environment; any for another endpoint than AWS; None to ask the bucket."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return region or ("us-east-1" if s3_endpoint() else None)


def _mark(path: Path) -> Path:
    """File that says that the copy is complete."""
    return path.with_name(f".{path.name}.staged")


def _copy(uri: str, path: Path) -> None:
    system, base = _reach(
        uri, lambda: file_system(uri, connect=CONNECT_SECONDS, request=REQUEST_SECONDS, attempts=ATTEMPTS)
    )
    entries = _reach(uri, lambda: _entries(system, base))
    if not entries:
        raise DataError(f"there is nothing at {uri}", fix="Correct the address, or upload the dataset")
    progress = _Progress(uri, sum(entry.size for entry in entries), len(entries))
    with ThreadPoolExecutor(PARALLEL) as pool:
        copied = [pool.submit(_fetch, system, entry, _target(path, base, entry), progress) for entry in entries]
        try:
            for each in copied:
                _reach(uri, each.result)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    progress.end()
    sizes = {_target(path, base, entry).relative_to(path.parent).as_posix(): entry.size for entry in entries}
    for part in path.parent.glob(f".{escape(path.name)}.*.part") if path.is_file() else path.rglob(".*.part"):
        if part.relative_to(path.parent).as_posix() not in sizes:
            part.unlink()  # of an object that was replaced during an earlier copy
    with replacing(_mark(path)) as file:
        file.write(json.dumps({"uri": uri, "files": sizes}).encode())


def _entries(system: FileSystem, base: str) -> list[FileInfo]:
    """The object at ``base``, or all objects below it."""
    from pyarrow.fs import FileSelector

    entry = system.get_file_info(base)
    if entry.is_file:
        return [entry]
    below = system.get_file_info(FileSelector(base, recursive=True, allow_not_found=True))
    return [entry for entry in below if entry.is_file]


def _target(path: Path, base: str, entry: FileInfo) -> Path:
    """Where an object is copied to. Raises DataError for a key that would lead out of the copy's folder."""
    if entry.path == base:
        return path
    parts = entry.path[len(base) + 1 :].split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        raise DataError(f"{entry.path} is not a path below the dataset's folder", fix="Remove the object")
    return path.joinpath(*parts)


def _fetch(system: FileSystem, entry: FileInfo, target: Path, progress: _Progress) -> None:
    """Copy an object, from where an earlier copy of it ended."""
    if target.is_file() and _is_copy(target, entry):
        progress.add(entry.size, files=1)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{entry.mtime_ns or 0}.part")  # of this version of the object
    had = part.stat().st_size if part.exists() else 0
    if had > entry.size:
        part.unlink()
        had = 0
    progress.add(had)
    with system.open_input_file(entry.path) as source, _appended(part) as file:
        source.seek(had)
        while had < entry.size and (chunk := source.read(_CHUNK)):
            with _on_disk(part):
                file.write(chunk)
            had += len(chunk)
            progress.add(len(chunk))
        with _on_disk(part):
            file.flush()
            os.fsync(file.fileno())
    if had != entry.size:
        raise EOFError(f"{entry.path} ends after {had} of {entry.size} bytes")
    if entry.mtime_ns:
        os.utime(part, ns=(entry.mtime_ns, entry.mtime_ns))
    part.replace(target)
    progress.add(0, files=1)


def _is_copy(target: Path, entry: FileInfo) -> bool:
    """Whether a file has the size and, in seconds, the time of an object: that of this version of it."""
    had = target.stat()
    return had.st_size == entry.size and (not entry.mtime_ns or had.st_mtime_ns // 10**9 == entry.mtime_ns // 10**9)


@contextmanager
def _appended(part: Path) -> Iterator[BufferedWriter]:
    with _on_disk(part):
        file = part.open("ab")
    try:
        yield file
    finally:
        with _on_disk(part):
            file.close()


@contextmanager
def _on_disk(file: Path) -> Iterator[None]:
    """Name the file in an OSError, as a store's errors do not."""
    try:
        yield
    except OSError as error:
        error.filename = str(file)
        raise


def _reach(uri: str, request: Callable[[], Any]) -> Any:
    """The result of a request; DataUnreachable for an error of the store, OSError for one of this machine's disk."""
    try:
        return request()
    except (OSError, EOFError) as error:
        if getattr(error, "filename", None) is not None:
            raise
        reason = " ".join(str(error).split())[:300]
        raise DataUnreachable(
            f"the dataset at {uri} cannot be fetched: {reason}",
            fix="Check address, endpoint and credentials; what has arrived is kept, and the next start continues",
        ) from error


class _Progress:
    """Prints, every few seconds, how much of a dataset has arrived."""

    def __init__(self, uri: str, total: int, files: int) -> None:
        self._uri = uri
        self._total = total
        self._files = files
        self._done = 0
        self._complete = 0
        self._printed = time.monotonic()
        self._shown = False
        self._lock = Lock()

    def add(self, count: int, files: int = 0) -> None:
        """Count bytes and files that have arrived."""
        with self._lock:
            self._done += count
            self._complete += files
            if time.monotonic() - self._printed >= PROGRESS_SECONDS:
                self._print()

    def end(self) -> None:
        """Print the last line, if there was one before."""
        if self._shown:
            self._print()

    def _print(self) -> None:
        self._printed = time.monotonic()
        self._shown = True
        megabytes = f"{self._done / 1e6:,.0f} of {self._total / 1e6:,.0f} MB"
        print(f"{self._uri}: {megabytes}, {self._complete:,} of {self._files:,} files", file=sys.stderr, flush=True)
