"""The queries of ``calibrate_on``, by which the registered model promises a risk. Imports no PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workloads.abstention.part import Indices, hold_out, one_of_each
from workloads.data.errors import DataError
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.types import PARTS

_PLACES = 0.2
"""Share of the queries that place the thresholds and fit the temperature."""


def calibration_queries(name: str, root: Path, seed: int) -> tuple[Indices, Indices]:
    """The queries that calibrate, and those that place the thresholds: judged ones, one of each family.

    Those of the test part are used only if the collection has no others.

    Raises:
        workloads.data.DataError: the collection is missing, damaged or of another kind, has judgements of unknown
            texts, or fewer than two families of queries with a relevant document.
    """
    data = load_retrieval(name, root, "skip")
    if data.n_unknown:
        raise DataError(
            f"judgements of calibrate_on={name} name texts that are not there", got="; ".join(data.unknown[:3]),
            fix="Correct or remove them",
        )  # fmt: skip
    queries = np.flatnonzero(data.answered & (data.parts != PARTS.index("test")))
    queries = np.setdiff1d(queries if len(queries) else np.flatnonzero(data.answered), data.empty_queries)
    families = len(queries) if data.family is None else len(np.unique(data.family[queries]))
    if families < 2:
        raise DataError(
            f"calibrate_on={name} needs two different judged queries", got=f"{families} with a relevant document"
        )
    parts = hold_out(queries, queries[:0], max(_PLACES, 1 / families), seed, data.family)
    return one_of_each(parts.train, seed, data.family), parts.abstention
