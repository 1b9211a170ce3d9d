"""Load questions by dataset name: converted once per machine, memory-mapped once per process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from workloads.data.arrow_lists import read_lists, write_lists
from workloads.data.conversion_cache import cache_path, checked_fingerprint, load_or_convert
from workloads.data.questions.types import KIND, GraphQuestions
from workloads.data.source import Dataset, ReadOptions

FORMAT = 1
"""Version of the layout, in the names of cache files."""

_TEXTS = ("ids", "texts", "entities", "relations", "types")
_NUMBERS = ("triples", "graphs", "topic", "hops", "answer", "part", "type", "family")


def load_questions(name: str, root: Path) -> GraphQuestions:
    """The questions with this name in the data root, after :func:`~workloads.data.datasets.check`.

    The first process converts the files to Arrow in the cache while others wait. Then arrays are memory-mapped, and
    later calls in one process return the same object. A damaged cache file is rebuilt.

    Raises:
        DataError: the dataset is unknown, of another kind, missing or damaged.
        workloads.data.errors.CacheUnwritable: the cache cannot be written.
    """
    path = cache_path(
        "questions", name, checked_fingerprint(name, root, KIND, "questions over a graph"), f"v{FORMAT}.arrow"
    )
    data: GraphQuestions = load_or_convert(name, root, path, _read, _write)
    return data


def _write(path: Path, data: GraphQuestions) -> None:
    texts = {name: pa.array(getattr(data, name), pa.large_string()) for name in _TEXTS}
    write_lists(path, {**texts, **{name: pa.array(getattr(data, name).ravel()) for name in _NUMBERS}}, {})


def _read(path: Path) -> GraphQuestions | None:
    if (kept := read_lists(path)) is None or kept[0].keys() != {*_TEXTS, *_NUMBERS}:
        return None
    texts = {name: kept[0][name].to_pylist() for name in _TEXTS}
    numbers = {name: kept[0][name].to_numpy() for name in _NUMBERS}
    return GraphQuestions(**texts, **{**numbers, "triples": numbers["triples"].reshape(-1, 3)})


def check(dataset: Dataset, root: Path, options: ReadOptions) -> None:
    """Read questions that have no checksums."""
    load_questions(dataset.name, root)
