"""Cache of converted datasets: built once per machine, shared by all processes."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from workloads.data.cache import cache_dir, cache_errors, file_lock, replacing
from workloads.data.datasets import check, dataset, fingerprint, read
from workloads.data.errors import DataError
from workloads.memory import BoundedCache

T = TypeVar("T")


def checked_fingerprint(name: str, root: Path, kind: str, called: str = "") -> str:
    """Fingerprint of a dataset, after a check that it is of this kind, present and intact.

    ``called`` is the kind's name in messages.

    Raises:
        DataError: it is unknown, of another kind, missing or damaged.
    """
    entry = dataset(name)
    if entry.kind != kind:
        raise DataError(f"dataset {name!r} has another kind", got=entry.kind, expected=called or kind)
    check(name, root)
    return fingerprint(name, root)


def cache_path(folder: str, name: str, fingerprint: str, ending: str) -> Path:
    """Path in the cache of a converted dataset. The name is for people, the fingerprint identifies the content."""
    short = re.sub(r"[^\w.-]", "-", Path(name).name)
    return cache_dir() / folder / f"{short}-{fingerprint[:32]}-{ending}"


@BoundedCache
def load_or_convert(
    name: str, root: Path, path: Path, mapped: Callable[[Path], Any], write: Callable[[Path, Any], None]
) -> Any:
    """Load the dataset from ``path``, converting it first if the file is missing or damaged.

    ``mapped`` loads the file, or returns None; ``write`` converts. A process keeps the datasets it loaded last.

    Raises:
        DataError: as :func:`~workloads.data.datasets.read`, :func:`check_unchanged` and :func:`build_once`.
        CacheUnwritable: the cache cannot be written.
    """
    if not dataset(name).files:  # generating is as fast as loading
        return read(name, root)

    def make() -> None:
        data = read(name, root)
        check_unchanged(name, root, path.name)
        write(path, data)

    return build_once(path, mapped, make)


def check_unchanged(name: str, root: Path, identity: str) -> None:
    """Check, after a dataset was read, that it has the fingerprint of before.

    ``identity`` is that fingerprint, or the name of a :func:`cache_path` with it.

    Raises:
        DataError: a file changed meanwhile. What was read would be taken for the content of before.
    """
    if fingerprint(name, root)[:32] not in identity:
        raise DataError(
            f"the files of dataset {name} changed while they were read", fix="Start again when nothing writes to them"
        )


def build_once(path: Path, load: Callable[[Path], T | None], make: Callable[[], None]) -> T:
    """Load ``path``, a file or a folder, with ``load``; if that returns None, build it with ``make`` and load again.

    Raises:
        DataError: what was built cannot be loaded.
        CacheUnwritable: the cache cannot be written.
    """
    with cache_errors(path.parent), file_lock(path.with_name(f"{path.name}.lock")):
        if (value := load(path)) is None:
            make()
            value = load(path)
    if value is None:
        raise DataError("what was made of the dataset cannot be read back", file=path, fix="Check the disk")
    return value


def cached_arrays(folder: str, identity: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Arrays by name, cached under a digest of ``identity``.

    Raises:
        CacheUnwritable: the cache cannot be written.
    """
    import numpy as np

    path = cache_dir() / folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.npz"

    def load(path: Path) -> dict[str, Any] | None:
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # ZIP contains a checksum
            return None

    def write() -> None:
        arrays = make()
        with replacing(path) as file:
            np.savez(file, **arrays)

    return build_once(path, load, write)
