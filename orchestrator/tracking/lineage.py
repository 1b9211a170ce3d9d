"""The dataset of a run, for MLflow's Datasets column."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from workloads.data import datasets
from workloads.data.errors import CacheUnwritable, DataError

DIGEST = 32
"""Hex digits of the fingerprint that are logged; MLflow allows 36."""


def dataset(params: Mapping[str, Any], root: Path) -> dict[str, str] | None:
    """Name, digest, source and profile of ``params["dataset"]`` below the data root; None without that parameter.

    Raises DataError when the dataset is missing.
    """
    name = params.get("dataset")
    return None if name is None else _described(str(name), root)


def _described(name: str, root: Path) -> dict[str, str]:
    entry = datasets.dataset(name)
    files = entry.files_in(root)
    size = datasets.size_bytes(entry, root)
    return {
        "name": name,
        "digest": datasets.fingerprint(name, root)[:DIGEST],
        "source": json.dumps({"uri": name if files else "embedded"}),
        "profile": json.dumps({"files": len(files), "bytes": size, **_counts(name, root)}),
    }


def _counts(name: str, root: Path) -> Mapping[str, int]:
    """Counts such as users and items; empty when the data cannot be read, which training will report."""
    with suppress(DataError, CacheUnwritable):
        return datasets.counts(name, root)
    return {}
