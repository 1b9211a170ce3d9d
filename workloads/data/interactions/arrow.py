"""Interactions as one Arrow IPC file, memory-mapped without a copy."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from workloads.data.cache import replacing
from workloads.data.interactions.types import Interactions

FORMAT = 3
"""Version of the layout and of what the readers make of a file, in the names of cache files."""

_META = b"interactions"
_NUMBERS = {"int32", "int64", "float32"}


def write_interactions(path: Path, interactions: Interactions) -> None:
    """Write each array as a list column of one row, so that one file has arrays of any lengths.

    Raises:
        OSError: the file cannot be written.
    """
    import numpy as np
    import pyarrow as pa

    lists: dict[str, Any] = {}
    layout: dict[str, Any] = {}
    for name, array in interactions.arrays().items():
        kind = array.dtype.name if array.dtype.name in _NUMBERS else "uint8"  # booleans and text are written as bytes
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)  # not copied: it may be mapped from a file
        size = array.size if kind in _NUMBERS else len(data)
        values = pa.Array.from_buffers(pa.type_for_alias(kind), size, [None, pa.py_buffer(data)])
        lists[name] = pa.LargeListArray.from_arrays([0, size], values)
        layout[name] = {"dtype": array.dtype.str, "shape": array.shape, "crc32": zlib.crc32(data.data)}
    meta = {"n_users": interactions.n_users, "n_items": interactions.n_items, "arrays": layout}
    batch = pa.record_batch(lists)
    schema = batch.schema.with_metadata({_META: json.dumps(meta)})
    with replacing(path) as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch.cast(schema))


def read_interactions(path: Path) -> Interactions | None:
    """Memory-map a file of :func:`write_interactions`; None if it is missing or a checksum differs."""
    import numpy as np
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        meta = json.loads(batch.schema.metadata[_META])
        arrays: dict[str, Any] = {}
        for name, layout in meta["arrays"].items():
            # Not Arrow's to_numpy, which imports pandas.
            listed = batch.column(name).values
            values = listed.buffers()[1].slice(0, listed.nbytes)
            if zlib.crc32(values) != layout["crc32"]:
                return None
            arrays[name] = np.frombuffer(values, layout["dtype"]).reshape(layout["shape"])
        return Interactions(meta["n_users"], meta["n_items"], **arrays)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException):
        return None  # a damaged file raises many kinds of errors; it is written again
