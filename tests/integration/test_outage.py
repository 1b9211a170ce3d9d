"""MLflow is stopped during a real sweep: training does not wait, no row is lost, and ``sync`` delivers the rest.

The toy workload spends its time sleeping, so a trial that waits for MLflow shows as a gap between its epochs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.tracking.tracker import JOURNAL
from tests.support.clusters import logical
from tests.support.commands import SPACES, Command, Start, Store
from tests.support.tracked import Server

EPOCH_SECONDS = 0.2
CONCURRENT, TRIALS = 4, 8


@pytest.fixture
def server(tmp_path: Path, initialised_store: Path) -> Iterator[Server]:
    folder = tmp_path / "server"
    folder.mkdir()
    running = Server(folder, initialised_store)
    running.wait()
    yield running
    running.kill()


def words(epochs: int) -> list[str]:
    searched = ["--space", f"{SPACES}:space", "--scheduler", "none", "--trials", str(TRIALS)]
    return ["sweep", "toy", *searched, f"epochs={epochs}", f"slow={EPOCH_SECONDS}"]


def said_of_mlflow(command: Command) -> list[str]:
    starts = ("MLflow", "Not everything was sent to MLflow")
    return [line for line in command.text().splitlines() if line.startswith(starts) or "not be logged" in line]


def kept_rows(home: Path) -> int:
    """The number of epochs that wait on disk for MLflow."""
    (journal,) = home.glob(f"storage/*/{JOURNAL}")
    operations = [json.loads(line) for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return sum(len(operation.get("rows", ())) for operation in operations)


def run_folder(home: Path) -> Path:
    """The folder of the only run. Names with a leading dot belong to the storage."""
    (folder,) = home.glob("storage/[!.]*")
    return folder


@pytest.mark.faults
@pytest.mark.parametrize(
    ("away", "epochs"), [pytest.param(5, 20, id="5s"), pytest.param(30, 150, id="30s", marks=pytest.mark.long)]
)
def test_training_never_waits_for_mlflow(
    away: int, epochs: int, server: Server, home: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(server.database.parent)
    with logical(monkeypatch, [{"num_cpus": CONCURRENT}]) as address:
        sweep = start(*words(epochs), "--tracking", server.uri, "--ray-address", address)
        sweep.until(lambda: len([key for key in store.steps() if "/" in key]) == CONCURRENT)
        server.kill()
        before = {key: max(steps) for key, steps in store.steps().items()}
        time.sleep(away)
        sweep.until(lambda: kept_rows(home) >= CONCURRENT * away / EPOCH_SECONDS / 2)
        assert {key: max(steps) for key, steps in store.steps().items()} == before, (
            "no row can arrive while MLflow is down"
        )
        server.start()
        assert sweep.end() == 0, sweep.text()
    assert said_of_mlflow(sweep) == []
    store.check()
    store.check_trials(TRIALS, epochs)
    assert {status for (status,) in store.query("select status from runs")} == {"FINISHED"}


@pytest.mark.faults
@pytest.mark.long
def test_sync_delivers_a_sweep_that_ended_during_an_mlflow_outage(
    server: Server, home: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs, store = 10, Store(server.database.parent)
    with logical(monkeypatch, [{"num_cpus": CONCURRENT}]) as address:
        sweep = start(*words(epochs), "--register", "kept", "--tracking", server.uri, "--ray-address", address)
        sweep.until(lambda: len([key for key in store.steps() if "/" in key]) == CONCURRENT)
        server.kill()
        logged = sync_after(sweep, server, home, start)
    assert {"sweep.json", "spec.json", "outcome.json", "trials.csv", "best.json", "report.html"} <= logged
    store.check_trials(TRIALS, epochs)


@pytest.mark.faults
@pytest.mark.long
def test_sync_delivers_a_run_that_ended_during_an_mlflow_outage(server: Server, home: Path, start: Start) -> None:
    store = Store(server.database.parent)
    run = start("run", "toy", "--local", "epochs=20", "slow=0.1", "--register", "kept", "--tracking", server.uri)
    run.until(store.steps)
    server.kill()
    logged = sync_after(run, server, home, start)
    assert {"spec.json", "outcome.json", "environment.json", "test_units.parquet"} <= logged
    assert store.steps() == {run_folder(home).name: list(range(1, 21))}


@pytest.mark.faults
@pytest.mark.long
def test_sync_registers_session_models_of_a_run_ended_in_an_outage(server: Server, home: Path, start: Start) -> None:
    store = Store(server.database.parent)
    settings = ("max_length=16", "split_sessions=1", "n_new=2", "candidates=8", "epochs=2", "steps_per_epoch=2")
    run = start("run", "lifelong", *settings, "--local", "--register", "kept", "--tracking", server.uri)
    run.until(store.steps)
    server.kill()
    assert run.end() == 0, run.text()
    server.start()
    server.wait()
    sync = start("sync", "latest")
    assert sync.end() == 0, sync.text()
    assert "registered as models:/kept/2" in sync.text()
    query = "select version, value from model_version_tags where name = 'kept' and key = '{}' order by version"
    assert store.query(query.format("session")) == [(1, "0"), (2, "1")]
    assert store.query(query.format("orchestrator.parent")) == [(2, "1")]
    folder = run_folder(home)
    assert not (folder / "sealed").exists()
    store.check()


def sync_after(command: Command, server: Server, home: Path, start: Start) -> set[str]:
    """Wait for the end of a command without MLflow, check ``sync``, and return the names of the run's artifacts."""
    assert command.end() == 0, command.text()
    ended, store = time.time(), Store(server.database.parent)
    folder = run_folder(home)
    *_, told = said_of_mlflow(command)  # on a slow machine another line precedes: no answer of MLflow
    assert f"orchestrator sync {folder.name}" in told
    assert json.loads((folder / "record.json").read_text())["status"] == "finished"

    too_early = start("sync", "latest")
    assert too_early.end() == 3, too_early.text()
    assert f"No MLflow answers at {server.uri}" in too_early.text()
    assert (folder / JOURNAL).exists()

    server.start()
    server.wait()
    for said in ("uploaded; registered as models:/kept/1", "everything is uploaded"):
        sync = start("sync", "latest")
        assert sync.end() == 0, sync.text()
        assert sync.text().strip() == f"{folder.name}: {said}"
    assert not (folder / JOURNAL).exists()
    store.check()
    runs = store.query("select status, end_time from runs")
    assert {status for status, _ in runs} == {"FINISHED"}
    assert all(end < 1000 * ended for _, end in runs), "the end time is that of the run, not of its delivery"
    ((source, run_id),) = store.query("select source, run_id from model_versions where name = 'kept'")
    record = json.loads((folder / "record.json").read_text())
    assert (record["run_id"], record["result"]["model_uri"]) == (run_id, source)
    assert record["result"]["registered_version"] == "1"
    return {file.name for file in server.database.parent.glob(f"*/{run_id}/artifacts/*")}


@pytest.mark.faults
def test_repeated_sync_creates_no_second_model_or_version(server: Server, home: Path, start: Start) -> None:
    """The last step of the first sync is undone: sync finds the existing model."""
    store = Store(server.database.parent)
    run = start("run", "toy", "--local", "epochs=3", "--register", "kept", "--tracking", server.uri)
    assert run.end() == 0, run.text()
    folder = run_folder(home)
    record = json.loads((folder / "record.json").read_text())
    assert record["owed"] is None
    before = store.query("select run_uuid, status, end_time from runs")
    (folder / "record.json").write_text(json.dumps(record | {"owed": {"outcome": ".", "register": "kept"}}))
    sync = start("sync", "latest")
    assert sync.end() == 0, sync.text()
    assert sync.text().strip() == f"{folder.name}: uploaded; registered as models:/kept/1"
    assert store.query("select count(*) from model_versions") == [(1,)]
    assert store.query("select count(*) from logged_models") == [(1,)]
    assert store.query("select run_uuid, status, end_time from runs") == before
