"""All workloads on a CUDA device: results match those of a CPU, TF32 is used only in training, and packs.

Requires only the imports of the workloads and of ``tests/support/device_cases.py``: no fixtures of the project, no
Ray, MLflow or Optuna (``benchmarks/gpu_day`` runs it where they are missing).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.device_cases import CASES, Case
from workloads.contract import Objective, Runtime
from workloads.precision import training_precision, use_full_float32
from workloads.recommender import batches
from workloads.recommender.workload import Recommender
from workloads.sampling.negatives import permutation
from workloads.seeding import derive

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
RUNTIME = Runtime(device=CUDA, data=Path(), seed=5, epochs=3)
Learned = tuple[list[float], dict[str, float]]
DROPOUT = {"vera-dropout"}
"""Cases with masks that a device draws by its own generator."""


@pytest.fixture(autouse=True)
def _equal_orders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the CPU use CUDA's order of a pass, and convolutions full float32."""
    equal_orders(monkeypatch)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    use_full_float32()
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def equal_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        batches, "_order", lambda seed, number, n, device: permutation(derive(seed, "order", number), n, device)
    )


def learned(case: Case, device: torch.device) -> Learned:
    """The losses of two epochs, and the metrics of the objectives."""
    built = case.build(device=device)
    losses = [built.train_epoch(epoch)["loss"] for epoch in (1, 2)]
    metrics = built.evaluate("validation").metrics
    objectives = (built.objective,) if isinstance(built.objective, Objective) else built.objective
    return losses, {objective.metric: metrics[objective.metric] for objective in objectives}


def assert_close(name: str, cpu: Learned, cuda: Learned) -> None:
    """Compare within rounding, that of bfloat16 if it is used.

    A metric of ranks may differ by the few units with nearly equal scores.
    """
    rough = CASES[name].runtime.get("precision") == "bf16"
    loss = 0.1 if name in DROPOUT else 1e-2 if rough else 1e-3
    metric = 0.1 if name in DROPOUT else 0.04 if name.startswith("simclr") else 0.02 if rough else 5e-3
    assert cuda[0] == pytest.approx(cpu[0], rel=loss)
    assert cuda[1] == pytest.approx(cpu[1], rel=5e-2, abs=metric)


@pytest.mark.parametrize("name", CASES)
def test_gpu_training_matches_cpu_training(name: str) -> None:
    assert_close(name, learned(CASES[name], CPU), learned(CASES[name], CUDA))


@pytest.mark.parametrize("n", [1, 1000, 2**20])
def test_a_permutation_is_the_same_on_every_device(n: int) -> None:
    """``torch.randperm`` on CUDA differs from the CPU's from about 900,000 numbers on."""
    key = derive(5, "order", 1)
    assert torch.equal(permutation(key, n, CUDA).cpu(), permutation(key, n, CPU))


def test_tf32_is_used_only_in_training() -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("the device has no TF32")
    source = torch.Generator().manual_seed(0)
    first, second = (torch.randn(512, 512, generator=source, dtype=torch.float64).float().to(CUDA) for _ in range(2))
    images = torch.randn(8, 64, 16, 16, generator=source).to(CUDA)
    kernels = torch.randn(64, 64, 3, 3, generator=source).to(CUDA)

    def errors() -> tuple[float, float]:
        exact = (first.double() @ second.double(), torch.nn.functional.conv2d(images.double(), kernels.double()))
        given = (first @ second, torch.nn.functional.conv2d(images, kernels))
        return tuple(((one - two).norm() / two.norm()).item() for one, two in zip(given, exact))  # type: ignore[return-value]

    with training_precision("tf32"):
        rough = errors()
    assert min(rough) > 1e-4
    assert max(errors()) < 1e-5
    with training_precision("fp32"):
        assert max(errors()) < 1e-5


def test_bf16_losses_are_close_to_float32() -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        params = Recommender.Params(backbone="lightgcn", lr=0.01)
        workload = Recommender(params, replace(RUNTIME, precision=precision))
        losses.append([workload.train_epoch(epoch)["loss"] for epoch in (1, 2, 3)])
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)


def test_packed_trials_match_separate_training() -> None:
    """Equal within rounding: atomics add the gradients of a step in any order, in separate training, too."""
    rows = []
    for together in (False, True):
        members = [
            Recommender(Recommender.Params(lr=0.005 * (1 + k), weight_decay=1e-4 * k), replace(RUNTIME, seed=k))
            for k in range(3)
        ]
        pack = Recommender.pack(members) if together else None
        for epoch in (1, 2, 3):
            losses = pack.train_epoch([epoch] * 3) if pack else [member.train_epoch(epoch) for member in members]
        judged = pack.evaluate(range(3), "validation") if pack else [one.evaluate("validation") for one in members]
        rows.append([row["loss"] for row in losses] + [one.metrics["ndcg_at_20"] for one in judged])
    assert rows[0] == pytest.approx(rows[1], rel=1e-3, abs=2e-3)
