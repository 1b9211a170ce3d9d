"""Which of the real datasets a data root holds."""

from __future__ import annotations

from pathlib import Path

from workloads.data import DATASETS
from workloads.data.files import plain_or_gz


def is_held(name: str, root: str) -> bool:
    """Whether a data root has all files of a dataset. One in an object store is not looked into: it counts as whole."""
    if "://" in root:
        return True
    entry, folder = DATASETS[name], Path(root).expanduser()
    return all(plain_or_gz(entry.folder_in(folder) / source.path).exists() for source in entry.files_in(folder))
