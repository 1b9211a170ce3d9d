"""The logged model of a run: its requirements and its place among the user's own runs."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator.registry import logged_model, models
from orchestrator.storage.settings import resolve
from orchestrator.tracking.mlflow_globals import tracking_uri_set
from tests.support.registered import register


class Client:
    """MLflow's client with one logged model."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}

    def get_logged_model(self, model_id: str) -> Client:
        return self

    def set_logged_model_tags(self, model_id: str, tags: dict[str, str]) -> None:
        self.tags |= tags


def test_each_version_of_a_logged_model_is_noted_once() -> None:
    client = Client()
    client.tags["mlflow.modelVersions"] = json.dumps([{"name": "rec", "version": 1}])  # as a server writes it
    for name, number in (("rec", "1"), ("rec", "2"), ("other", "1"), ("rec", "2")):
        logged_model.note_version(client, "m-1", name, number)
    noted = json.loads(client.tags["mlflow.modelVersions"])
    assert [(one["name"], str(one["version"])) for one in noted] == [("rec", "1"), ("rec", "2"), ("other", "1")]


@pytest.mark.slow
def test_requirements_drop_the_local_build_suffix_of_versions(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version of a build of PyTorch for CPUs is 2.11.0+cpu."""
    import mlflow

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logged_model, "installed", lambda name: f"{version(name)}+cpu")
    settings = resolve({})
    register(settings, tmp_path / "run", "rec", "recommender", {})
    with tracking_uri_set(settings.tracking):
        listed = Path(mlflow.artifacts.download_artifacts("models:/rec/1/requirements.txt", dst_path=str(tmp_path)))
    needs = ("mlflow", "safetensors", "numpy", "pandas")
    assert listed.read_text().split() == [f"{name}=={version(name)}" for name in needs]


@pytest.mark.slow
def test_active_run_and_experiment_of_the_user_are_unchanged(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook that tracks its own work with MLflow."""
    import mlflow

    settings = resolve({})
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID"):  # which MLflow sets
        monkeypatch.setenv(variable, "")
    monkeypatch.setattr("mlflow.tracking.fluent._active_experiment_id", None)
    mlflow.set_tracking_uri(settings.tracking)
    own = mlflow.set_experiment("own").experiment_id
    with mlflow.start_run() as active:
        register(settings, tmp_path / "trained", "rec", "recommender", {"lr": 0.01})
        mlflow.log_metric("mine", 1.0)
    with mlflow.start_run() as next_one:
        pass
    assert active.info.experiment_id == next_one.info.experiment_id == own
    client = models.client(settings)
    assert client.get_run(active.info.run_id).data.metrics == {"mine": 1.0}
    version = client.get_model_version("rec", "1")
    logged = client.get_logged_model(version.source.removeprefix("models:/"))
    assert json.loads(logged.tags["mlflow.modelVersions"]) == [{"name": "rec", "version": "1"}]
    assert logged.experiment_id == client.get_run(version.run_id).info.experiment_id != own
