"""Arrays of any lengths and kinds as one Arrow IPC file, memory-mapped without a copy."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from workloads.data.cache import replacing

_META = b"lists"


def write_lists(path: Path, columns: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Write each array as a list column of one row.

    Args:
        path: the caller holds a lock on it.
        columns: Arrow arrays by name.
        meta: further values, written as JSON.

    Raises:
        OSError: the file cannot be written.
    """
    lists = {name: pa.LargeListArray.from_arrays([0, len(values)], values) for name, values in columns.items()}
    batch = pa.record_batch(lists)
    crc32 = {name: _crc32(batch.column(name).values) for name in columns}
    schema = batch.schema.with_metadata({_META: json.dumps({"crc32": crc32, "meta": dict(meta)})})
    with replacing(path) as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch.cast(schema))


def read_lists(path: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Memory-map a file of :func:`write_lists`. Returns arrays and meta; None if it is missing or damaged."""
    try:
        with pa.memory_map(str(path)) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        kept = json.loads(batch.schema.metadata[_META])
        columns = {name: batch.column(name).values for name in kept["crc32"]}
        intact = all(_crc32(columns[name]) == crc32 for name, crc32 in kept["crc32"].items())
        return (columns, dict(kept["meta"])) if intact else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException):
        return None  # a damaged file raises many kinds of errors; it is written again


def _crc32(values: Any) -> int:
    checksum = 0
    for buffer in values.buffers():
        if buffer is not None:
            checksum = zlib.crc32(buffer, checksum)
    return checksum
