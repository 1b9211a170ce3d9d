"""A small VERA for the tests, on generated questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from workloads.contract import Runtime
from workloads.vera.params import Params
from workloads.vera.workload import Vera

SMALL: dict[str, Any] = {
    "eval_candidates": 8, "hidden": 8, "batch_size": 64, "lr": 5e-3, "dropout": 0.0, "stage_share": (1.0, 0.0, 1.0),
    "eval_resamples": 20, "max_length": 16,
}  # fmt: skip
BASELINE: dict[str, Any] = {"stage_share": None}
RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=7, epochs=4)


def build(runtime: Runtime = RUNTIME, **params: Any) -> Vera:
    return Vera(Params(**{**SMALL, **params}), runtime)
