"""The dataset entry of a run for the Datasets column of MLflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.tracking import lineage
from workloads.data import datasets, fingerprint, load_interactions


def test_a_generated_dataset_is_embedded_and_counted(tmp_path: Path) -> None:
    found = lineage.dataset({"dataset": "synthetic", "lr": 0.1}, tmp_path)
    assert found is not None
    assert found["name"] == "synthetic"
    assert json.loads(found["source"]) == {"uri": "embedded"}
    assert len(found["digest"]) <= 36
    assert fingerprint("synthetic", tmp_path).startswith(found["digest"])
    data = load_interactions("synthetic", tmp_path)
    profile = json.loads(found["profile"])
    assert (profile["users"], profile["items"], profile["files"]) == (data.n_users, data.n_items, 0)
    assert profile["interactions"] == len(data.train) + len(data.test)


def test_a_large_dataset_is_not_read_for_its_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("user,item\n1,2\n1,3\n")
    monkeypatch.setattr(datasets, "LARGE_BYTES", table.stat().st_size)
    monkeypatch.setattr(datasets, "load_function", lambda name: pytest.fail(f"called {name}"))
    found = lineage.dataset({"dataset": str(table)}, tmp_path)
    assert found is not None
    assert json.loads(found["profile"]) == {"files": 1, "bytes": table.stat().st_size}


def test_a_file_that_changes_is_described_again(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("user,item\n1,2\n1,3\n")
    before = lineage.dataset({"dataset": str(table)}, tmp_path)
    table.write_text("user,item\n1,2\n1,3\n2,3\n")
    after = lineage.dataset({"dataset": str(table)}, tmp_path)
    assert before is not None
    assert after is not None
    assert before["digest"] != after["digest"]
    assert json.loads(after["profile"])["interactions"] == 3


def test_parameters_without_a_dataset_have_no_lineage(tmp_path: Path) -> None:
    assert lineage.dataset({"lr": 0.1}, tmp_path) is None


@pytest.mark.data("ml-100k")
def test_source_of_a_real_dataset_is_its_folder_name_not_a_local_path() -> None:
    from workloads.data import default_data_root

    found = lineage.dataset({"dataset": "ml-100k"}, default_data_root())
    assert found is not None
    assert json.loads(found["source"]) == {"uri": "ml-100k"}
    profile = json.loads(found["profile"])
    assert (profile["users"], profile["items"], profile["interactions"]) == (943, 1682, 100_000)
