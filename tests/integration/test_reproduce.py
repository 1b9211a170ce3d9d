"""Runs, trials and sweeps read back from a real MLflow store and repeated; damaged, missing and foreign records."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.config.spec import SweepSpec
from orchestrator.console import Console
from orchestrator.errors import DONE, FAILED, USAGE, RunFailed, UserError
from orchestrator.reproduce import recorded_run, repeat_run
from orchestrator.runs import driver
from orchestrator.runs.session import Result
from orchestrator.storage import run_lookup
from orchestrator.storage.settings import Settings, resolve
from orchestrator.sweeps import request, sweep
from tests.support.commands import Store, typed

LOCAL = driver.Options(local=True)
SPACE = "def near(trial):\n    return {'lr': trial.suggest_float('lr', 0.05, 0.2)}\n"


@pytest.fixture
def settings(database: Path, toy_workload: str) -> Settings:
    return resolve()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the logging of the model, which takes seconds to record its environment."""
    from orchestrator.registry import models as registry

    monkeypatch.setattr(registry, "log_model", lambda *_: registry.Logged("models:/m-1", None))


@pytest.fixture
def ran(settings: Settings, quick: None) -> Result:
    spec = request.experiment("toy", settings, overrides={"epochs": "4", "lr": "0.07"}, seed=5, local=True)
    return driver.run(spec, settings, LOCAL, Console())


@pytest.fixture
def swept(settings: Settings, quick: None, tmp_path: Path) -> Result:
    (tmp_path / "spaces.py").write_text(SPACE)
    search = {"space": f"{tmp_path / 'spaces.py'}:near", "trials": 6}
    spec = request.sweep("toy", settings, overrides={"epochs": "9"}, seed=5, search=search, local=True)
    return sweep.sweep(spec, settings, LOCAL, Console())


def again(settings: Settings, reference: str, **asked: Any) -> tuple[dict[str, Any], int]:
    options = {"check": False, "script": False, "tolerance": 0.0, "trusted": {}} | asked
    return repeat_run.run(settings, reference, console=Console(), **options)


def elsewhere(settings: Settings, tmp_path: Path) -> Settings:
    """The same MLflow store, used on a machine that has none of the runs' folders."""
    return replace(settings, storage=tmp_path / "other", home=tmp_path / "elsewhere")


def children(settings: Settings, swept: Result) -> list[Any]:
    client = MlflowClient(settings.tracking)
    parent = client.get_run(swept.run_id)
    query = f"tags.mlflow.parentRunId = '{swept.run_id}'"
    return list(client.search_runs([parent.info.experiment_id], query))


# Repetition


def test_a_run_is_repeated_bitwise_and_linked(ran: Result, settings: Settings) -> None:
    told, code = again(settings, ran.id)
    assert (told["verdict"], code) == ("equal", DONE)
    assert {one["name"]: one["now"] for one in told["metrics"]} == dict(ran.metrics)
    assert told["reproduction"]["id"] != ran.id
    tags = MlflowClient(settings.tracking).get_run(told["reproduction"]["run_id"]).data.tags
    assert tags["orchestrator.reproduces"] == ran.run_id
    assert tags["orchestrator.reproduced"] == "equal"


def test_run_is_found_by_its_mlflow_id_without_its_folder(ran: Result, settings: Settings, tmp_path: Path) -> None:
    far = elsewhere(settings, tmp_path)
    assert ran.run_id
    known, here = recorded_run.find(far, ran.run_id), recorded_run.find(settings, ran.id)
    # ``quick`` logs neither the model nor its outcome; the curves are logged.
    assert known.metrics["train/loss"]
    assert (known.spec, known.data, known.kind) == (here.spec, here.data, "run")
    assert known.environment == here.environment


def test_different_metrics_are_reported_and_fail_the_reproduction(
    ran: Result, settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.support.toy.TEST_OPTIMUM", 1.500001)
    assert again(settings, ran.id, tolerance=1e-3)[0]["verdict"] == "within tolerance"
    told, code = again(settings, ran.id)
    assert (told["verdict"], code) == ("different", FAILED)
    assert {one["name"]: one["verdict"] for one in told["metrics"]}["validation/error"] == "equal"
    assert {one["name"]: one["verdict"] for one in told["metrics"]}["test/error"] == "different"
    assert "Reproduced: different (3 of 4 metrics bitwise)" in capsys.readouterr().out


@pytest.mark.parametrize("rows", [3, 6])
def test_a_run_that_never_ended_is_compared_as_far_as_it_came(ran: Result, settings: Settings, rows: int) -> None:
    """The record ends in the selection of four epochs, or in the refit."""
    (ran.folder / "outcome.json").unlink()
    history = ran.folder / "history.jsonl"
    history.write_text("".join(history.read_text().splitlines(keepends=True)[:rows]))
    told, code = again(settings, ran.id)
    assert (told["verdict"], code) == ("equal", DONE)
    assert any(one["name"].startswith("refit/") for one in told["metrics"]) == (rows > 4)


def test_reproduction_of_a_record_without_metrics_fails(
    ran: Result, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("outcome.json", "history.jsonl"):
        (ran.folder / name).unlink()
    told, code = again(settings, ran.id)
    assert (told["verdict"], code) == ("nothing to compare", FAILED)
    assert "Repeated, but not compared: no metric was recorded" in capsys.readouterr().out


def test_sweep_is_repeated_with_its_recorded_search_space(
    swept: Result, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spaces.py").write_text(SPACE.replace("0.05", "0.1"))
    told, code = again(settings, swept.id)
    assert (told["verdict"], code) == ("equal", DONE)
    assert told["reproduction"]["best_params"] == swept.extra["best_params"]
    assert "search space: recorded as" in capsys.readouterr().out


@pytest.mark.faults  # takes long
def test_recorded_sweep_includes_trials_added_on_resume(
    swept: Result, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_lookup.find(settings.storage, swept.id)
    more = sweep.resume(folder, settings, Console(), sweep.ResumeOptions(more_trials=2))
    assert "refused" not in capsys.readouterr().out
    known = recorded_run.find(elsewhere(settings, tmp_path), str(swept.run_id))
    assert isinstance(known.spec, SweepSpec)
    assert (known.spec.search.trials, more.extra["trials"]) == (8, 8)
    assert MlflowClient(settings.tracking).get_run(swept.run_id).data.tags["search.trials"] == "8"


@pytest.mark.parametrize("ended", ["complete", "pruned"])
def test_a_trial_is_repeated_exactly_by_each_of_its_names(ended: str, swept: Result, settings: Settings) -> None:
    """A pruned trial is repeated up to where it was stopped. Test is not evaluated, even if an old record has it."""
    child = next(run for run in children(settings, swept) if run.data.tags["orchestrator.state"] == ended)
    MlflowClient(settings.tracking).log_metric(child.info.run_id, "test/error", 1.0, step=1)
    for name in (child.info.run_id, child.data.tags["orchestrator.key"]):
        told, code = again(settings, name)
        assert (told["kind"], told["verdict"], code) == ("trial", "equal", DONE)
        assert {one["name"]: one["now"] for one in told["metrics"]} == child.data.metrics
        assert not [one for one in told["metrics"] if one["name"].startswith("test/")]


def test_repeating_a_failed_trial_raises_its_failure(settings: Settings, quick: None, tmp_path: Path) -> None:
    (tmp_path / "spaces.py").write_text(SPACE.replace("}", ", 'nan_at': trial.number % 2 + 2}"))
    search = {"space": f"{tmp_path / 'spaces.py'}:near", "trials": 2}
    spec = request.sweep("toy", settings, overrides={"epochs": "4"}, search=search, local=True)
    with pytest.raises(RunFailed) as failed:
        sweep.sweep(spec, settings, LOCAL, Console())
    with pytest.raises(RunFailed, match="nan at epoch 2"):
        again(settings, f"{failed.value.trial}/0")


@pytest.mark.usefixtures("third_party")
def test_reproduce_command_reports_uncommitted_changes_since_the_run(
    home: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a repository that is edited between the runs, the run is repeated and the change is reported."""
    (home / ".gitignore").write_text("*\n!mine.py\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *words], cwd=home, check=True)
    monkeypatch.chdir(home)
    first = typed(home, "run", "toy", "epochs=3", "--local")
    assert first.returncode == DONE, first.stderr
    (home / "mine.py").write_text("API_KEY = 'k1k2k3'\n")
    second = typed(home, "reproduce", "run", "latest", "--json")
    assert second.returncode == DONE, second.stderr
    told = json.loads(second.stdout.splitlines()[-1])
    assert told["verdict"] == "equal"
    assert {"what": "uncommitted changes of project", "then": None, "now": "1 file"} in told["differences"]
    kept = home / "storage" / told["reproduction"]["id"] / "source.diff"
    assert kept.read_text().endswith("+API_KEY = '***'\n")
    assert Store(home).tag("mlflow.source.git.dirty") == ["false", "false"]
    third = typed(home, "reproduce", "run", "nobody")
    assert third.returncode == USAGE
    assert third.stderr.startswith("error: Unknown run: got 'nobody'")


# Options that run nothing


def test_check_runs_nothing(ran: Result, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "run", None)
    told, code = again(settings, ran.id, check=True)
    assert code == DONE
    assert told == {"id": ran.id, "run_id": ran.run_id, "kind": "run", "differences": told["differences"]}


def test_script_has_commands_that_restore_code_and_repeat_the_run(ran: Result, settings: Settings) -> None:
    file = ran.folder / "environment.json"
    source = {
        "name": "project",
        "commit": "c0ffee",
        "url": "https://h/a b.git",
        "diff": "source.diff",
        "left_out": ["x"],
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | {"sources": [source]}))
    lines = again(settings, ran.id, script=True)[0]["script"]
    assert lines[4:8] == [
        "git clone -- 'https://h/a b.git' project",
        "git -C project checkout c0ffee",
        f"git -C project apply {ran.folder / 'source.diff'}",
        "# not recorded: x",
    ]
    assert any(line.startswith("pip install torch==") for line in lines)
    assert "orchestrator run toy lr=0.07" in lines[-2]
    assert "--seed=5" in lines[-2]
    assert lines[-2].endswith("--local")
    assert lines[-1] == f"orchestrator reproduce run {ran.run_id}"
    subprocess.run(["sh", "-n"], input="\n".join(lines), text=True, check=True)


# Damaged or missing records, and those of other versions


def test_damaged_or_old_environment_is_reported_as_a_difference(ran: Result, settings: Settings) -> None:
    for content in ("{", "[]", '{"format": 99}', '{"python": "3.11", "code": {}}'):
        (ran.folder / "environment.json").write_text(content)
        told, code = again(settings, ran.id, check=True)
        assert "environment" in [one["what"] for one in told["differences"]]
        assert code == DONE


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "spec.json of the run is damaged"),
        (None, "has no spec.json"),
        ('{"format": 99}', "another format: got 99; allowed: 1"),
        ('{"workload": "toy", "params": {}, "colour": 1, "plan": {"speed": 2}}', "got plan.speed, colour"),
        ('{"params": {}}', "is not valid in this version: got workload"),
    ],
)
def test_unreadable_spec_is_refused(
    content: str | None, said: str, ran: Result, settings: Settings, tmp_path: Path
) -> None:
    client = MlflowClient(settings.tracking)
    file = Path(client.get_run(ran.run_id).info.artifact_uri) / "spec.json"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(UserError) as refused:
        recorded_run.find(elsewhere(settings, tmp_path), str(ran.run_id))
    assert said in str(refused.value)
    assert refused.value.code == USAGE


def test_spec_without_a_format_is_read_like_the_current_one(ran: Result, settings: Settings, tmp_path: Path) -> None:
    file = Path(MlflowClient(settings.tracking).get_run(ran.run_id).info.artifact_uri) / "spec.json"
    values = json.loads(file.read_text())
    del values["format"]
    file.write_text(json.dumps(values))
    assert (
        recorded_run.find(elsewhere(settings, tmp_path), str(ran.run_id)).spec
        == recorded_run.find(settings, ran.id).spec
    )


def test_error_for_a_trial_without_spec_names_the_closest_command(swept: Result, settings: Settings) -> None:
    child = children(settings, swept)[0]
    MlflowClient(settings.tracking).delete_tag(child.info.run_id, "orchestrator.spec")
    with pytest.raises(UserError, match="closest is: orchestrator run toy"):
        again(settings, child.info.run_id)


def test_unknown_or_foreign_runs_raise_user_error(settings: Settings) -> None:
    for name in ("nobody", "0" * 32, "nobody/3"):
        with pytest.raises(UserError, match="Unknown") as refused:
            again(settings, name)
        assert refused.value.code == USAGE
    client = MlflowClient(settings.tracking)
    foreign = client.create_run(client.create_experiment("foreign")).info.run_id
    with pytest.raises(UserError, match="not made by orchestrator"):
        again(settings, foreign)


def test_metrics_are_logged_when_artifacts_cannot_be_written(
    settings: Settings, quick: None, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "artifacts").write_text("a file where the folder would be")
    spec = request.experiment("toy", settings, overrides={"epochs": "4"}, local=True)
    result = driver.run(spec, settings, LOCAL, Console())
    known = MlflowClient(settings.tracking).get_run(result.run_id)
    assert known.data.metrics["train/loss"]
    assert known.info.status == "FINISHED"
    assert "spec.json is not on the run" in capsys.readouterr().out


def test_unfinished_run_has_its_recorded_metrics_without_the_epoch(ran: Result, settings: Settings) -> None:
    (ran.folder / "outcome.json").unlink()
    found = recorded_run.find(settings, ran.id)
    assert "train/loss" in found.metrics
    assert "epoch" not in found.metrics
