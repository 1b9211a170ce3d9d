"""Registered models on a real store."""

from __future__ import annotations

from pathlib import Path

from orchestrator.registry import models
from orchestrator.tracking import store


def test_a_registered_model_has_a_description_that_others_may_change(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    store.ensure(uri)
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
