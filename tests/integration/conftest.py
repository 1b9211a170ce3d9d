"""Fixtures of the tests of whole commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import THIRD_PARTY, Start, starting
from workloads import catalog

HERE = Path(__file__).parent


LONGEST = ("groups", "jobs", "crash", "vera", "lifelong", "prediction", "promotion", "placement", "published")
"""Files that start first, so that no long file runs alone at the end. A worker receives a file of one test
together with the next file, so a short file follows the longest."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}.py": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)) if item.path.parent == HERE else -1)


@pytest.fixture
def start(home: Path, database: Path) -> Iterator[Start]:
    """Starts ``orchestrator`` with the given words; a command that still runs at the test's end is killed."""
    with starting(home) as begin:
        yield begin


@pytest.fixture
def third_party(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the toy workload in this process too."""
    monkeypatch.syspath_prepend(THIRD_PARTY)
    catalog.offered.cache_clear()
    yield
    catalog.offered.cache_clear()
