"""The writer on a real store and a real server: each value once, whatever dies, and never in training's way."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator import mlflow_client, tracking
from orchestrator.engine import Row
from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.tracking import JOURNAL, Tracker

OWNER = "toy-20261121-083000-ab12"
NOWHERE = "http://127.0.0.1:9"  # the discard port: refused at once


class Server:
    """A real ``mlflow server`` on a copy of the initialised store; it can be killed and come back."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.database = folder / "server.db"
        with closing(sqlite3.connect(store)) as connection:
            connection.execute("VACUUM INTO ?", (str(self.database),))
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            self._port = unused.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._folder = folder
        self.start()

    def start(self) -> None:
        words = ["server", "--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        places = ["--backend-store-uri", f"sqlite:///{self.database}", "--artifacts-destination", str(self._folder)]
        with (self._folder / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", *words, *places],
                stdout=log, stderr=log, cwd=self._folder, start_new_session=True,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )  # fmt: skip

    def wait(self) -> str:
        """Its address, once it answers."""
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                    return self.uri
            except OSError:
                time.sleep(0.1)
        raise AssertionError((self._folder / "server.log").read_text())

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory, initialised_store: Path) -> Iterator[Server]:
    """Started first and used last: it takes seconds to answer, while the tests on SQLite run."""
    running = Server(tmp_path_factory.mktemp("server"), initialised_store)
    yield running
    running.kill()


@pytest.fixture
def open_tracker(database: Path, tmp_path: Path) -> Iterator[Callable[..., Tracker]]:
    """Opens writers of one run folder, on the embedded store unless another ``uri`` is given."""
    opened: list[Tracker] = []

    def begin(*, resuming: bool = False, uri: str | None = None) -> Tracker:
        artifacts, address = None if uri else tmp_path / "artifacts", uri or f"sqlite:///{database}"
        opened.append(Tracker(address, "toy", OWNER, tmp_path, artifacts=artifacts, resuming=resuming))
        return opened[-1]

    yield begin
    for tracker in opened:
        tracker._closing.set()
        tracker._deadline = 0


def row(epoch: int, **metrics: float) -> Row:
    return Row(epoch, 1_700_000_000.25 + epoch, {f"train/{name}": value for name, value in metrics.items()})


def rows(first: int, last: int) -> list[Row]:
    return [row(epoch, loss=epoch / 8, norm=-epoch) for epoch in range(first, last + 1)]


def query(database: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(sql, values).fetchall()


def metrics(database: Path, key: str = OWNER) -> list[tuple[Any, ...]]:
    """(name, step, value, timestamp) of the run ``key``, as they stand in the store's table."""
    sql = (
        "select m.key, m.step, m.value, m.timestamp from metrics m join tags t on t.run_uuid = m.run_uuid "
        "where t.key = 'orchestrator.key' and t.value = ? order by m.key, m.step, m.timestamp"
    )
    return query(database, sql, key)


def expected(*batches: list[Row]) -> list[tuple[Any, ...]]:
    flat = [
        (name, r.epoch, v, round(r.time * 1000)) for batch in batches for r in batch for name, v in r.metrics.items()
    ]
    return sorted(flat)


def tags(database: Path, key: str = OWNER) -> dict[str, str]:
    sql = (
        "select key, value from tags where run_uuid = "
        "(select run_uuid from tags where key = 'orchestrator.key' and value = ?)"
    )
    return dict(query(database, sql, key))


def statuses(database: Path) -> dict[str, str]:
    sql = "select t.value, r.status from runs r join tags t on t.run_uuid = r.run_uuid where t.key = 'orchestrator.key'"
    found = query(database, sql)
    assert len(dict(found)) == len(found), f"a run was opened twice: {found}"
    return dict(found)


# A store that is there


def test_a_run_from_its_start_to_its_end(open_tracker: Callable[..., Tracker], database: Path, tmp_path: Path) -> None:
    tracker = open_tracker()
    tracker.start(
        OWNER, "a name", params={"lr": 0.1, "kind": "mf", "none": None, "deep": [1]}, tags={"mlflow.user": "me"}
    )
    tracker.log(OWNER, rows(1, 3))
    tracker.tag(OWNER, {"orchestrator.state": "complete"})
    tracker.log(OWNER, rows(4, 5))
    tracker.end(OWNER, "FINISHED")
    assert tracker.close() is None
    assert not (tmp_path / JOURNAL).exists()
    assert metrics(database) == expected(rows(1, 5))
    assert statuses(database) == {OWNER: "FINISHED"}
    assert dict(query(database, "select key, value from params")) == {
        "lr": "0.1", "kind": "mf", "none": "null", "deep": "[1]",
    }  # fmt: skip
    found = tags(database)
    assert (found["mlflow.user"], found["orchestrator.state"], found["orchestrator.id"]) == ("me", "complete", OWNER)
    ((name, start, end),) = query(database, "select name, start_time, end_time from runs")
    assert name == "a name"
    assert start <= end
    assert query(database, "select name from experiments where experiment_id > 0") == [("toy",)]


def test_a_sweep_and_its_trials(open_tracker: Callable[..., Tracker], database: Path) -> None:
    tracker = open_tracker()
    tracker.start(OWNER, "sweep", params={})
    for number in range(3):
        tracker.start(f"{OWNER}/{number}", f"trial-{number}", params={"lr": number}, parent=OWNER)
    for epoch in (1, 2):
        for number in range(3):
            tracker.log(f"{OWNER}/{number}", rows(epoch, epoch))
    for number, status in enumerate(("FINISHED", "FAILED", "KILLED")):
        tracker.end(f"{OWNER}/{number}", status)  # type: ignore[arg-type]
    tracker.end(OWNER, "FINISHED")
    assert tracker.close() is None
    ends = {OWNER: "FINISHED", f"{OWNER}/0": "FINISHED", f"{OWNER}/1": "FAILED", f"{OWNER}/2": "KILLED"}
    assert statuses(database) == ends
    ((parent,),) = query(database, "select run_uuid from tags where key = 'orchestrator.key' and value = ?", OWNER)
    for number in range(3):
        assert tags(database, f"{OWNER}/{number}")["mlflow.parentRunId"] == parent
        assert metrics(database, f"{OWNER}/{number}") == expected(rows(1, 2))


def test_values_wait_for_each_other_in_batches(
    open_tracker: Callable[..., Tracker], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than MLflow takes in one request, and far fewer requests than reports."""
    sent: list[int] = []
    send = mlflow_client.Client.metrics

    def counted(client: Any, run: str, values: list[Any]) -> None:
        sent.append(len(values))
        send(client, run, values)

    monkeypatch.setattr(mlflow_client.Client, "metrics", counted)
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={})
    for epoch in range(1, 1501):
        tracker.log(OWNER, rows(epoch, epoch))
    tracker.end(OWNER, "FINISHED")
    assert tracker.close() is None
    assert metrics(database) == expected(rows(1, 1500))
    assert max(sent) > 1000
    assert len(sent) < 100


def test_a_report_without_rows_is_no_operation(open_tracker: Callable[..., Tracker], tmp_path: Path) -> None:
    tracker = open_tracker(uri=NOWHERE)
    tracker.log(OWNER, [])
    assert (tmp_path / JOURNAL).read_text() == ""


def test_the_run_id_is_there_once_the_run_is_open(open_tracker: Callable[..., Tracker], database: Path) -> None:
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={})
    assert [(tracker.run_id(OWNER),)] == query(database, "select run_uuid from runs")
    assert tracker.flush()


def test_long_values_are_cut_and_refuse_nothing(open_tracker: Callable[..., Tracker], database: Path) -> None:
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={"long": "x" * 20_000, "next": 1})
    assert tracker.close() is None
    assert dict(query(database, "select key, length(value) from params")) == {
        "long": mlflow_client.MAX_PARAM,
        "next": 1,
    }


# Taking a run up again


def test_a_resumed_run_is_the_same_run_and_no_step_is_there_twice(
    open_tracker: Callable[..., Tracker], database: Path
) -> None:
    first = open_tracker()
    first.start(OWNER, "run", params={"lr": 0.1})
    first.log(OWNER, rows(1, 6))
    first.log(OWNER, [row(6, accuracy=0.5)])
    first.end(OWNER, "KILLED")
    assert first.close() is None
    second = open_tracker(resuming=True)
    second.start(OWNER, "run", params={"lr": 0.1})
    again = [Row(r.epoch, r.time + 1000, r.metrics) for r in rows(4, 6)]  # repeated after the last checkpoint, later
    second.log(OWNER, again)
    assert second.flush()
    assert statuses(database) == {OWNER: "RUNNING"}
    second.log(OWNER, [*rows(7, 8), row(8, accuracy=0.6)])
    second.end(OWNER, "FINISHED")
    assert second.close() is None
    assert statuses(database) == {OWNER: "FINISHED"}
    assert metrics(database) == expected(rows(1, 8), [row(6, accuracy=0.5), row(8, accuracy=0.6)])


def test_rows_stated_twice_by_one_process_are_there_once(open_tracker: Callable[..., Tracker], database: Path) -> None:
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={})
    tracker.log(OWNER, rows(1, 5))
    tracker.log(OWNER, rows(3, 7))
    assert tracker.close() is None
    assert metrics(database) == expected(rows(1, 7))


def test_runs_of_another_owner_are_not_taken_up(open_tracker: Callable[..., Tracker], database: Path) -> None:
    first = open_tracker()
    first.start("other-run", "other", params={})
    assert first.close() is None
    second = open_tracker(resuming=True)
    second.start(OWNER, "run", params={})
    second.log(OWNER, rows(1, 2))
    assert second.close() is None
    assert set(statuses(database)) == {"other-run", OWNER}
    assert metrics(database, "other-run") == []


# What MLflow does not take


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_keeps_nothing_back(
    value: float, open_tracker: Callable[..., Tracker], database: Path
) -> None:
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={})
    tracker.log(OWNER, [row(1, loss=value, norm=1.0)])
    tracker.log(OWNER, rows(2, 3))
    tracker.end(OWNER, "FINISHED")
    tracker.close()
    assert statuses(database) == {OWNER: "FINISHED"}
    found = [entry for entry in metrics(database) if entry[0] == "train/norm" or entry[1] > 1]
    assert found == expected([row(1, norm=1.0)], rows(2, 3))


def test_an_illegal_name_costs_that_value_alone(open_tracker: Callable[..., Tracker], database: Path) -> None:
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={})
    tracker.log(OWNER, rows(1, 2))
    tracker.log(OWNER, [Row(3, 1.7e9, {"validation/ndcg@20": 0.5}), *rows(3, 4)])
    tracker.log(OWNER, rows(5, 6))
    tracker.end(OWNER, "FINISHED")
    told = tracker.close()
    assert told is not None
    assert told.startswith("MLflow refused some values: ")
    assert "ndcg@20" in told
    assert "\n" not in told
    assert statuses(database) == {OWNER: "FINISHED"}
    assert metrics(database) == expected(rows(1, 6))


def test_an_illegal_parameter_costs_that_parameter_alone(open_tracker: Callable[..., Tracker], database: Path) -> None:
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={"good": 1, "b@d": 2})
    tracker.log(OWNER, rows(1, 2))
    tracker.end(OWNER, "FINISHED")
    told = tracker.close()
    assert told is not None
    assert "b@d" in told
    assert statuses(database) == {OWNER: "FINISHED"}
    assert metrics(database) == expected(rows(1, 2))
    assert query(database, "select key from params") == [("good",)]


def test_a_run_that_is_refused_keeps_no_other_back(
    open_tracker: Callable[..., Tracker], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = mlflow_client.Client.create

    def choosy(client: Any, name: str, *args: Any) -> str:
        if name == "refused":
            raise mlflow_client.Refused("no room for it")
        return create(client, name, *args)

    monkeypatch.setattr(mlflow_client.Client, "create", choosy)
    tracker = open_tracker()
    tracker.start("refused", "refused", params={})
    tracker.log("refused", rows(1, 2))
    tracker.end("refused", "FINISHED")
    tracker.start(OWNER, "run", params={})
    tracker.log(OWNER, rows(1, 2))
    tracker.end(OWNER, "FINISHED")
    begun = time.monotonic()
    told = tracker.close()
    assert time.monotonic() - begun < 10
    assert told == "MLflow refused some values: no room for it"
    assert statuses(database) == {OWNER: "FINISHED"}
    assert metrics(database) == expected(rows(1, 2))


def test_a_deleted_experiment_is_said_at_once(open_tracker: Callable[..., Tracker], database: Path) -> None:
    first = open_tracker()
    first.start("other", "run", params={})
    assert first.close() is None
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("update experiments set lifecycle_stage = 'deleted' where name = 'toy'")
        connection.commit()
    second = open_tracker()
    second.start(OWNER, "run", params={})
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"MLflow refuses the run: got .*deleted"):
        second.run_id(OWNER)
    assert time.monotonic() - begun < 10


# Requests that are lost


@pytest.mark.parametrize("method", ["create", "params", "metrics", "tags", "end", "find"])
@pytest.mark.parametrize("lost", ["request", "answer"])
def test_one_lost_request_changes_nothing(
    method: str, lost: str, open_tracker: Callable[..., Tracker], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(mlflow_client.Client, method)
    failed: list[str] = []

    def flaky(*args: Any) -> Any:
        result = None
        if failed or lost == "answer":
            result = real(*args)
        if not failed:
            failed.append(method)
            raise ConnectionError("connection reset by peer")
        return result

    monkeypatch.setattr(mlflow_client.Client, method, flaky)
    monkeypatch.setattr(tracking, "RETRY_SECONDS", (0.01,))
    tracker = open_tracker(resuming=method == "find")
    tracker.start(OWNER, "run", params={"lr": 0.1})
    tracker.log(OWNER, rows(1, 3))
    tracker.tag(OWNER, {"state": "complete"})
    tracker.end(OWNER, "FINISHED")
    assert tracker.flush()
    assert tracker.close() is None
    assert failed
    assert statuses(database) == {OWNER: "FINISHED"}
    assert metrics(database) == expected(rows(1, 3))
    assert dict(query(database, "select key, value from params")) == {"lr": "0.1"}
    assert tags(database)["state"] == "complete"


# A server that is away


def test_an_outage_costs_no_training_time_and_is_told_at_the_end(
    open_tracker: Callable[..., Tracker], tmp_path: Path
) -> None:
    begun = time.monotonic()
    tracker = open_tracker(uri=NOWHERE)
    tracker.start(OWNER, "run", params={"lr": 0.1})
    for epoch in range(1, 201):
        tracker.log(OWNER, rows(epoch, epoch))
    assert time.monotonic() - begun < 2
    assert not tracker.flush(timeout=0.01)
    with pytest.raises(UserError, match=r"MLflow does not answer: got .*--tracking") as caught:
        tracker.run_id(OWNER, timeout=0.01)
    assert caught.value.code == UNAVAILABLE
    told = tracker.close(timeout=0)
    assert told is not None
    for word in ("MLflow was not reachable (", str(tmp_path / JOURNAL), f"orchestrator sync {OWNER}"):
        assert word in told
    assert "\n" not in told
    kept = [json.loads(line) for line in (tmp_path / JOURNAL).read_text().splitlines()]
    assert [operation["op"] for operation in kept] == ["start"] + ["log"] * 200


def test_the_journal_is_delivered_by_the_next_process(
    open_tracker: Callable[..., Tracker], database: Path, tmp_path: Path
) -> None:
    away = open_tracker(uri=NOWHERE)
    away.start(OWNER, "run", params={"lr": 0.1})
    away.log(OWNER, rows(1, 4))
    away.end(OWNER, "KILLED")
    assert away.close(timeout=0)
    back = open_tracker(resuming=True)
    back.start(OWNER, "run", params={"lr": 0.1})
    back.log(OWNER, rows(3, 6))
    back.end(OWNER, "FINISHED")
    assert back.close() is None
    assert metrics(database) == expected(rows(1, 6))
    assert statuses(database) == {OWNER: "FINISHED"}
    assert not (tmp_path / JOURNAL).exists()


def test_a_journal_survives_any_number_of_deaths_half_lines_included(
    open_tracker: Callable[..., Tracker], database: Path, tmp_path: Path
) -> None:
    for first in (1, 3, 5):
        away = open_tracker(uri=NOWHERE, resuming=first > 1)
        away.start(OWNER, "run", params={"lr": 0.1})
        away.log(OWNER, rows(first, first + 1))
        away._closing.set()  # its process is gone: nothing is said or tidied up
        away._deadline = 0
        with (tmp_path / JOURNAL).open("a") as journal:
            journal.write('{"op": "log", "key": "toy-2026')
    assert open_tracker(resuming=True).close() is None
    assert metrics(database) == expected(rows(1, 6))


def test_a_server_that_is_killed_and_comes_back_gets_every_value_once(
    server: Server, open_tracker: Callable[..., Tracker], tmp_path: Path
) -> None:
    tracker = open_tracker(uri=server.wait())
    tracker.start(OWNER, "run", params={"lr": 0.1})
    tracker.log(OWNER, rows(1, 50))
    assert tracker.flush()
    waits = []
    for epoch in range(51, 151):
        if epoch == 70:
            server.kill()
        if epoch == 120:
            server.start()
        begun = time.monotonic()
        tracker.log(OWNER, rows(epoch, epoch))
        waits.append(time.monotonic() - begun)
        time.sleep(0.002)
    assert max(waits) < 2
    server.wait()
    tracker.end(OWNER, "FINISHED")
    assert tracker.close(timeout=60) is None
    assert metrics(server.database) == expected(rows(1, 150))
    assert statuses(server.database) == {OWNER: "FINISHED"}
    assert not (tmp_path / JOURNAL).exists()


def test_a_server_takes_a_run_up_again(server: Server, open_tracker: Callable[..., Tracker]) -> None:
    key = f"{OWNER}/0"
    for first, last in ((1, 40), (31, 60)):
        tracker = open_tracker(uri=server.wait(), resuming=first > 1)
        tracker.start(key, "trial", params={"lr": 0.1})
        tracker.log(key, rows(first, last))
        tracker.log(key, [Row(last, 1.7e9, {"validation/ndcg@20": 0.5})])
        tracker.end(key, "FINISHED")
        told = tracker.close(timeout=60)
        assert told is not None
        assert "ndcg@20" in told
    assert metrics(server.database, key) == expected(rows(1, 60))
    assert statuses(server.database)[key] == "FINISHED"
