"""What ``loss=`` may name, what each of them reads, and the formulas: three places of a workload, the same names."""

from __future__ import annotations

from importlib import import_module
from typing import get_args

import pytest


@pytest.mark.parametrize("workload", ["recommender", "simclr", "bi_encoder"])
def test_a_loss_is_in_all_three_places(workload: str) -> None:
    params, reads, objectives = (
        import_module(f"workloads.{workload}.{module}") for module in ("params", "reads", "objectives")
    )
    assert set(get_args(params.Loss)) == set(reads.LOSSES) == set(objectives.OBJECTIVES)
