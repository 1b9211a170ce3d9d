"""A registered VERA model ranks new lists of candidates: ranking, c^(k), evidence, and abstention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import orchestrator
from orchestrator.registry import prediction
from orchestrator.storage.settings import resolve


def test_registered_vera_model_ranks_and_abstains_below_the_threshold(database: Path, tmp_path: Path) -> None:
    trained = orchestrator.run(
        "vera", local=True, register="answers", epochs=4, eval_candidates=8, hidden=16, eval_resamples=20, lr=5e-3
    )
    example = orchestrator.load_model("answers@latest").metadata.load_input_example()
    assert example is not None
    asked, answered = tmp_path / "asked.parquet", tmp_path / "answered.parquet"
    # The same candidates for two questions, the second list from last to first.
    lists = pd.concat([example, example[::-1].assign(query="rel0 of nobody")], ignore_index=True)
    lists.to_parquet(asked)
    prediction.predict(resolve(), "answers/1", str(asked), str(answered), {})
    found = pd.read_parquet(answered)
    assert found["candidate"].tolist() == lists["candidate"].tolist()
    assert (found["kappa"] > 0).all()
    for _, answers in found.groupby("query"):
        assert answers.sort_values("rank")["score"].is_monotonic_decreasing
        first = answers[answers["rank"] <= answers["k"]]
        assert answers["confidence"].tolist() == pytest.approx([1 - np.prod(1 - first["probability"])] * len(answers))
    threshold = trained.metrics["test/selective/score/threshold"]
    assert found["abstain"].tolist() == (found["confidence"] < threshold).tolist()
