"""Models that `clean --models` may remove, on a real store: never one that an alias or a record needs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.errors import USAGE
from orchestrator.promotion import retention
from orchestrator.promotion.audit_log import AuditLog, Event, now
from orchestrator.registry import logged_model
from orchestrator.registry import models as registry
from orchestrator.storage.settings import Settings, resolve
from orchestrator.tracking.mlflow_globals import tracking_uri_set
from tests.support.commands import typed
from tests.support.registered import erase

Add = Callable[..., str]


@pytest.fixture
def settings(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    return resolve({})


@pytest.fixture
def add(settings: Settings) -> Add:
    """A function that logs a model with a file for a run, and registers the model if a name is given."""
    client = registry.client(settings)
    experiment = client.create_experiment("toy", artifact_location=str(Path.cwd() / "artifacts"))

    def added(
        name: str | None, kind: str = "run", status: str = "FINISHED", run_id: str | None = None, **tags: str
    ) -> str:
        run = run_id or client.create_run(experiment, tags={"orchestrator.kind": kind, **tags}).info.run_id
        model = client.create_logged_model(experiment, "toy", source_run_id=run, tags={logged_model.OUTCOME_TAG: "x"})
        file = Path(model.artifact_location) / "MLmodel"
        file.parent.mkdir(parents=True)
        file.write_text("flavors: {}")
        client.finalize_logged_model(model.model_id, "READY")
        if status != "RUNNING":
            client.set_terminated(run, status)
        if name is not None:
            if name not in {one.name for one in client.search_registered_models(max_results=1000)}:
                client.create_registered_model(name)
            with tracking_uri_set(settings.tracking):
                client.create_model_version(name, f"models:/{model.model_id}", run, model_id=model.model_id)
        return str(run if name is None else model.model_id)

    return added


def removable(settings: Settings, keep: int = 1) -> list[str]:
    return [f"{one.name}/{one.version}" for one in retention.survey(settings, keep).removable]


def test_version_with_an_alias_is_kept_among_over_100_registered_models(settings: Settings, add: Add) -> None:
    client = registry.client(settings)
    for name in ("zebra", "rec", "rec", "bob's model"):
        add(name)
    client.set_registered_model_alias("zebra", "champion", "1")
    for number in range(100):  # a page of MLflow's registered models
        client.create_registered_model(f"m{number:03}")
    assert removable(settings) == ["rec/1"]


def test_model_registered_after_the_survey_is_not_removed(settings: Settings, add: Add) -> None:
    client = registry.client(settings)
    for _ in range(3):
        add(None)
    older = [one for one in retention.survey(settings, 1).removable if one.version is None]
    client.create_registered_model("late")
    with tracking_uri_set(settings.tracking):
        client.create_model_version("late", f"models:/{older[0].model_id}", model_id=older[0].model_id)
    assert retention.remove(settings, older) == (older[1:], [])


def test_a_command_to_free_files_hides_the_password(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    there = replace(settings, tracking="postgresql://mlflow:hunter2@db:5432/mlflow")
    removed = [retention.Removable("m-1", "rec", "1")]
    monkeypatch.setattr(retention, "_deleted", lambda settings: "the deleted run 7")
    assert "mlflow gc --backend-store-uri postgresql://mlflow:***@db" in retention.free(there, removed)
    monkeypatch.setattr(retention, "_deleted", lambda settings: None)
    failed = subprocess.CompletedProcess([], 1, "", "no postgresql://mlflow:hunter2@db:5432/mlflow")
    monkeypatch.setattr(subprocess, "run", lambda *of, **options: failed)
    assert "hunter2" not in retention.free(there, removed)


def test_the_password_is_not_on_a_command_line(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "postgresql://mlflow:hunter2@db:5432/mlflow"
    monkeypatch.setattr(retention, "_deleted", lambda settings: None)
    run = Mock(return_value=subprocess.CompletedProcess([], 0, "", ""))
    monkeypatch.setattr(subprocess, "run", run)
    there = replace(settings, tracking=uri)
    assert retention.free(there, [retention.Removable("m-1", "rec", "1")]) == "The files of 1 model are freed"
    assert "hunter2" not in str(run.call_args.args)
    given = ["gc", "--backend-store-uri", uri, "--logged-model-ids", "m-1", "--tracking-uri", uri]
    assert (run.call_args.kwargs["input"].splitlines(), "env" in run.call_args.kwargs) == (given, False)


@pytest.mark.slow
def test_needed_versions_are_kept_and_the_rest_is_removed(settings: Settings, add: Add) -> None:
    client = registry.client(settings)
    for kind in ("run", "run", "sweep", "run", "run", "run", "run"):
        add("rec", kind)
    add("rec", status="RUNNING")
    add("rec")
    client.set_registered_model_alias("rec", "champion", "1")
    log = AuditLog(settings)
    log.close(log.open(Event("rec", "champion", "promote", "4", "2", "me", now())), "done")
    add(None, **{retention.INIT: "rec/5#0123456789abcdef"})
    survey = retention.survey(settings, 1)
    assert removable(settings) == ["rec/7", "rec/6"]
    assert survey.kept == {
        retention.ALIAS: 1, retention.PROMOTED: 2, retention.RECENT: 2, retention.WINNER: 1, retention.NEEDED: 1,
        retention.RUNNING: 1,
    }  # fmt: skip
    assert removable(settings, keep=3) == ["rec/6"]
    removed, troubles = retention.remove(settings, survey.removable)
    assert (len(removed), troubles) == (2, [])
    assert sorted(int(one.version) for one in client.search_model_versions("name = 'rec'")) == [1, 2, 3, 4, 5, 8, 9]
    add("bob's model")  # a name that MLflow allows, and cannot search for
    assert removable(settings) == []


def test_old_unregistered_models_are_removable_and_foreign_are_kept(settings: Settings, add: Add) -> None:
    client = registry.client(settings)
    for kind in ("run", "sweep", "run"):
        add(None, kind)
    foreign = client.create_logged_model("0", "theirs")
    client.finalize_logged_model(foreign.model_id, "READY")
    client.create_registered_model("theirs")
    with tracking_uri_set(settings.tracking):
        client.create_model_version("theirs", f"models:/{foreign.model_id}")
    assert [one.version for one in retention.survey(settings, 1).removable] == [None]
    assert len(retention.survey(settings, 3).removable) == 0


def test_models_whose_run_was_erased_follow_the_same_retention(settings: Settings, add: Add) -> None:
    add("rec")
    add("rec")
    lone = add(None)
    for run in (*(one.run_id for one in registry.client(settings).search_model_versions("name = 'rec'")), lone):
        erase(settings, run)
    survey = retention.survey(settings, 1)
    assert ([str(one) for one in survey.removable], survey.kept) == (["rec/1"], {retention.RECENT: 2})


def test_only_the_last_version_of_a_sweep_is_its_winner(settings: Settings, add: Add) -> None:
    client = registry.client(settings)
    add("rec", "sweep")
    run = client.search_model_versions("name = 'rec'")[0].run_id
    add("rec", "sweep", run_id=run)
    add("rec")
    assert removable(settings) == ["rec/1"]


def test_version_that_got_an_alias_after_the_survey_is_not_removed(settings: Settings, add: Add) -> None:
    add("rec")
    add("rec")
    survey = retention.survey(settings, 1)
    registry.client(settings).set_registered_model_alias("rec", "late", "1")
    assert retention.remove(settings, survey.removable) == ([], [])


@pytest.mark.faults
def test_clean_models_lists_first_and_removes_with_yes(settings: Settings, add: Add, home: Path) -> None:
    old = add("rec")
    add("rec")
    (file,) = (one for one in Path.cwd().glob("artifacts/**/MLmodel") if old in str(one))
    shown = typed(home, "clean", "--models", "--keep-versions", "1")
    assert shown.returncode == 0, shown.stderr
    assert "rec/1\n1 model can be removed. Nothing is removed yet: add --yes\nKept: 1 is recent\n" in shown.stdout
    assert removable(settings) == ["rec/1"]
    done = typed(home, "clean", "--models", "--keep-versions", "1", "--yes", "--json")
    output: dict[str, Any] = json.loads(done.stdout)
    assert (output["models"][0]["version"], output["freed"]) == ("1", "The files of 1 model are freed")
    assert not file.exists()
    nothing = typed(home, "clean", "--models")
    assert "0 models to remove" in nothing.stdout


def test_free_names_deleted_runs_that_garbage_collection_would_erase(settings: Settings, add: Add) -> None:
    client = registry.client(settings)
    add("rec")
    add("rec")
    gone = add(None)
    client.delete_run(gone)
    removed, _ = retention.remove(settings, [one for one in retention.survey(settings, 1).removable if one.version])
    said = retention.free(settings, removed)
    assert f"would also erase the deleted run {gone}: mlflow gc" in said
    server = replace(settings, tracking="http://mlflow:5000")
    assert retention.free(server, removed).startswith("The server's administrator frees the files: mlflow gc")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--keep-versions", "3"], "--keep-versions is about models. Add --models."),
        (["--models", "--kept"], "--models removes models alone: got --kept."),
        (["--models", "--tracking", "none"], "There is no model registry with tracking off"),
    ],
)
def test_invalid_clean_options_exit_with_usage_error(home: Path, words: list[str], sentence: str) -> None:
    done = typed(home, "clean", *words)
    assert (done.returncode, sentence in done.stderr) == (USAGE, True), done.stderr


def test_version_before_an_unfinished_promotion_is_kept(settings: Settings, add: Add) -> None:
    """A rollback needs this version, also if the writer died right after it had moved the alias."""
    for _ in range(3):
        add("rec")
    registry.client(settings).set_registered_model_alias("rec", "champion", "2")
    log = AuditLog(settings)
    log.open(Event("rec", "champion", "promote", "2", "1", "me", now()))
    assert removable(settings) == []
