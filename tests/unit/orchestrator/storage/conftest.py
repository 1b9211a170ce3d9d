"""An object storage that a folder stands for, and other machines that other homes stand for."""

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
    """The storage as the machine ``name`` sees it."""
    return lambda name: remote.mirror_of(f"file://{bucket}", tmp_path / name)
