"""What a dataset is: its files at their official source and the function that reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: its path in the dataset's folder, size in bytes, SHA-256 in hex, official URL."""

    path: str
    size: int
    sha256: str
    url: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset by name. Its files lie in ``<data root>/<name>/``; a generated one has none.

    ``kind`` names what ``reader`` returns (``interactions``:
    :class:`~workloads.data.interactions.Interactions`). ``reader`` takes the dataset's folder, raises
    :class:`~workloads.data.errors.DataError` with file and line where the content is damaged, and does not
    look at checksums. ``version`` changes whenever the reader makes something else of the same files; for a
    generated dataset it holds all parameters.
    """

    name: str
    summary: str
    kind: str
    version: str
    reader: Callable[[Path], Any]
    files: tuple[SourceFile, ...] = ()
