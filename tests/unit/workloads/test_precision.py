"""TF32 only in training, cuDNN's benchmark mode, and the plan's key for deterministic algorithms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec
from orchestrator.engine.loop import run_epochs
from orchestrator.runs import worker
from tests.support.toy import Params, Toy
from tests.unit.workloads.simclr.test_conformance import TINY, OfFewImages
from workloads.contract import Evaluation, Metrics, Runtime, Split
from workloads.precision import fastest_convolutions, training_precision
from workloads.simclr.methods import InBatch

CPU = torch.device("cpu")


def tf32() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


class Watched(Toy):
    """A toy that records whether TF32 is allowed."""

    def train_epoch(self, epoch: int) -> Metrics:
        self.seen = [*getattr(self, "seen", []), ("train", tf32())]
        return super().train_epoch(epoch)

    def evaluate(self, split: Split) -> Evaluation:
        self.seen.append((split, tf32()))
        return super().evaluate(split)


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", False), ("tf32", True), ("bf16", False)])
def test_tf32_is_allowed_only_in_training(precision: str, allowed: bool) -> None:
    toy = Watched(Params(), Runtime(device=CPU, data=Path(), seed=0, epochs=2))
    plan = Plan(epochs=2, precision=precision, refit=False)
    for _ in run_epochs(toy, plan):
        pass
    assert toy.seen == [("train", (allowed,) * 2), ("validation", (False,) * 2)] * 2


def test_fastest_convolutions_restores_cudnn_benchmark_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's benchmark setting is restored; with deterministic algorithms, benchmark mode is off."""
    for before in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
        with suppress(ValueError), fastest_convolutions():
            assert torch.backends.cudnn.benchmark
            raise ValueError("stop")
        assert torch.backends.cudnn.benchmark == before
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
        with fastest_convolutions():
            assert not torch.backends.cudnn.benchmark
        monkeypatch.undo()


def test_simclr_restores_cudnn_benchmark_after_training(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    loss = InBatch.loss

    def watched(self: InBatch, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(torch.backends.cudnn.benchmark)
        return loss(self, *args, **kwargs)

    monkeypatch.setattr(InBatch, "loss", watched)
    runtime = Runtime(device=CPU, data=Path(), seed=0, epochs=1, steps_per_epoch=1)
    built = OfFewImages(OfFewImages.Params(**TINY), runtime)
    built.train_epoch(1)
    assert seen == [True]
    assert not torch.backends.cudnn.benchmark


def test_error_in_training_restores_float32() -> None:
    with pytest.raises(ValueError, match="stop"), training_precision("tf32"):
        raise ValueError("stop")
    assert tf32() == (False, False)


@pytest.fixture
def _as_before() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_as_before", "toy_workload")
def test_deterministic_algorithms_are_reset_for_the_next_trial() -> None:
    spec = ExperimentSpec(workload="toy", params={}, plan=Plan(refit=False, deterministic=True))
    worker.experiment(spec, Path(), CPU)
    assert torch.are_deterministic_algorithms_enabled()
    plain = spec.model_copy(update={"plan": Plan(refit=False)})
    worker.experiment(plain, Path(), CPU)
    assert not torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    worker.experiment(plain, Path(), CPU)
    assert torch.are_deterministic_algorithms_enabled(), "the user's setting is kept"


def test_deterministic_and_precision_change_the_fingerprint() -> None:
    def fingerprint(**plan: object) -> str:
        return ExperimentSpec(workload="toy", params={}, plan=Plan(**plan)).fingerprint()  # type: ignore[arg-type]

    assert fingerprint() == fingerprint(deterministic=False) != fingerprint(deterministic=True)
    assert len({fingerprint(precision=each) for each in ("fp32", "tf32", "bf16")}) == 3
