"""The columns of a served model's input for candidates of a pool."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.contract import Columns
from workloads.vera.features import Pool

ENDS = ("subject", "object")
"""Columns of a graph's entities, which only message passing needs."""


def input_columns(pool: Pool, query: int, count: int | None = None) -> Columns:
    """The first ``count`` candidates of a query, by default all: texts and features, (n,) each."""
    first = int(pool.indptr[pool.list_of[query]])
    length = int(pool.lengths[query])
    rows = np.arange(first, first + (length if count is None else min(count, length)))
    names = np.array(pool.categories, object)
    columns: dict[str, NDArray[np.generic]] = {
        "query": np.array([pool.queries[query]] * len(rows), object),
        "candidate": np.array([pool.texts[text] for text in pool.text[rows]], object),
    }
    if pool.ends is not None:
        for column, name in enumerate(ENDS):
            columns[name] = np.array([pool.entities[entity] for entity in pool.ends[rows, column].tolist()], object)
    columns |= {name: names[pool.codes[rows, column]] for column, name in enumerate(pool.code_names)}
    return columns | {name: pool.numbers[rows, column] for column, name in enumerate(pool.number_names)}
