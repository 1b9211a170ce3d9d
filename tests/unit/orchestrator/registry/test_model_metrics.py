"""Test values on logged models: the Models page's search ranks by them, on the dataset, with their intervals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, Metric

from orchestrator.registry import model_metrics
from orchestrator.runs import worker


def outcome(folder: Path, value: float, moment: float, epochs: int = 3) -> Path:
    """An outcome whose metric is the mean of four test units."""
    folder.mkdir()
    values = {"epochs": epochs, "metrics": {"test/hit": value, "validation/hit": 0.9}, "time": moment}
    (folder / "outcome.json").write_text(json.dumps(values))
    units = [value - 0.1, value + 0.1, value - 0.1, value + 0.1]
    worker.write_table({"id": range(4), "hit": units}, folder / "test_units.parquet")
    return folder


def test_search_ranks_models_by_their_test_values(database: Path, tmp_path: Path) -> None:
    client = MlflowClient(f"sqlite:///{database}")
    for number, value in enumerate((0.2, 0.6, 0.4)):
        run = client.create_run("0").info.run_id
        client.log_inputs(run, [DatasetInput(Dataset("ml-100k", f"d{number // 2}", "local", "{}"))])
        client.log_batch(run, metrics=[Metric("test/hit", value, 1_700_000_000_123, 7)])
        model = client.create_logged_model("0", f"model-{number}", source_run_id=run)
        model_metrics.link(client, run, model.model_id, outcome(tmp_path / str(number), value, 1_700_000_000.1234))
        (seen,) = client.get_metric_history(run, "test/hit")
        assert (seen.value, seen.step) == (value, 7), "the run keeps one value, at its own step"
    best_first = [{"field_name": "metrics.test/hit", "ascending": False}]
    found = client.search_logged_models(["0"], order_by=best_first)
    assert [one.name for one in found] == ["model-1", "model-2", "model-0"]
    on_data = [{**best_first[0], "dataset_name": "ml-100k", "dataset_digest": "d0"}]
    assert [one.name for one in client.search_logged_models(["0"], order_by=on_data)][:2] == ["model-1", "model-0"]
    values = {one.key: (one.value, one.step, one.dataset_name) for one in found[0].metrics}
    half = 1.96 * (0.04 / 3) ** 0.5 / 2
    assert values["test/hit"] == (0.6, 7, "ml-100k")
    assert values["test_low/hit"][0] == pytest.approx(0.6 - half)
    assert values["test_high/hit"][0] == pytest.approx(0.6 + half)
    assert "validation/hit" not in values, "after a refit, validation values are not those of the model"


def test_each_sealed_version_has_the_values_of_its_session(database: Path, tmp_path: Path) -> None:
    """The last version is the outcome, which is written some time after its epoch; the run has the epoch's values."""
    client = MlflowClient(f"sqlite:///{database}")
    run = client.create_run("0").info.run_id
    for session, value in enumerate((0.5, 0.3), 1):
        client.log_batch(run, metrics=[Metric("test/hit", value, session * 1000, session)])
    seen = []
    for session, value in enumerate((0.5, 0.3), 1):
        model = client.create_logged_model("0", f"session-{session}", source_run_id=run)
        model_metrics.link(
            client, run, model.model_id, outcome(tmp_path / str(session), value, session + 0.1 * (session > 1), session)
        )
        seen += [
            (one.value, one.step) for one in client.get_logged_model(model.model_id).metrics if one.key == "test/hit"
        ]
    assert seen == [(0.5, 1), (0.3, 2)]
    assert len(client.get_metric_history(run, "test/hit")) == 2


@pytest.mark.parametrize(("step", "values"), [(0, [(0.4, 0)]), (5, [(0.2, 0), (0.4, 5)])], ids=["its own", "earlier"])
def test_values_of_step_0_that_mlflow_copied_are_kept(
    database: Path, tmp_path: Path, step: int, values: list[tuple[float, int]]
) -> None:
    """``log_model`` copies the values to each model of the run, also to that of a later winner with other values."""
    client = MlflowClient(f"sqlite:///{database}")
    run = client.create_run("0").info.run_id
    client.log_inputs(run, [DatasetInput(Dataset("ml-100k", "d0", "local", "{}"))])
    logged = [Metric("test/hit", value, 1000 + at, at) for value, at in values]
    client.log_batch(run, metrics=logged)
    model = client.create_logged_model("0", "winner", source_run_id=run).model_id
    first = logged[0]
    copied = Metric("test/hit", first.value, first.timestamp, first.step, model_id=model, run_id=run)
    client.log_batch(run, metrics=[copied])
    model_metrics.link(client, run, model, outcome(tmp_path / "one", 0.4, (1000 + step) / 1000, step))
    seen = [(one.value, one.step) for one in client.get_logged_model(model).metrics if one.key == "test/hit"]
    assert sorted(seen) == values
