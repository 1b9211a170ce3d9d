"""Which data a run was trained on, as MLflow's Datasets column shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

DIGEST = 32
"""Hex digits of our fingerprint; MLflow takes 36."""


def dataset(params: Mapping[str, Any], root: Path) -> dict[str, str] | None:
    """Name, digest, source and profile of the parameters' dataset below the data root; None where they name none.

    Raises DataError when it is not there.
    """
    name = params.get("dataset")
    return None if name is None else _described(str(name), root)


@cache
def _described(name: str, root: Path) -> dict[str, str]:
    from workloads.data import datasets

    files = datasets.dataset(name).files
    return {
        "name": name,
        "digest": datasets.fingerprint(name, root)[:DIGEST],
        "source": json.dumps({"uri": name if files else "embedded"}),
        "profile": json.dumps({"files": len(files), "bytes": sum(file.size for file in files), **_counts(name, root)}),
    }


def _counts(name: str, root: Path) -> dict[str, int]:
    """What is counted in it. The first to ask on a machine converts it, as whoever trains on it would."""
    from workloads.data import datasets, load_interactions
    from workloads.data.errors import CacheUnwritable, DataError

    if datasets.dataset(name).kind == "interactions":
        with suppress(DataError, CacheUnwritable):  # who trains will say it
            found = load_interactions(name, root)
            return {
                "users": found.n_users,
                "items": found.n_items,
                "interactions": len(found.train) + len(found.test),
            }
    if datasets.dataset(name).kind == "retrieval":
        from workloads.data.retrieval.load import load_retrieval

        with suppress(DataError, CacheUnwritable):
            return load_retrieval(name, root, "skip").counts()
    return {}
