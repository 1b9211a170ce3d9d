"""SHA-256 of files, cached so that an unchanged file is read only once."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from workloads.data.cache import cache_dir, file_lock, replacing
from workloads.data.files import files_below, folders_below, opened

LARGE = 10_000
"""Files of a folder from which on a process does not look at each of them again."""

_SETTLED_NS = 2_000_000_000
_FOLDERS: dict[Path, tuple[dict[Path, int], str]] = {}
"""Times of large folders and of those in them, and the digest of all files."""


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex; for a .gz file of its decompressed content, for a folder of all files in it.

    Symbolic links are followed. Files and folders in it whose names begin with a dot do not count.

    Raises:
        OSError: a file cannot be read.
    """
    if path.is_dir():
        files = files_below(path)
        with ThreadPoolExecutor() as pool:
            lines = [f"{file.relative_to(path)} {checksum}" for file, checksum in zip(files, pool.map(sha256, files))]
        return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(path: Path) -> str:
    """:func:`sha256`, from the cache if size and times of the file, or of all files of the folder, have not changed.

    A process looks at the files of a folder with :data:`LARGE` or more of them once; then at the times of its folders,
    which change when a file is added, renamed or removed, but not when one is written over.

    Raises:
        OSError: the file cannot be read. If the cache cannot be written, the digest is computed again next time.
    """
    path = path.resolve()
    if (seen := _FOLDERS.get(path)) and all(_time(folder) == time for folder, time in seen[0].items()):
        return seen[1]
    if not path.is_dir():
        return _digest(path)
    below = [(folder, len(files)) for folder, files in folders_below(path)]
    times = {folder: _time(folder) for folder, _ in below}
    checksum = _digest(path)
    if sum(count for _, count in below) >= LARGE:
        _FOLDERS[path] = times, checksum
    return checksum


def _digest(path: Path) -> str:
    stamp, changed_ns = _stamp(path)
    memo = cache_dir() / "digests" / hashlib.sha256(bytes(path)).hexdigest()[:32]
    if (remembered := _recall(memo, stamp)) is not None:
        return remembered
    with suppress(OSError), file_lock(memo.with_suffix(".lock")):
        if (remembered := _recall(memo, stamp)) is not None:
            return remembered
        checksum = sha256(path)
        # A file written moments ago may change again within one tick of its time stamp.
        if time.time_ns() - changed_ns > _SETTLED_NS:
            with replacing(memo) as file:
                file.write(f"{stamp} {checksum}".encode())
        return checksum
    return sha256(path)


def _time(folder: Path) -> int:
    """Modification time of a folder, in nanoseconds; -1 if it is gone."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return -1


def _stamp(path: Path) -> tuple[str, int]:
    """Sizes and times of a file or of all files in a folder, and the latest time, in nanoseconds."""
    if path.is_dir():
        files = files_below(path)
        stamps = [_stamp(file) for file in files]
        lines = [f"{file.relative_to(path)} {stamp}" for file, (stamp, _) in zip(files, stamps)]
        listed = hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()
        return listed, max((changed_ns for _, changed_ns in stamps), default=0)
    status = path.stat()
    # The change time also moves when a copy or `touch` puts an old modification time back.
    stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    return stamp, max(status.st_mtime_ns, status.st_ctime_ns)


def _recall(memo: Path, stamp: str) -> str | None:
    with suppress(OSError):
        seen, _, checksum = memo.read_bytes().decode(errors="replace").rpartition(" ")
        if seen == stamp and len(checksum) == 64:
            return checksum
    return None
