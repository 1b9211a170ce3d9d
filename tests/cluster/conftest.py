"""Fixtures: the topology, started once per session and repaired before each test, and a user of it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.services import postgres_binaries
from tests.cluster.topology import Topology, User


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def running() -> Iterator[Topology]:
    """The whole topology. Tests use ``topology`` instead, which repairs it first."""
    if postgres_binaries() is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    root = Path(tempfile.mkdtemp(prefix="rt-"))  # short: Ray's socket paths have a limit
    try:
        with ExitStack() as stack:
            yield Topology(root, stack)
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def topology(running: Topology) -> Topology:
    """The topology with all its parts running."""
    running.mend()
    return running


@pytest.fixture
def user(
    topology: Topology, home: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[User]:
    """A user of the topology. This process's environment, and so every command's, has its addresses and secrets."""
    for name in list(os.environ):
        if name.startswith(("RAY_", "MLFLOW_")):
            monkeypatch.delenv(name)
    experiment = re.sub(r"\W+", "-", request.node.name)
    for name, value in (topology.client_environment | {"MLFLOW_EXPERIMENT_NAME": experiment}).items():
        monkeypatch.setenv(name, value)
    user = User(topology, home, experiment)
    yield user
    user.leave()
