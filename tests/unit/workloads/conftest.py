"""Fixtures: one cache for the tests of the workloads, so that each dataset is converted once, and one thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(request: pytest.FixtureRequest, home: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces each test's empty cache by a shared one, except in tests of reading and converting data."""
    if not request.path.is_relative_to(DATA):
        monkeypatch.setenv("ORCHESTRATOR_CACHE", str(shared_cache))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run PyTorch on one thread, so that sums have one order and small tensors do not wait for other threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
