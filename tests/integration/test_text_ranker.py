"""MiniLM on Cranfield, from the training command to a prediction."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.support.commands import typed


@pytest.mark.slow
@pytest.mark.data("cran")
def test_a_pretrained_ranker_is_trained_registered_and_used(home: Path, database: Path, tmp_path: Path) -> None:
    """In a few steps the ranker learns little, but every part of it is used."""
    settings = (
        "dataset=cran", "encoder=minilm", "max_length=48", "eval_candidates=3", "positives=2", "ties=judged",
        "loss=adaptive_ranknet", "dropout=0", "epochs=1", "steps_per_epoch=2",
    )  # fmt: skip
    run = typed(home, "run", "text_ranker", *settings, "--local", "--register", "ranker", "--json")
    assert run.returncode == 0, run.stderr
    metrics = json.loads(run.stdout.splitlines()[-1])["metrics"]
    assert metrics["test/bm25_success_at_10"] == metrics["test/success_at_10"] > 0.4
    assert metrics["test/truncated"] == 1

    table = tmp_path / "pairs.csv"
    documents = ["heat transfer in laminar flow", "a cake with plums"]
    pd.DataFrame({"query": "what is laminar heat transfer", "document": documents}).to_csv(table, index=False)
    predict = typed(home, "predict", "ranker/1", "--input", str(table), "--output", str(tmp_path / "ranked.csv"))
    assert predict.returncode == 0, predict.stderr
    ranked = pd.read_csv(tmp_path / "ranked.csv")
    assert ranked["document"].tolist() == documents
    assert sorted(ranked["rank"]) == [1, 2]
