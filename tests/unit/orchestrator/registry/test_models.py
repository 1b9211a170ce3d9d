"""Registered models on a real store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.promotion.evidence import gather
from orchestrator.provenance.record import SPEC
from orchestrator.registry import models, versions
from orchestrator.storage.names import OUTCOME, OUTCOMES, TEST_UNITS
from orchestrator.storage.settings import resolve
from orchestrator.tracking import store
from tests.support.refusals import refused
from tests.support.registered import register


@pytest.mark.slow
def test_edited_description_of_a_registered_model_is_kept(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    store.ensure(uri, tmp_path)
    client = MlflowClient(uri, uri)
    run = client.create_run("0", tags={"orchestrator.workload": "recommender"}).info.run_id

    def register(folder: str) -> str:
        return models._register(client, "my rec", str(tmp_path / folder), run, None, {}, "")  # type: ignore[arg-type]

    assert register("a") == "1"
    text = client.get_registered_model("my rec").description
    assert "workload recommender" in text
    assert "orchestrator promote 'my rec' --to champion" in text
    client.update_registered_model("my rec", "ours")
    assert register("b") == "2"
    assert client.get_registered_model("my rec").description == "ours"


@pytest.mark.slow
def test_later_winner_of_a_sweep_does_not_overwrite_the_earlier_record(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = resolve({})
    client = models.client(settings)
    register(settings, tmp_path / "first", "rec", "recommender", {"lr": 0.01})
    run = client.get_model_version("rec", "1").run_id
    register(settings, tmp_path / "second", "rec", "recommender", {"lr": 0.02}, 2, run=run)

    def record(number: int) -> dict[str, Any]:
        version = versions.find(settings, f"rec/{number}")
        target = tmp_path / f"record-{number}"
        target.mkdir(exist_ok=True)
        found = {name: versions.record_json(settings, version, name, target) for name in (SPEC, OUTCOME)}
        return found | {TEST_UNITS: versions.record_file(settings, version, TEST_UNITS, target) is not None}

    before, after = record(1), record(2)
    assert (before[SPEC]["params"]["lr"], after[SPEC]["params"]["lr"]) == (0.01, 0.02)
    assert (before[OUTCOME]["epochs"], after[OUTCOME]["epochs"]) == (1, 2)
    assert before[TEST_UNITS]
    assert after[TEST_UNITS]
    evidence = gather(client, client.get_model_version("rec", "1"))
    assert evidence.spec is not None
    assert evidence.spec["params"]["lr"] == 0.01

    # As stored by an earlier version of this program: the files at the top are those of the later winner.
    artifacts = Path(client.get_run(run).info.artifact_uri.removeprefix("file://"))
    shutil.rmtree(artifacts / OUTCOMES)
    assert record(1)[OUTCOME] == {}
    assert not record(1)[TEST_UNITS]
    assert record(2)[OUTCOME] == after[OUTCOME]
    evidence = gather(client, client.get_model_version("rec", "1"))
    assert (evidence.metrics, evidence.units) == ({}, None)


def test_download_folder_is_removed_when_the_model_object_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow.pyfunc  # otherwise the attribute is set on a lazy stand-in, which the first use replaces

    class Loaded:
        def __init__(self, uri: str, dst_path: str | None = None) -> None:
            self.folder = dst_path

    monkeypatch.setattr(mlflow.pyfunc, "load_model", Loaded)
    local = models.load(resolve({"tracking": "sqlite:///here.db"}), "models:/rec/1")
    assert local.folder is None
    loaded = models.load(resolve({"tracking": "http://127.0.0.1:1"}), "models:/rec/1")
    folder = Path(loaded.folder)
    assert folder.is_dir()
    del loaded
    assert not folder.exists()


@pytest.mark.slow
def test_concurrent_registration_of_the_same_new_name_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both processes find no such name, and the second cannot create it because the first has created it."""
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    store.ensure(uri, tmp_path)
    client = MlflowClient(uri, uri)
    create = MlflowClient.create_registered_model

    def second(self: Any, name: str, **more: Any) -> Any:
        create(self, name, description="of the first")
        return create(self, name, **more)

    monkeypatch.setattr(MlflowClient, "create_registered_model", second)
    run = client.create_run("0").info.run_id
    assert models._register(client, "new", str(tmp_path / "a"), run, None, {}, "") == "1"  # type: ignore[arg-type]
    assert client.get_registered_model("new").description == "of the first"


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["", "@champion", "/tmp/model"])
def test_reference_without_a_model_name_is_refused_and_quoted_in_full(reference: str, home: Path) -> None:
    words = (f"No registered model has this name: got {reference!r}; allowed: MODEL@ALIAS",)
    refused(lambda: versions.resolve(resolve({}), reference), *words)
    refused(lambda: versions.find(resolve({}), reference), *words)
