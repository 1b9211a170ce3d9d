"""The grid: every combination once, conditional parameters included. A sweep runs exactly these points."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from pydantic import BaseModel

from orchestrator.errors import UserError
from orchestrator.search import grid
from tests.support.searching import begin, complete, study


def flat(trial: Any) -> dict[str, Any]:
    return {
        "kind": trial.suggest_categorical("kind", ["a", None, True]),
        "dim": trial.suggest_int("dim", 2, 9, step=3),
        "lr": trial.suggest_float("lr", 0.0, 0.3, step=0.1),
    }


def branching(trial: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"backbone": trial.suggest_categorical("backbone", ["mf", "gcn", "none"])}
    if found["backbone"] == "gcn":
        found["layers"] = trial.suggest_int("layers", 1, 3)
        if found["layers"] == 3:
            found["norm"] = trial.suggest_categorical("norm", [False, True])
    return found | {"lr": trial.suggest_categorical("lr", [0.1, 0.2])}


def test_grid_has_every_combination_once() -> None:
    found = grid.points(flat, {})
    expected = [
        {"kind": kind, "dim": dim, "lr": pytest.approx(lr)}
        for kind, dim, lr in itertools.product(["a", None, True], [2, 5, 8], [0.0, 0.1, 0.2, 0.3])
    ]
    assert found == expected
    assert [type(point["dim"]) for point in found[:1]] == [int]


@pytest.mark.parametrize(("low", "high", "step"), [(0.0, 0.3, 0.1), (0.1, 0.7, 0.2), (0.0, 1.0, 0.3), (1.0, 1.0, 0.5)])
def test_every_point_lies_in_the_space(low: float, high: float, step: float) -> None:
    """0 + 3 * 0.1 is greater than 0.3, so a bound of the workload itself would refuse it."""
    distribution = optuna.distributions.FloatDistribution(low, high, step=step)
    found = [p["lr"] for p in grid.points(lambda t: {"lr": t.suggest_float("lr", low, high, step=step)}, {})]
    for value in found:
        assert low <= value <= high
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "The value .* is out of the range")
            assert optuna.trial.FixedTrial({"lr": value}).suggest_float("lr", low, high, step=step) == value
    assert len(found) == round((distribution.high - low) / step) + 1


def test_grid_of_a_conditional_space_has_the_points_of_each_branch() -> None:
    expected = [
        {"backbone": backbone, **more, "lr": lr}
        for backbone, more in [
            ("mf", {}),
            ("gcn", {"layers": 1}),
            ("gcn", {"layers": 2}),
            ("gcn", {"layers": 3, "norm": False}),
            ("gcn", {"layers": 3, "norm": True}),
            ("none", {}),
        ]
        for lr in (0.1, 0.2)
    ]
    assert grid.points(branching, {}) == expected


def test_fixed_parameters_are_not_dimensions_of_the_grid() -> None:
    found = grid.points(branching, {"backbone": "gcn", "lr": 0.5})
    assert found == [{"layers": 1}, {"layers": 2}, {"layers": 3, "norm": False}, {"layers": 3, "norm": True}]


def test_parameter_suggested_twice_is_one_dimension_of_the_grid() -> None:
    def twice(trial: Any) -> dict[str, Any]:
        return {"a": trial.suggest_int("a", 1, 3), "b": trial.suggest_int("a", 1, 3)}

    assert grid.points(twice, {}) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_float_parameter_without_step_is_refused() -> None:
    with pytest.raises(UserError, match="A grid needs steps, and lr has none: got suggest_float from"):
        grid.points(lambda trial: {"lr": trial.suggest_float("lr", 0.1, 0.2)}, {})
    with pytest.raises(UserError, match="lr has none"):
        grid.points(lambda trial: {"lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True)}, {})


def test_space_that_uses_the_trial_number_is_refused() -> None:
    with pytest.raises(UserError, match=r"A grid has no trial.number"):
        grid.points(lambda trial: {"lr": trial.suggest_int("lr", 1, 2 + trial.number)}, {})


@pytest.mark.parametrize("shape", ["one", "product"])
def test_grid_with_more_points_than_the_limit_is_refused(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "LIMIT", 30)

    def large(trial: Any) -> dict[str, Any]:
        if shape == "one":
            return {"a": trial.suggest_int("a", 0, 30)}
        return {name: trial.suggest_int(name, 1, 6) for name in "ab"}

    with pytest.raises(UserError, match="The grid has more than 30 points"):
        grid.points(large, {})


def unlucky(trial: Any) -> dict[str, Any]:
    dim = trial.suggest_int("dim", 1, 90)
    if dim == 77:
        raise ValueError("no such dim")
    return {"dim": dim, "kind": trial.suggest_categorical("kind", ["a", "b"])}


class Params(BaseModel):
    dim: int
    kind: str | None = None


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (unlucky, "The search space fails at a point of the grid, dim=77: ValueError: no such dim"),
        (
            lambda t: {"dim": "wide" if t.suggest_int("k", 1, 90) == 77 else 3},
            "a point of the grid, k=77: Parameter from the search space dim is not valid: got 'wide'",
        ),
        (
            lambda t: None if t.suggest_int("k", 1, 90) == 77 else {"dim": 3},
            "a point of the grid, k=77: The search space must return the parameters",
        ),
        (
            lambda t: {"dim": np.int64(3) if t.suggest_int("k", 1, 90) == 77 else 3},
            "a point of the grid, k=77: Parameter dim from the search space is not a plain value",
        ),
    ],
)
def test_a_point_at_which_the_space_fails_is_named(space: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        grid.points(space, {}, params=Params)


# Sweeps over a grid


def asked(folder: Path, **search: Any) -> list[dict[str, Any]]:
    running = study(folder, space=branching, sampler="grid", **search)
    found = []
    while (trial := running.next()) is not None:
        found.append(trial.params)
        complete(running, trial.seed_run, 0.5)
    return found


def test_a_sweep_runs_exactly_the_points(tmp_path: Path) -> None:
    points = grid.points(branching, {})
    assert asked(tmp_path / "whole", trials=len(points)) == points
    assert asked(tmp_path / "some", trials=5) == points[:5]


def test_a_resume_goes_on_with_the_next_point(tmp_path: Path) -> None:
    points = grid.points(branching, {})
    first = study(tmp_path, space=branching, sampler="grid", trials=5)
    for number in range(4):
        begin(first)
        complete(first, number, 0.5) if number != 2 else None
    first.fail(2, "the disk was full")
    second = study(tmp_path, space=branching, sampler="grid", trials=len(points))
    second.retry_failed()
    found = [begin(second).params for _ in range(len(points) - 4 + 1)]
    assert found == [points[2], *points[4:]], "a retried trial must not take a new point"
    assert second.next() is None


def test_point_enqueued_by_a_killed_driver_is_run_once(tmp_path: Path) -> None:
    points = grid.points(branching, {})
    first = study(tmp_path, space=branching, sampler="grid", trials=3)
    first.optuna_study.enqueue_trial(points[0])
    assert asked(tmp_path, trials=3) == points[:3]
