"""SimCLR on a CUDA device: results match those of a CPU, with and without compilation, and after a resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from workloads.contract import Runtime
from workloads.simclr.params import Params
from workloads.simclr.workload import SimCLR

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

CPU = Runtime(device=torch.device("cpu"), data=Path(), seed=5, epochs=2)
CUDA = replace(CPU, device=torch.device("cuda"))


def _built(runtime: Runtime, **params: Any) -> SimCLR:
    tiny = {"dataset_size": 16, "encoder": "tiny", "projection": 16, "batch_size": 128, "lr": 1e-4, "compile": False}
    return SimCLR(Params(**{**tiny, **params}), runtime)


@pytest.mark.parametrize("loss", ["infonce", "hcl", "bcl"])
def test_gpu_training_matches_cpu_training(loss: str) -> None:
    seen = []
    for runtime in (CPU, CUDA):
        workload = _built(runtime, loss=loss)
        losses = [workload.train_epoch(epoch)["loss"] for epoch in (1, 2)]
        metrics = workload.evaluate("validation").metrics
        seen.append([*losses, metrics["alignment"], metrics["uniformity"]])
    assert seen[0] == pytest.approx(seen[1], rel=1e-2)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("params", [{"compile": True}, {"channels_last": False}])
def test_compilation_and_memory_format_do_not_change_the_loss(params: dict[str, Any], accumulate: int) -> None:
    """With micro-batches, embeddings are computed once without and once with a graph."""
    runtime = replace(CUDA, accumulate=accumulate)
    plain, quick = _built(runtime), _built(runtime, **params)
    assert quick.train_epoch(1)["loss"] == pytest.approx(plain.train_epoch(1)["loss"], rel=1e-3)


@pytest.mark.parametrize("params", [
    {}, {"loss": "bcl", "alpha": "auc"}, {"method": "byol"}, {"method": "moco", "queue": 256},
    {"method": "protonce", "clusters": 8, "granularities": 1},
], ids=str)  # fmt: skip
def test_cuda_graph_steps_match_uncompiled_steps(params: dict[str, Any]) -> None:
    """A compiled step on one GPU is replayed as a CUDA graph, also after an evaluation."""
    seen = []
    for compiled in (False, True):
        workload = _built(replace(CUDA, epochs=3), compile=compiled, **params)
        losses = [workload.train_epoch(1)["loss"]]
        first = workload.evaluate("validation").metrics
        losses += [workload.train_epoch(epoch)["loss"] for epoch in (2, 3)]
        last = workload.evaluate("validation").metrics
        seen.append((losses, [row[name] for row in (first, last) for name in ("alignment", "uniformity")]))
    (plain, plain_metrics), (replayed, replayed_metrics) = seen
    assert replayed == pytest.approx(plain, rel=2e-3)
    assert replayed_metrics == pytest.approx(plain_metrics, rel=1e-2)  # the tolerance between GPU and CPU


def test_bf16_loss_is_close_to_float32() -> None:
    whole, half = _built(CUDA), _built(replace(CUDA, precision="bf16"))
    assert half.train_epoch(1)["loss"] == pytest.approx(whole.train_epoch(1)["loss"], rel=1e-2)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "lars"])
def test_gpu_training_resumes_from_a_state_on_the_cpu(optimizer: str) -> None:
    """A checkpoint restores tensors on the CPU and contiguous."""
    whole = _built(CUDA, optimizer=optimizer)
    whole.train_epoch(1)
    state = whole.state_dict()
    plain: dict[str, Any] = {
        "model": {name: value.detach().cpu().contiguous() for name, value in state["model"].items()},
        "optimizer": {
            name: {
                key: value.cpu().contiguous() if isinstance(value, torch.Tensor) else value
                for key, value in kept.items()
            }
            for name, kept in state["optimizer"].items()
        },
    }
    resumed = _built(CUDA, optimizer=optimizer)
    resumed.load_state_dict(plain)
    assert resumed.train_epoch(2)["loss"] == pytest.approx(whole.train_epoch(2)["loss"], rel=1e-3)
