"""Lifelong retrieval through Ray Train: the model of every session is a version."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from orchestrator.registry import models as registry
from orchestrator.registry import prediction
from orchestrator.storage.settings import resolve
from tests.support.commands import Command, Store


def test_model_of_every_session_is_registered_as_a_version(home: Path, database: Path, tmp_path: Path) -> None:
    settings = ("max_length=16", "split_sessions=1", "n_new=2", "candidates=8", "epochs=2", "steps_per_epoch=2")
    run = Command(home, "run", "lifelong", *settings, "--cpus-per-worker", "1", "--register", "search", "--json")
    assert run.end() == 0, run.text()
    metrics = json.loads(run.text().splitlines()[-1])["metrics"]
    assert metrics["test/sessions_ended"] == 2
    Store(home).check()

    client = registry.client(resolve())
    tags = [client.get_model_version("search", number).tags for number in ("1", "2")]
    assert [(tag["session"], tag["orchestrator.epoch"]) for tag in tags] == [("0", "1"), ("1", "2")]
    assert tags[1]["orchestrator.parent"] == "1"

    queries, found = tmp_path / "queries.csv", tmp_path / "found.csv"
    pd.DataFrame({"query": ["said0x1 said0x2"]}).to_csv(queries, index=False)
    rows = []
    for number in (1, 2):
        prediction.predict(resolve(), f"search/{number}", str(queries), str(found), {"k": 10_000})
        rows.append(len(pd.read_csv(found)))
    assert rows[0] < rows[1] == metrics["test/documents_embedded"]
