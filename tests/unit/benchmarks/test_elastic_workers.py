"""Histories of runs that lost a worker: each epoch is read once, and the pause after the loss is measured."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def elastic() -> Any:
    return importlib.import_module("elastic_workers")


def test_the_pause_is_between_epochs_that_were_not_trained_before(elastic: Any, tmp_path: Path) -> None:
    trained = [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (3, 12.0), (4, 13.0), (5, 14.0), (6, 30.0)]
    repeated = [(2, 2.0), (3, 3.0)]  # epochs that a resume wrote again, with their earlier times
    rows = [json.dumps({"epoch": epoch, "time": time}) for epoch, time in [*trained[:5], *repeated, *trained[5:8]]]
    (tmp_path / "history.jsonl").write_text("\n".join([*rows, '{"epoch": 6, "ti']))
    epochs = elastic.lines(tmp_path.glob("*.jsonl"))
    assert [(row["epoch"], row["time"]) for row in epochs] == trained[1:8]
    assert elastic.pause(epochs, lost=3.5) == 10.0, "from the last new epoch to the next one"
    assert elastic.pause(epochs, lost=0.5) == 10.0
    assert elastic.pause(epochs[:4], lost=3.0 - 1e-6) == 1.0
