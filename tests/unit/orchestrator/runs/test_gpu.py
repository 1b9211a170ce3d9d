"""What needs a CUDA device. Skips visibly where there is none; ``make test-gpu`` runs these alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orchestrator.config.spec import Resources
from orchestrator.runs import reports, worker
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


def test_trials_trained_together_learn_what_they_learn_apart() -> None:
    """Within rounding: atomics add a step's gradients in any order, apart as well."""
    runtime = Runtime(device=torch.device("cuda"), data=Path(), seed=5, epochs=3)
    seen = []
    for together in (False, True):
        members = [
            Recommender(Params(lr=0.005 * (1 + k), weight_decay=1e-4 * k), replace(runtime, seed=k)) for k in range(3)
        ]
        pack = Recommender.pack(members) if together else None
        for epoch in (1, 2, 3):
            losses = pack.train_epoch([epoch] * 3) if pack else [member.train_epoch(epoch) for member in members]
        found = pack.evaluate(range(3), "validation") if pack else [member.evaluate("validation") for member in members]
        seen.append([row["loss"] for row in losses] + [one.metrics["ndcg_at_20"] for one in found])
    assert seen[0] == pytest.approx(seen[1], rel=1e-3, abs=2e-3)


def test_who_takes_more_than_its_part_fails_with_what_to_do() -> None:
    """Of a tenth of the memory a fifth of it cannot be had, however much is free."""
    device = worker.take_device(Resources(gpus_per_worker=0.1))
    try:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(torch.cuda.get_device_properties(device).total_memory // 5, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    told = reports.describe(caught.value)
    assert told.startswith("it does not fit into its share of the GPU's memory (--gpus-per-worker, batch_size): ")
    assert "\n" not in told
