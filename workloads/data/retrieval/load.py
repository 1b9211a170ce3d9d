"""Load collections by name: converted once per machine, memory-mapped once per process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pyarrow as pa

from workloads.data.arrow_lists import read_lists, write_lists
from workloads.data.conversion_cache import cache_path, checked_fingerprint, load_or_convert
from workloads.data.errors import DataError
from workloads.data.retrieval.types import Retrieval, Unknown
from workloads.data.source import Dataset, ReadOptions

FORMAT = 3
"""Version of the layout and of the readers' checks, in the names of cache files."""

_NAMED = 3  # unknown judgements listed in a message


def load_retrieval(name: str, root: Path, unknown: Unknown = "refuse") -> Retrieval:
    """The collection with this name in the data root, after :func:`~workloads.data.datasets.check`.

    The first process converts the files to Arrow in the cache while others wait. Then texts and judgements are
    memory-mapped, and later calls in one process return the same object. A damaged cache file is rebuilt.

    Args:
        name: a name of the catalogue, or an absolute path.
        root: the data root.
        unknown: ``refuse`` a collection with judgements of unknown documents or queries, or ``skip`` those judgements;
            the collection then lists them.

    Raises:
        DataError: the dataset is unknown, of another kind, missing or damaged, or has unknown judgements.
        workloads.data.errors.CacheUnwritable: the cache cannot be written.
    """
    path = cache_path("retrieval", name, checked_fingerprint(name, root, "retrieval"), f"v{FORMAT}.arrow")
    data: Retrieval = load_or_convert(name, root, path, _read, _write)
    if data.n_unknown and unknown == "refuse":
        more = data.n_unknown - len(data.unknown[:_NAMED])
        got = "; ".join(data.unknown[:_NAMED]) + (f" and {more} more" if more else "")
        raise DataError(
            f"judgements of dataset {name} name texts that are not there", got=got,
            fix="Correct them, or set dataset_unknown=skip to leave them out",
        )  # fmt: skip
    return data


def _write(path: Path, data: Retrieval) -> None:
    columns = {
        "doc_ids": data.doc_ids,
        "docs": data.docs,
        "query_ids": data.query_ids,
        "queries": data.queries,
        "judgements": pa.array(data.judgements.ravel()),
        "parts": pa.array(data.parts),
    }
    meta = {"unknown": list(data.unknown), "n_unknown": data.n_unknown, **({"own": True} if data.own else {})}
    write_lists(path, columns, meta)


def _read(path: Path) -> Retrieval | None:
    """Memory-map a file of :func:`_write`; None if it is missing or damaged."""
    if (kept := read_lists(path)) is None:
        return None
    columns, meta = kept
    numbers = {name: columns.pop(name).to_numpy() for name in ("judgements", "parts")}
    return Retrieval(**columns, **{**numbers, "judgements": numbers["judgements"].reshape(-1, 3)}, **meta)


def check(dataset: Dataset, root: Path, options: ReadOptions) -> None:
    """Read a collection that has no checksums, with the run's policy for unknown judgements."""
    load_retrieval(dataset.name, root, cast("Unknown", options.unknown or "refuse"))


def counts(name: str, root: Path) -> Mapping[str, int]:
    """Documents, queries and judgements; the first call on a machine converts the collection."""
    return load_retrieval(name, root, "skip").counts()
