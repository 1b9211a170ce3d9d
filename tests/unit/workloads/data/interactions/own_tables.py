"""A helper that writes tables as a user's files and reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from workloads.data import Interactions
from workloads.data.interactions.tables import read_tables


def read(folder: Path, **files: str | bytes | dict[str, Any]) -> Interactions:
    """Write files, ``train_csv`` as train.csv and a mapping as Parquet, and read them as one dataset."""
    names = []
    for key, held in files.items():
        names.append(key.replace("_", ".", 1))
        path = folder / names[-1].replace("_", ".")
        names[-1] = path.name
        if isinstance(held, dict):
            parquet.write_table(pa.table(held), path)
        else:
            path.write_bytes(held if isinstance(held, bytes) else held.encode())
    return read_tables(folder, tuple(names))
