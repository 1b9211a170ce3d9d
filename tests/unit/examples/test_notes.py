"""Experiment files in examples/notes: each is valid and trains, and has the settings of the notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.parsing import read_experiment
from orchestrator.config.plan import Plan
from tests.support.readme_tree import ROOT
from workloads.catalog import catalog
from workloads.contract import Runtime

NOTES = sorted((ROOT / "examples/notes").glob("*.yaml"))

SMALL: dict[str, dict[str, Any]] = {
    "bcl": {"dataset": "synthetic-images", "dataset_size": 8, "encoder": "tiny", "batch_size": 128},
    "l2r": {
        "dataset": "synthetic-retrieval",
        "encoder": "tiny",
        "max_length": 24,
        "split_sessions": 1,
        "candidates": 12,
    },
    "ranknet": {"dataset": "synthetic-retrieval", "encoder": "tiny", "max_length": 32, "eval_candidates": 20},
    "sts-b": {"dataset": "synthetic-pairs", "encoder": "tiny"},
    "vera": {"dataset": "synthetic-questions", "encoder": "tiny", "hidden": 16, "eval_resamples": 20},
}
"""Settings with which a file is trained for a step, instead of its data and encoder."""


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.encoders.sources._check_hub", lambda *_: None)


def test_every_notes_file_has_small_test_settings() -> None:
    assert {file.stem for file in NOTES} == SMALL.keys()


@pytest.mark.parametrize("file", NOTES, ids=lambda file: file.stem)
def test_notes_file_is_valid_and_trains_one_step(file: Path) -> None:
    """The file is valid unchanged; with generated data and an untrained encoder, it trains one step."""
    import torch

    values = read_experiment(file).values
    entry = catalog()[values["workload"]]
    params = entry.load_params()(**values["params"])
    plan = Plan(**values["plan"])
    assert f"orchestrator run --config examples/notes/{file.name}" in file.read_text()
    assert file.read_text().startswith(f"# yaml-language-server: $schema={values['workload']}.schema.json\n")
    if check := getattr(params, "check_plan", None):
        check(plan.epochs, False)
    workload = entry.load()
    runtime = Runtime(device=torch.device("cpu"), data=Path(), seed=1, epochs=plan.epochs, steps_per_epoch=1)
    metrics = workload(workload.Params(**{**values["params"], **SMALL[file.stem]}), runtime).train_epoch(1)
    assert metrics["loss"] == metrics["loss"], "the loss is NaN"


def test_notes_files_have_the_settings_of_the_notes() -> None:
    """STS-B 6.6 and VERA 6."""
    sts, vera = (read_experiment(ROOT / f"examples/notes/{name}.yaml").values for name in ("sts-b", "vera"))
    printed = {"batch_size": 32, "lr": 2e-5, "warmup": 0.1, "weight_decay": 0.01, "clip": 1.0, "max_length": 128}
    assert printed.items() <= sts["params"].items()
    assert sts["plan"] == {"epochs": 5, "patience": 3}
    ranges = {
        "cand_weight": (0.1, 0.3),
        "query_weight": (0.5, 1),
        "cons_weight": (0.1, 0.3),
        "negative_weight": (0.01, 0.1),
    }
    assert all(low <= vera["params"][name] <= high for name, (low, high) in ranges.items())
    assert (vera["params"]["query_alpha"], vera["params"]["query_beta"]) == (0.7, 1.0)
