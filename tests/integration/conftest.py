"""What the tests of whole commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import THIRD_PARTY, Start, starting
from workloads import catalog


@pytest.fixture
def start(home: Path, database: Path) -> Iterator[Start]:
    """Starts ``orchestrator`` with some words; whatever still runs at the test's end is killed."""
    with starting(home) as begin:
        yield begin


@pytest.fixture
def third_party(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toy workload is installed in this process too."""
    monkeypatch.syspath_prepend(THIRD_PARTY)
    catalog.catalog.cache_clear()
    yield
    catalog.catalog.cache_clear()
