"""Values of the objective for each unit of the validation split, a line a seed run, in a file next to the study.

Selection and its uncertainty are computed from them. At most :data:`MOST` units are kept, the same ones of every trial.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.storage import disk

if TYPE_CHECKING:
    import numpy as np

    from workloads.contract import Columns

UNITS = "units.jsonl"
MOST = 4000

Encoded = Mapping[str, Any]
"""Values of a seed run as JSON: number of units, digest of their ids, values in base64."""


@dataclass(frozen=True)
class UnitValues:
    """``values``, (at most :data:`MOST`,) float32, of ``total`` units. Those with equal ``ids`` can be paired."""

    total: int
    ids: str
    values: np.ndarray[Any, Any]


def encode(units: Columns, value: float | None) -> Encoded | None:
    """The values of ``units``, whose columns are ``id`` and the objective. None if ``value`` is not their mean."""
    import numpy as np

    ids, values = units.values()
    column = np.asarray(values, dtype=np.float64)
    if value is None:
        return None
    if len(column) < 2 or not np.isfinite(column).all() or not math.isclose(column.mean(), value, rel_tol=1e-4):
        return None
    digest = hashlib.sha256(b"\n".join(str(unit).encode() for unit in np.asarray(ids).tolist())).hexdigest()
    kept = np.sort(np.random.default_rng(0).permutation(len(column))[:MOST])
    text = base64.b64encode(column[kept].astype("<f4").tobytes()).decode()
    return {"total": len(column), "ids": digest[:16], "values": text}


def decode(row: Encoded) -> UnitValues:
    """The values that :func:`encode` made. Raises KeyError, TypeError or ValueError."""
    import numpy as np

    values = np.frombuffer(base64.b64decode(row["values"]), dtype="<f4").astype(np.float64)
    return UnitValues(int(row["total"]), str(row["ids"]), values)


def write(folder: Path, trial: int, seed: int, encoded: Encoded) -> None:
    """Append the values of a seed run. When the disk is full, only they are lost."""
    line = json.dumps({"trial": trial, "seed": seed, **encoded}) + "\n"
    with suppress(OSError):
        disk.append_lines(folder / UNITS, [line])


def size(folder: Path) -> int:
    """Size of the file in bytes. It grows with each seed run."""
    with suppress(OSError):
        return (folder / UNITS).stat().st_size
    return 0


def read(folder: Path) -> dict[tuple[int, int], UnitValues]:
    """The values by (trial, seed); of repeated lines the last one counts. Damaged lines are skipped."""
    values: dict[tuple[int, int], UnitValues] = {}
    for row in disk.json_lines(folder / UNITS):
        with suppress(ValueError, KeyError, TypeError):
            values[row["trial"], row["seed"]] = decode(row)
    return values
