"""The MLflow writer on a real store: each value is stored once, also after lost requests and resumes."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from orchestrator.engine.loop import Row
from orchestrator.errors import UserError
from orchestrator.tracking import client as mlflow_client
from orchestrator.tracking import store
from orchestrator.tracking import tracker as tracking
from orchestrator.tracking.tracker import JOURNAL, Tracker
from tests.support.tracked import (
    NOWHERE,
    OWNER,
    expected,
    metrics,
    query,
    row,
    rows,
    statuses,
    tags,
)
from tests.support.waiting import FOR_EVER, until

# An available store


def test_run_is_stored_with_metrics_parameters_tags_and_status(
    open_tracker: Callable[..., Tracker], database: Path, tmp_path: Path
) -> None:
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


def test_values_within_an_epoch_have_their_own_steps_and_come_once(
    open_tracker: Callable[..., Tracker], database: Path
) -> None:
    def epoch(number: int) -> Row:
        steps = [(step, 100.0 + step, {"train_steps/loss": float(step)}) for step in (2 * number - 1, 2 * number)]
        return Row(number, 100.0 + 2 * number, {"train/loss": float(number)}, steps)

    tracker = open_tracker()
    tracker.start(OWNER, "a name", params={}, tags={})
    tracker.log(OWNER, [epoch(1), epoch(2)])
    tracker.log(OWNER, [epoch(2), epoch(3)])  # a resume repeats its last epoch
    tracker.end(OWNER, "FINISHED")
    assert tracker.close() is None
    found = query(database, "select step, value, timestamp from metrics where key = 'train_steps/loss' order by step")
    assert found == [(step, float(step), 100_000 + 1000 * step) for step in range(1, 7)]
    assert query(database, "select count(*) from metrics where key = 'train/loss'") == [(3,)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "custom_model_development"),
        ({}, "custom_model_development"),
        ({"mlflow.experimentKind": "genai_development"}, "genai_development"),
    ],
    ids=["new", "without a kind", "with another kind"],
)
def test_an_experiment_is_marked_as_model_development_unless_it_has_a_kind(
    open_tracker: Callable[..., Tracker], database: Path, before: dict[str, str] | None, after: str
) -> None:
    if before is not None:
        store.ensure(f"sqlite:///{database}", database.parent)
        MlflowClient(f"sqlite:///{database}").create_experiment("toy", tags=before)
    tracker = open_tracker()
    tracker.start(OWNER, "a name", params={})
    tracker.end(OWNER, "FINISHED")
    assert tracker.close() is None
    assert query(database, "select value from experiment_tags where key = 'mlflow.experimentKind'") == [(after,)]


def test_trials_are_stored_as_child_runs_of_their_sweep(open_tracker: Callable[..., Tracker], database: Path) -> None:
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


def test_many_reports_are_sent_in_few_requests(
    open_tracker: Callable[..., Tracker], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more values than MLflow accepts in one request, and far fewer requests than reports."""
    sent: list[int] = []
    send = mlflow_client.Client.log

    def counted(client: Any, run: str, **values: list[Any]) -> None:
        sent.append(len(values.get("metrics", ())))
        send(client, run, **values)

    monkeypatch.setattr(mlflow_client.Client, "log", counted)
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={})
    for epoch in range(1, 1501):
        tracker.log(OWNER, rows(epoch, epoch))
    tracker.end(OWNER, "FINISHED")
    assert tracker.close() is None
    assert metrics(database) == expected(rows(1, 1500))
    assert max(sent) > 1000
    assert len(sent) < 100


def test_report_without_rows_is_not_added_to_the_journal(open_tracker: Callable[..., Tracker], tmp_path: Path) -> None:
    tracker = open_tracker(uri=NOWHERE)
    tracker.log(OWNER, [])
    assert (tmp_path / JOURNAL).read_text() == ""


def test_the_run_id_is_there_once_the_run_is_open(open_tracker: Callable[..., Tracker], database: Path) -> None:
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={})
    assert [(tracker.run_id(OWNER),)] == query(database, "select run_uuid from runs")
    assert tracker.flush()


# Resumed runs


def test_runs_of_two_storages_with_one_name_stay_apart(
    open_tracker: Callable[..., Tracker], database: Path, tmp_path: Path
) -> None:
    for folder, first, last in (("a", 1, 2), ("b", 1, 5), ("a", 2, 3)):
        (tmp_path / folder).mkdir(exist_ok=True)
        tracker = open_tracker(folder=tmp_path / folder, resuming=first > 1, uid=folder)
        tracker.start(OWNER, folder, params={"of": folder})
        tracker.log(OWNER, rows(first, last))
        assert tracker.close() is None
    counts = "select name, max(step) from runs join metrics using (run_uuid) group by name order by name"
    assert query(database, counts) == [("a", 3), ("b", 5)]


@pytest.mark.parametrize("follow", [True, False])
def test_resumed_run_follows_a_renamed_experiment_only_if_requested(
    follow: bool, open_tracker: Callable[..., Tracker], database: Path
) -> None:
    for first, last in ((1, 2), (2, 3)):
        tracker = open_tracker(resuming=first > 1, uid="a", follow=follow and first > 1)
        tracker.start(OWNER, "run", params={})
        tracker.log(OWNER, rows(first, last))
        assert tracker.close() is None
        client = MlflowClient(f"sqlite:///{database}")
        if experiment := client.get_experiment_by_name("toy"):
            client.rename_experiment(experiment.experiment_id, f"renamed {first}")
    assert (client.get_experiment_by_name("renamed 2") is None) == follow
    assert (metrics(database) == expected(rows(1, 3))) == follow


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


def test_existing_trials_are_searched_for_once_on_resume(
    open_tracker: Callable[..., Tracker], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("existing_runs", "find", "create"):
        real = getattr(mlflow_client.Client, name)
        monkeypatch.setattr(
            mlflow_client.Client, name, lambda *args, real=real, name=name: asked.append(name) or real(*args)
        )
    monkeypatch.setattr(mlflow_client, "PAGE", 3)
    for resuming, last in ((False, 2), (True, 4)):
        tracker = open_tracker(resuming=resuming)
        tracker.start(OWNER, "sweep", params={})
        for number in range(10 if resuming else 8):
            tracker.start(f"{OWNER}/{number}", f"trial-{number}", params={}, parent=OWNER)
            tracker.log(f"{OWNER}/{number}", rows(1, last))
        assert tracker.close() is None
        assert asked == (["existing_runs"] + ["create"] * 2 if resuming else ["create"] * 9)
        asked.clear()
    assert len(statuses(database)) == 11
    assert all(metrics(database, f"{OWNER}/{number}") == expected(rows(1, 4)) for number in range(10))


def test_artifact_location_of_new_experiments_depends_on_the_store(tmp_path: Path, database: Path) -> None:
    """MLflow's client would store those of a database server in the current folder."""
    assert store.ensure("http://host:5000", tmp_path) is None
    assert store.ensure("postgresql+psycopg2://host/db", tmp_path) == tmp_path / "artifacts"
    assert store.ensure(f"sqlite:///{database}", tmp_path) == database.parent / "artifacts"


# Refusals


def test_refused_run_does_not_block_other_runs(
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
    told = tracker.close(timeout=FOR_EVER)
    assert told == "MLflow refused some values: no room for it"
    assert statuses(database) == {OWNER: "FINISHED"}
    assert metrics(database) == expected(rows(1, 2))


def test_deleted_experiment_raises_user_error(open_tracker: Callable[..., Tracker], database: Path) -> None:
    first = open_tracker()
    first.start("other", "run", params={})
    assert first.close() is None
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("update experiments set lifecycle_stage = 'deleted' where name = 'toy'")
        connection.commit()
    second = open_tracker()
    second.start(OWNER, "run", params={})
    with pytest.raises(UserError, match=r"MLflow refuses the run: got .*deleted"):
        second.run_id(OWNER, timeout=FOR_EVER)


def test_an_experiment_that_is_deleted_and_restored_has_all_values(
    open_tracker: Callable[..., Tracker], database: Path
) -> None:
    def mark(stage: str) -> None:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("update experiments set lifecycle_stage = ? where name = 'toy'", (stage,))
            connection.execute("update runs set lifecycle_stage = ?", (stage,))
            connection.commit()

    first = open_tracker()
    first.start(OWNER, "run", params={})
    assert first.flush(FOR_EVER)
    mark("deleted")
    first.log(OWNER, rows(1, 2))
    first.end(OWNER, "FINISHED")
    warning = first.close(timeout=0.5)
    assert warning
    assert "mlflow experiments restore --experiment-id" in warning
    mark("active")
    assert open_tracker().close() is None
    assert metrics(database) == expected(rows(1, 2))
    assert statuses(database) == {OWNER: "FINISHED"}


def test_a_trial_that_waits_is_one_request_for_all_its_values(
    open_tracker: Callable[..., Tracker], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[set[str]] = []
    send = mlflow_client.Client.log
    create = mlflow_client.Client.create
    busy = threading.Event()
    put = threading.Event()

    def counted(client: Any, run: str, **values: list[Any]) -> None:
        requests.append(set(values))
        send(client, run, **values)

    def waiting(*args: Any) -> str:
        busy.set()
        put.wait(FOR_EVER)
        return create(*args)

    monkeypatch.setattr(mlflow_client.Client, "log", counted)
    monkeypatch.setattr(mlflow_client.Client, "create", waiting)
    tracker = open_tracker()
    tracker.start(OWNER, "sweep", params={})
    assert busy.wait(FOR_EVER)  # the sender is busy while the trials are added
    for number in range(3):
        tracker.start(f"{OWNER}/{number}", "trial", params={"lr": number}, tags={"x": "y"}, parent=OWNER)
        tracker.log(f"{OWNER}/{number}", rows(1, 2))
        tracker.tag(f"{OWNER}/{number}", {"state": "complete"})
        tracker.end(f"{OWNER}/{number}", "FINISHED")
    put.set()
    assert tracker.close() is None
    assert requests == [{"params", "metrics", "tags"}] * 3
    for number in range(3):
        assert metrics(database, f"{OWNER}/{number}") == expected(rows(1, 2))
        assert tags(database, f"{OWNER}/{number}")["state"] == "complete"


# Lost requests


@pytest.mark.parametrize("method", ["create", "log", "input", "end", "existing_runs"])
@pytest.mark.parametrize("lost", ["request", "answer"])
def test_lost_request_or_answer_does_not_change_the_stored_run(
    method: str, lost: str, open_tracker: Callable[..., Tracker], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(mlflow_client.Client, method)
    failed: list[str] = []

    def flaky(*args: Any, **values: Any) -> Any:
        result = None
        if failed or lost == "answer":
            result = real(*args, **values)
        if not failed:
            failed.append(method)
            raise ConnectionError("connection reset by peer")
        return result

    monkeypatch.setattr(mlflow_client.Client, method, flaky)
    monkeypatch.setattr(tracking, "RETRY_SECONDS", (0.01,))
    tracker = open_tracker(resuming=method == "existing_runs")
    tracker.start(OWNER, "run", params={"lr": 0.1})
    tracker.log(OWNER, rows(1, 3))
    tracker.tag(OWNER, {"state": "complete"})
    tracker.input(OWNER, {"name": "ml-100k", "digest": "a1b2", "source": "ml-100k"})
    tracker.end(OWNER, "FINISHED")
    assert tracker.flush()
    assert tracker.close() is None
    assert failed
    assert statuses(database) == {OWNER: "FINISHED"}
    assert metrics(database) == expected(rows(1, 3))
    assert dict(query(database, "select key, value from params")) == {"lr": "0.1"}
    assert tags(database)["state"] == "complete"
    assert query(database, "select count(*) from inputs") == [(1,)]


def test_after_another_driver_has_taken_over_nothing_is_sent(
    open_tracker: Callable[..., Tracker], database: Path, tmp_path: Path
) -> None:
    overtaken: list[bool] = []
    woken = open_tracker(is_overtaken=lambda: bool(overtaken))
    woken.start(OWNER, "toy", params={})
    woken.log(OWNER, rows(1, 2))
    assert woken.flush()
    (tmp_path / "there").mkdir()
    successor = open_tracker(resuming=True, folder=tmp_path / "there")
    successor.start(OWNER, "toy", params={})
    successor.log(OWNER, rows(1, 4))
    successor.end(OWNER, "FINISHED")
    assert successor.close() is None
    overtaken.append(True)
    woken.start("other", "toy", params={})
    woken.log(OWNER, rows(3, 9))
    woken.end(OWNER, "KILLED")
    for key in (OWNER, "other"):
        with pytest.raises(UserError, match="was taken over by another driver"):
            woken.run_id(key)
    assert woken.close() is None
    assert metrics(database) == expected(rows(1, 4))
    assert statuses(database) == {OWNER: "FINISHED"}
    assert not (tmp_path / JOURNAL).exists(), "a later sync would send the journal"


def test_request_with_a_doubtful_rejection_is_retried_without_loss(
    open_tracker: Callable[..., Tracker], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow uses one code for a wrong request and for an error of its database."""
    send = mlflow_client.Client.log
    errors = iter(range(tracking.DOUBTS - 1))

    def failing(client: Any, run: str, **values: list[Any]) -> None:
        if values.get("metrics") and next(errors, None) is not None:
            raise mlflow_client.Doubtful("database is locked")
        send(client, run, **values)

    monkeypatch.setattr(mlflow_client.Client, "log", failing)
    monkeypatch.setattr(tracking, "RETRY_SECONDS", (0.001,))
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={})
    tracker.log(OWNER, rows(1, 4))
    assert tracker.flush()
    assert tracker.close() is None
    assert metrics(database) == expected(rows(1, 4))


def test_a_request_that_is_doubtful_for_ever_is_refused_in_the_end(
    open_tracker: Callable[..., Tracker], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = mlflow_client.Client.log

    def choosy(client: Any, run: str, **values: list[Any]) -> None:
        if any(name == "train/norm" for name, *_ in values.get("metrics", ())):
            raise mlflow_client.Doubtful("out of range for this column")
        send(client, run, **values)

    monkeypatch.setattr(mlflow_client.Client, "log", choosy)
    monkeypatch.setattr(tracking, "RETRY_SECONDS", (0.001,))
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={})
    tracker.log(OWNER, rows(1, 4))
    tracker.end(OWNER, "FINISHED")
    assert tracker.flush()
    assert tracker.close() == "MLflow refused some values: out of range for this column"
    assert metrics(database) == [value for value in expected(rows(1, 4)) if value[0] == "train/loss"]
    assert statuses(database) == {OWNER: "FINISHED"}


def test_runs_are_not_opened_twice_where_the_search_for_them_is_rejected(
    open_tracker: Callable[..., Tracker], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_tracker()
    first.start(OWNER, "run", params={})
    first.log(OWNER, rows(1, 2))
    assert first.close() is None
    search = mlflow_client.Client.existing_runs
    answers = iter([mlflow_client.Refused("404"), KeyError("orchestrator.key")])

    def failing(client: Any, owner: str, uid: str | None) -> Any:
        if error := next(answers, None):
            raise error
        return search(client, owner, uid)

    monkeypatch.setattr(mlflow_client.Client, "existing_runs", failing)
    monkeypatch.setattr(tracking, "RETRY_SECONDS", (0.001,))
    second = open_tracker(resuming=True)
    second.start(OWNER, "run", params={})
    second.log(OWNER, rows(2, 3))
    second.end(OWNER, "FINISHED")
    assert second.close() is None
    assert statuses(database) == {OWNER: "FINISHED"}
    assert metrics(database) == expected(rows(1, 3))


@pytest.mark.parametrize("kind", ["input", "files"])
def test_doubtful_dataset_or_file_is_refused_after_repeated_tries(
    kind: str, open_tracker: Callable[..., Tracker], database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the journal would never be empty, and the model would never be logged."""

    def doubtful(*_: Any) -> None:
        raise mlflow_client.Doubtful("out of range for this column")

    monkeypatch.setattr(mlflow_client.Client, kind, doubtful)
    monkeypatch.setattr(tracking, "RETRY_SECONDS", (0.001,))
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={})
    if kind == "input":
        tracker.input(OWNER, {"name": "toy", "digest": "1", "source": "{}"})
    else:
        tracker.files(OWNER, [tmp_path / "report.html"])
    tracker.log(OWNER, rows(1, 2))
    assert tracker.flush()
    assert tracker.close() == "MLflow refused some values: out of range for this column"
    assert metrics(database) == expected(rows(1, 2))


# Files that the artifact store does not accept


def test_files_that_cannot_be_stored_do_not_block_other_values(
    open_tracker: Callable[..., Tracker], database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name for name in ("record.json", "report.html", "machine.json")]
    for file in files:
        file.write_text("x")
    store_file = mlflow_client.Client.files
    failing = {"report.html", "machine.json"}
    stored: list[str] = []

    def choosy(client: Any, run: str, paths: Any) -> None:
        (path,) = paths
        if Path(path).name in failing:
            raise OSError("507 for url")
        store_file(client, run, [path])
        stored.append(Path(path).name)

    monkeypatch.setattr(mlflow_client.Client, "files", choosy)
    monkeypatch.setattr(tracking, "RETRY_SECONDS", (0.001,))
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={})
    for file in reversed(files):
        tracker.files(OWNER, [file])
    tracker.log(OWNER, rows(1, 3))
    tracker.end(OWNER, "FINISHED")
    until(lambda: stored)
    assert not tracker.flush(timeout=0.05)
    failing.remove("machine.json")
    until(lambda: len(stored) == 2 and tracker.unsent == 1)  # the journal forgets a file after it is stored
    assert stored == ["record.json", "machine.json"]
    told = tracker.close(timeout=0)
    assert told is not None
    assert "Not everything was sent to MLflow (OSError: 507 for url)" in told
    assert metrics(database) == expected(rows(1, 3))
    assert statuses(database) == {OWNER: "FINISHED"}
    failing.clear()
    assert open_tracker(resuming=True).close() is None
    assert stored == ["record.json", "machine.json", "report.html"]
    assert not (tmp_path / JOURNAL).exists()
