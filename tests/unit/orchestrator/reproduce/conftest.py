"""The toy workload and its published results, for the tests of reproductions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.reproduce.catalog import all_published
from tests.support import toy_published
from workloads import catalog


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(catalog.BUILT_IN, "toy", toy_published.ENTRY)
    all_published.cache_clear()
    yield
    monkeypatch.undo()
    all_published.cache_clear()
