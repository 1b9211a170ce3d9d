"""From a dataset's name to its interactions: converted once per machine, mapped once per process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from workloads.data.arrow import FORMAT, read_interactions, write_interactions
from workloads.data.cache import cache_dir, file_lock
from workloads.data.datasets import check, dataset, fingerprint, read
from workloads.data.errors import CacheUnwritable, DataError
from workloads.data.interactions import Interactions

_KEPT = 8  # datasets a process keeps mapped


def load_interactions(name: str, root: Path) -> Interactions:
    """The interactions of a dataset under the data root, after :func:`~workloads.data.datasets.check`.

    The first process converts the files to Arrow in the cache while others wait; from then on the arrays are
    memory-mapped, and later calls in one process return the same object. A damaged cache file is rebuilt.

    Raises:
        DataError: the dataset is unknown, of another kind, missing or damaged.
        CacheUnwritable: the cache can not be written.
    """
    known = dataset(name)
    if known.kind != "interactions":
        raise DataError(f"dataset {name!r} has another kind", got=known.kind, expected="interactions")
    check(name, root)
    stem = f"{name}-{fingerprint(name, root)[:32]}-v{FORMAT}"
    return _load(name, root, cache_dir() / "interactions" / f"{stem}.arrow")


@lru_cache(maxsize=_KEPT)
def _load(name: str, root: Path, path: Path) -> Interactions:
    if not dataset(name).files:  # generating is as quick as mapping
        generated: Interactions = read(name, root)
        return generated
    with _explained(path), file_lock(path.with_suffix(".lock")):
        if (mapped := read_interactions(path)) is None:
            write_interactions(path, read(name, root))
            mapped = read_interactions(path)
    if mapped is None:
        raise DataError("the converted dataset can not be read back", file=path, fix="Check the disk")
    return mapped


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheUnwritable(
            f"the cache can not be written ({error.strerror or error})",
            file=path.parent,
            fix="Set ORCHESTRATOR_CACHE to a folder that can be written",
        ) from error
