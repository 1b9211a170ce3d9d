"""Loss tables of the workloads: parameters, errors, training and listings follow from the row of a loss."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from orchestrator.cli.app import app
from tests.support.loss_tables import TABLES, WORKLOADS, readme, rows, written
from workloads.catalog import catalog
from workloads.contract import Runtime
from workloads.recommender.dataset import RecommenderData
from workloads.recommender.losses import LOSSES, RecommenderLoss
from workloads.recommender.params import Params
from workloads.sampling.sampler import Uniform


@pytest.mark.parametrize(("workload", "parameter"), [(name, each) for name, every in TABLES.items() for each in every])
def test_each_row_names_a_function_and_parameters_that_exist(workload: str, parameter: str) -> None:
    fields = import_module(f"workloads.{workload}.params").Params.model_fields
    assert "listed with their sources" in fields[parameter].description
    for name, row in rows(workload, parameter).items():
        assert callable(row.load()), name
        assert row.source, name
        assert set(row.params) <= set(fields), name
        assert set(getattr(row, "bounds", ())) <= set(row.params), name


def test_each_parameter_of_a_recommenders_loss_is_used() -> None:
    weights = {"bprac": {"credence", "prior_var", "e_steps"}, "supervised": {"truth"}}  # not arguments of the formula
    for name, row in LOSSES.items():
        values = dict.fromkeys(Params.model_fields) | dict.fromkeys(row.params, 3)
        drawn = {key for key in row.params if row.counts(values) != row.counts({**values, key: 7})}
        assert set(row.params) == {*row.keywords, *drawn, *weights.get(name, ())}, name


def added_loss(positive: torch.Tensor, negative: torch.Tensor, *, threshold: float) -> torch.Tensor:
    return (threshold - positive + negative).clamp(min=0)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    function, inputs = f"{__name__}:added_loss", ("positive", "negative")
    row = RecommenderLoss(function, "a test", inputs, {"threshold": 1.0}, pointwise=True)
    monkeypatch.setitem(LOSSES, "added", row)


@pytest.mark.usefixtures("added")
def test_added_loss_has_parameter_defaults_and_errors() -> None:
    assert Params(loss="added").threshold == 1
    assert Params(loss="added").tau is None
    with pytest.raises(ValidationError, match=r"tau=0\.1 has no effect with loss=added"):
        Params(loss="added", tau=0.1)
    with pytest.raises(ValidationError, match=r"set loss=denoise_truncated_bpr .*or loss=added"):
        Params(loss="bpr", threshold=2)
    with pytest.raises(ValidationError, match="sampler=in_batch does not go with loss=added"):
        Params(loss="added", sampler="in_batch")
    with pytest.raises(ValidationError, match="optimizer=sgd does not support loss=added"):
        Params(loss="added", optimizer="sgd")


@pytest.mark.usefixtures("added")
def test_added_loss_is_trained_and_listed_by_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ["loss=added", "threshold=0.5", "epochs=2"]
    words = ["run", "recommender", *row, "--local", "--tracking", "none", "--json", "--storage", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["orchestrator", *words])
    assert command(*words) == 0
    outcome: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert outcome["status"] == "finished"
    assert command("workloads", "recommender", "--json") == 0
    shown = [row for row in json.loads(capsys.readouterr().out) if row["section"] == "loss"]
    supports = {"draws": "1, 0", "in_batch": "", "compiled": "", "pointwise": "yes"}
    supports |= {"whole_batch": "", "true_negatives": ""}
    row = {"name": "added", "section": "loss", "source": "a test", "params": {"threshold": 1.0}}
    assert shown[-1] == row | supports
    assert command("workloads", "recommender") == 0
    assert "added" in capsys.readouterr().out


def of_scores(positive: torch.Tensor, negatives: torch.Tensor, *, temperature: float) -> torch.Tensor:
    CALLED.append("loss")
    return (negatives.mean(1) - positive) / temperature


def of_pairs(s_i: torch.Tensor, s_j: torch.Tensor, preference: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    CALLED.append("loss")
    return (scale - preference * (s_i - s_j)).clamp(min=0)


def drawn(params: Params, data: RecommenderData, root: Path) -> Uniform:
    CALLED.append("sampler")
    return Uniform(data.unobserved)


CALLED: list[str] = []


@pytest.mark.parametrize(
    ("workload", "parameter", "like", "function", "params"),
    [
        ("recommender", "sampler", "uniform", drawn, {"dim": 4}),
        ("recommender", "loss", "infonce", of_scores, {"dim": 4, "negatives": 2}),
        ("simclr", "loss", "infonce", of_scores, {"dataset_size": 8, "projection": 8, "batch_size": 16}),
        ("bi_encoder", "loss", "infonce", of_scores, {"batch_size": 8}),
        ("text_ranker", "loss", "margin", of_pairs, {"batch_size": 2}),
    ],
)
def test_added_row_of_each_table_is_called_in_training(
    workload: str, parameter: str, like: str, function: Any, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rows(workload, parameter)
    row = replace(table[like], function=f"{__name__}:{function.__name__}")
    monkeypatch.setitem(table, "added", row)
    code = catalog()[workload]
    params |= {parameter: "added"}
    runtime = Runtime(torch.device("cpu"), Path(), seed=1, epochs=1, steps_per_epoch=1)
    CALLED.clear()
    code.load()(code.load_params()(**params), runtime).train_epoch(1)
    assert [parameter] == CALLED


def command(*words: str) -> int:
    """The exit code of a command in this process."""
    code = app(list(words), standalone_mode=False)
    return int(code or 0)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_workload_readme_contains_the_loss_table(workload: str) -> None:
    assert readme(workload).read_text() == written(workload), "run: python -m tests.support.loss_tables"
