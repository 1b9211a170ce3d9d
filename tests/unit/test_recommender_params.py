"""Hyperparameters of the recommender: names, bounds, contradictions, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from workloads.losses.pairwise import PAIRWISE
from workloads.recommender import params as names
from workloads.recommender.params import Params
from workloads.sampling.negatives import SAMPLERS


def test_names_have_their_functions() -> None:
    assert set(get_args(names.Loss)) == set(PAIRWISE)
    assert set(get_args(names.Sampler)) == set(SAMPLERS)


def test_every_parameter_is_described() -> None:
    assert all(field.description for field in Params.model_fields.values())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layers": 2}, "layers=2 has no effect with backbone=mf"),
        ({"lr_decay_every": 5}, "lr_decay_every=5 has no effect with lr_decay=1"),
        ({"lr": 0}, "greater than 0"),
        ({"lr": float("nan")}, "finite number"),
        ({"dim": 0}, "greater than or equal to 1"),
        ({"loss": "brp"}, "'bpr'"),
        ({"learning_rate": 0.1}, "not permitted"),
    ],
)
def test_parameters_that_can_not_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(**given)


def test_all_values_of_a_run_can_be_given_again() -> None:
    for params in (Params(), Params(backbone="lightgcn", layers=3, lr_decay=0.1, lr_decay_every=7)):
        assert Params(**params.model_dump()) == params


def test_parameters_import_nothing_heavy() -> None:
    command = (
        "import sys, workloads.recommender.params;"
        "print([m for m in ('torch', 'numpy', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
