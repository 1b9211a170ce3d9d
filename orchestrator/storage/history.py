"""The rows of a run, or of a sweep's winner, as lines of JSON in its folder. A resume repeats the last ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.storage import disk
from orchestrator.storage.names import HISTORY


def append(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows. Raises OSError."""
    disk.append_lines(folder / HISTORY, (json.dumps(row) + "\n" for row in rows))


def read(folder: Path) -> list[dict[str, Any]]:
    """All rows in the order of writing, without incomplete and damaged lines; empty without the file."""
    return list(disk.json_lines(folder / HISTORY))
