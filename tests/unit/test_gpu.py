"""What needs a CUDA device. Skips visibly where there is none; ``make test-gpu`` runs these alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from workloads.contract import Runtime
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.mark.parametrize("backbone", ["mf", "lightgcn"])
def test_a_gpu_learns_what_a_cpu_learns(backbone: str) -> None:
    params = Params(backbone=backbone, lr=0.01)
    cpu = Runtime(device=torch.device("cpu"), data=Path(), seed=5, epochs=3)
    seen = []
    for runtime in (cpu, replace(cpu, device=torch.device("cuda"))):
        workload = Recommender(params, runtime)
        losses = [workload.train_epoch(epoch)["loss"] for epoch in (1, 2, 3)]
        seen.append([*losses, workload.evaluate("validation").metrics["ndcg_at_20"]])
    assert seen[0] == pytest.approx(seen[1], rel=1e-3, abs=2e-3)


def test_bf16_stays_close() -> None:
    runtime = Runtime(device=torch.device("cuda"), data=Path(), seed=5, epochs=3)
    losses = []
    for precision in ("fp32", "bf16"):
        workload = Recommender(Params(backbone="lightgcn", lr=0.01), replace(runtime, precision=precision))
        losses.append([workload.train_epoch(epoch)["loss"] for epoch in (1, 2, 3)])
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
