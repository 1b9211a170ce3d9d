"""A folder that stands for an object storage, and homes that stand for other machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.storage import remote


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def machine(bucket: Path, tmp_path: Path) -> Callable[[str], Path]:
    """The mirror of the storage on the machine ``name``."""
    return lambda name: remote.mirror_of(f"file://{bucket}", tmp_path / name)
