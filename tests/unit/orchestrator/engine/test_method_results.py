"""Checks of the values that a workload's methods return."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from orchestrator.config.plan import Plan
from orchestrator.engine.loop import run_epochs
from orchestrator.engine.method_results import NoResult, servable
from orchestrator.errors import FAILED
from tests.support.toy import Params, Toy
from workloads.contract import Evaluation, Runtime


def build() -> Toy:
    return Toy(Params(), Runtime(torch.device("cpu"), Path(), seed=1, epochs=12, holdout=True))


@pytest.mark.parametrize(
    ("method", "returned", "expected"),
    [
        ("train_epoch", None, "got None; allowed: a mapping of names to numbers, or an Evaluation."),
        ("train_epoch", {"loss": "low"}, "got {'loss': 'low'}; allowed: a mapping of names to numbers"),
        ("evaluate", None, "got None; allowed: an Evaluation of numbers."),
        ("evaluate", {"error": 0.5}, "got {'error': 0.5}; allowed: an Evaluation of numbers."),
        ("evaluate", Evaluation({"error": None}), "allowed: an Evaluation of numbers."),  # type: ignore[dict-item]
    ],
)
def test_error_of_an_invalid_result_names_class_and_method(
    method: str, returned: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, method, lambda self, what: returned)
    with pytest.raises(NoResult) as caught:
        list(run_epochs(build(), Plan(epochs=2)))
    assert f"tests.support.toy.Toy.{method} has returned no result: got " in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("units", "got"),
    [
        ({"id": np.arange(3), "error": np.zeros(2)}, "id of 3, error of 2"),
        ({"error": np.zeros(2)}, "error of 2"),
        ({"id": [0, 1], "error": np.zeros(2)}, "id: list, error: ndarray"),
        ({"id": np.arange(3), "error": np.zeros((3, 2))}, "id of 3, error of 3 x 2"),
        (None, "NoneType"),
        ([0, 1], "list"),
        (pd.DataFrame({"id": [0, 1]}), "id: Series"),
    ],
)
def test_units_that_cannot_be_stored_are_refused_at_the_first_evaluation(
    units: Any, got: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "evaluate", lambda self, split: Evaluation({"error": 0.5}, units))
    with pytest.raises(NoResult) as caught:
        next(run_epochs(build(), Plan(epochs=9)))
    assert "Toy.evaluate has returned units that are no table: got " + got in str(caught.value)
    assert "allowed: NumPy arrays of one length, one of them named id." in str(caught.value)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (None, "a table 'tables' that cannot be stored: got NoneType"),
        ({"curve": [1, 2]}, "a table 'curve' that cannot be stored: got list"),
        (
            {"curve": {"x": np.arange(3), "y": np.arange(2)}},
            "a table 'curve' that cannot be stored: got x of 3, y of 2",
        ),
        ({"curve": {"x": np.zeros((3, 2))}}, "a table 'curve' that cannot be stored: got x of 3 x 2"),
    ],
)
def test_tables_that_cannot_be_stored_are_refused_at_the_first_evaluation(
    tables: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "evaluate", lambda self, split: Evaluation({"error": 0.5}, {}, tables))
    with pytest.raises(NoResult, match=r"Toy\.evaluate has returned ") as caught:
        next(run_epochs(build(), Plan(epochs=9)))
    assert f"{words}; allowed: NumPy arrays of one length." in str(caught.value)


def test_a_table_may_be_a_data_frame_or_have_columns_of_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame({"x": [1, 2], "y": [0.5, 0.7]})
    tables: Any = {"curve": frame, "near": {"item": [3, 4], "items": [[1], [2, 3]], "pairs": [[1, 2], [3, 4]]}}
    monkeypatch.setattr(Toy, "evaluate", lambda self, split: Evaluation({"error": 0.5}, {}, tables))
    assert next(run_epochs(build(), Plan(epochs=9))).rows


def test_a_servable_with_sparse_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = build()
    served = replace(toy.servable(), weights={"graph": torch.eye(2).to_sparse()})
    monkeypatch.setattr(Toy, "servable", lambda self: served)
    with pytest.raises(NoResult, match=r"got weights graph: torch.sparse_coo; allowed: .*dense tensors"):
        servable(toy)


@pytest.mark.parametrize("part", ["weights", "config", "example", "params"])
def test_a_servable_with_a_part_that_is_no_mapping_is_refused(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = build()
    missing: dict[str, Any] = {part: None}
    served = replace(toy.servable(), **missing)
    monkeypatch.setattr(Toy, "servable", lambda self: served)
    with pytest.raises(NoResult, match=f"Toy.servable has returned no Servable: got {part}: NoneType"):
        servable(toy)


def test_a_servable_with_parts_of_other_types_is_refused() -> None:
    toy = build()
    good = toy.servable()
    weights = {"x": np.zeros(1)}
    other = replace(good, predictor=str(good.predictor), weights=weights, example={"user": [0, 1]})  # type: ignore[arg-type, dict-item]
    toy.servable = lambda: other  # type: ignore[method-assign]
    with pytest.raises(NoResult) as caught:
        servable(toy)
    got = "got predictor: str, example user: list, weights x: ndarray; allowed: a workloads.contract.Servable, its"
    assert got in str(caught.value)
    assert caught.value.code == FAILED  # training is over: `status` shows how to resume
