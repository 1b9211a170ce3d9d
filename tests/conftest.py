"""Fixtures and hooks of all tests: a home for each test, one thread, an initialised store, real data if present."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from orchestrator.storage.settings import NAMES, Settings, embedded_uri, preserve_env, resolve
from orchestrator.tracking import store
from tests.support.held_data import is_held
from tests.support.stores import copy_store
from tests.support.waiting import HANG_SECONDS
from workloads import catalog

if TYPE_CHECKING:
    from orchestrator.tracking.tracker import Tracker
    from tests.support.toy import Clock

PREDICTOR = "../third_party/toy_predictor.py"

# PyTorch reads this when it is imported later. One thread makes results bitwise reproducible and leaves cores to other
# tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# By default Ray runs its workers at niceness 15: on a busy machine a test of them would take many times as long.
os.environ.setdefault("RAY_worker_niceness", "0")

# The tests' servers are on this machine and must not be contacted through a proxy of the user.
for variable in ("no_proxy", "NO_PROXY"):
    os.environ[variable] = ",".join(filter(None, (os.environ.get(variable), "127.0.0.1", "localhost")))

# Rich reads these variables. Without them, help and tables are as wide and as plain as in a pipe on every machine.
for variable in ("COLUMNS", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"):
    os.environ.pop(variable, None)

# Temporary folders are in memory if there is room: on a disk, the tests spend a third of their time waiting for it.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# All workers and runs share one cache of compiled code, and a new one when one of these sources changes: numba itself
# compares a function's own file only. A cache in the test's own folder would be empty.
root = Path(__file__).resolve().parents[1]
recommender = root / "workloads" / "recommender"
sources = [root / "workloads" / "compilation.py", recommender / "compiled_ranking.py"]
sources += sorted((recommender / "sequential").glob("*.py"))
digest = hashlib.blake2b(b"".join(source.read_bytes() for source in sources), digest_size=8).hexdigest()
os.environ.setdefault("NUMBA_CACHE_DIR", str(root / ".cache" / "numba" / digest))

# No time limits for examples: a busy machine must not fail a test.
slow = hypothesis.HealthCheck.too_slow
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[slow])
hypothesis.settings.load_profile("patient")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the objects that imports create during the collection of tests from garbage collection.

    Checking them, during the imports and in each later collection, took a tenth of all the tests' time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Exempt the objects that the imports of a file's tests create, too."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # otherwise extension modules report all frozen objects as leaked


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose real data are missing; ``data("NAME")`` names the datasets that the test needs."""
    if not item.get_closest_marker("data"):
        return
    if not (held := os.environ.get("ORCHESTRATOR_DATA")):
        pytest.skip("ORCHESTRATOR_DATA is unset")
    for mark in item.iter_markers("data"):
        for name in mark.args:
            if not is_held(name, held):
                pytest.skip(f"ORCHESTRATOR_DATA holds no {name}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With ORCHESTRATOR_NO_SKIP=1, set where real data and services must be present, a skipped test of them fails."""
    report = yield
    needs_real = any(item.get_closest_marker(name) for name in ("data", "cluster"))
    if report.skipped and needs_real and os.environ.get("ORCHESTRATOR_NO_SKIP") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped although ORCHESTRATOR_NO_SKIP=1: {report.longreprtext}"
    return report


# A job that a shell starts in the background ignores Ctrl-C, and every process that it starts inherits this.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own home and cache. Of the user's settings, only the location of the real data is visible."""
    for variable, _ in NAMES.values():
        if variable != "ORCHESTRATOR_DATA":
            monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "home"


@pytest.fixture
def settings(home: Path) -> Settings:
    """The settings of this test's home, without tracking."""
    return resolve({"tracking": "none"})


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """Disable fsync: test files need not survive a power cut, and a journal would sync the disk at each line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def initialised_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow store. Its schema takes seconds to create, so it is created once for all workers and copied."""
    from mlflow.store.db import utils
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    event.listen(Engine, "connect", _never_wait_for_the_disk)
    # A version of MLflow that has this function reads all its migrations for each store that is opened.
    if latest_revision := getattr(utils, "_get_latest_schema_revision", None):
        utils._get_latest_schema_revision = cache(latest_revision)
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "store"
    store.ensure(embedded_uri(home), home)
    return home / "mlflow.db"


def _never_wait_for_the_disk(connection: object, _: object) -> None:
    """Disable synchronous writes: a store of the tests need not survive a power cut."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


@pytest.fixture
def database(home: Path, initialised_store: Path) -> Path:
    """The SQLite file of this test's embedded store, with its schema."""
    return copy_store(initialised_store, home)


@pytest.fixture
def open_tracker(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Tracker]]:
    """Opens writers of one run folder, on the embedded store unless another ``uri`` is given.

    Sending has no short time limit unless a test sets one.
    """
    from orchestrator.tracking.tracker import Tracker
    from tests.support.tracked import OWNER, abandon

    for method in (Tracker.flush, Tracker.close):
        monkeypatch.setattr(method, "__defaults__", (HANG_SECONDS,))
    opened: list[Tracker] = []

    def begin(*, resuming: bool = False, uri: str | None = None, folder: Path = tmp_path, **more: Any) -> Tracker:
        artifacts, address = None if uri else tmp_path / "artifacts", uri or f"sqlite:///{database}"
        opened.append(Tracker(address, "toy", OWNER, folder, artifacts=artifacts, resuming=resuming, **more))
        return opened[-1]

    yield begin
    for tracker in opened:
        abandon(tracker)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock for the engine and the toy's slow epochs. Its time advances only in ``sleep``."""
    from orchestrator.engine import loop
    from tests.support import toy

    clock = toy.Clock()
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(toy, "time", clock)
    return clock


@pytest.fixture
def toy_workload(monkeypatch: pytest.MonkeyPatch) -> str:
    """The catalog's name of the toy, as if a third party had installed it."""
    entry = catalog.Entry(
        "tests.support.toy:Params", "tests.support.toy:Toy", "One number on a parabola.", predictor=PREDICTOR
    )
    monkeypatch.setitem(catalog.BUILT_IN, "toy", entry)
    if upload := sys.modules.get("orchestrator.runs.model_upload"):
        upload._installed.cache_clear()  # another test may have filled this cache without the toy
    return "toy"


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run writes neither its report page, whose plots take time, nor a patch of the developer's working tree."""
    from orchestrator.provenance import record
    from orchestrator.report import report

    monkeypatch.setattr(report, "write_page", lambda *of: None)
    monkeypatch.setattr(record, "sources", lambda **of: ())


@pytest.fixture(autouse=True)
def mlflow_as_it_was() -> Iterator[None]:
    """MLflow keeps the store of a fluent call in globals and in the environment; both are reset after each test."""
    with preserve_env("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        yield
        if mlflow := sys.modules.get("mlflow"):
            mlflow.set_tracking_uri(None)
            mlflow.set_registry_uri(None)
