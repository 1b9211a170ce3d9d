"""Recorded learning curves of the workloads that encode images or texts.

Recorded are losses and metrics that are continuous in the scores. Metrics of ranks are left out: rounding differs
between processors, and so does the order of near-equal scores. There is no dropout, whose masks PyTorch draws in
another way where it has no MKL.

Some cases choose by scores during training. Their seeds and sizes are such that no choice is close, so that rounding
does not change it: the clusters of ProtoNCE, the k highest scores and the groups of VERA, the negatives of L2R.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workloads.bi_encoder.workload import BiEncoder
from workloads.contract import Runtime
from workloads.lifelong.workload import Lifelong
from workloads.simclr.workload import SimCLR
from workloads.text_ranker.workload import TextRanker
from workloads.vera.workload import Vera

FILE = Path(__file__).with_name("encoders.json")
TOLERANCE = 2e-4
"""Relative. Kernels, versions of PyTorch and numbers of threads changed the values by up to 1.4e-5."""


class SmoothSimCLR(SimCLR):
    """SimCLR on 128 images, with SiLU in place of ReLU, whose gradient jumps where rounding changes an input's sign."""

    def __init__(self, params: Any, runtime: Runtime) -> None:
        super().__init__(params, runtime)
        train = self.data.train
        self.data = replace(self.data, train=replace(train, rows=train.rows[:128], labels=train.labels[:128]))
        for block in list(self.model.modules()):
            for name, layer in list(block.named_children()):
                if isinstance(layer, nn.ReLU):
                    setattr(block, name, nn.SiLU())
        self.method = type(self.method)(self.params, runtime, self.model, self.data.train)  # it may copy the model


@dataclass(frozen=True)
class Case:
    """A workload with its parameters, and the metrics of training and validation that are recorded at each epoch."""

    workload: type[Any]
    params: Mapping[str, Any]
    train: tuple[str, ...] = ("loss",)
    validation: tuple[str, ...] = ()
    epochs: int = 3
    steps: int | None = None
    """Steps of an epoch; None: a pass."""
    seed: int = 3

    def curve(self) -> dict[str, list[float]]:
        """The values of each metric by epoch."""
        runtime = Runtime(torch.device("cpu"), Path(), self.seed, self.epochs, steps_per_epoch=self.steps)
        workload = self.workload(self.workload.Params(**self.params), runtime)
        rows = []
        for epoch in range(1, self.epochs + 1):
            trained = workload.train_epoch(epoch)
            evaluated = workload.evaluate("validation").metrics if self.validation else {}
            row = {f"train/{name}": trained[name] for name in self.train}
            rows.append(row | {f"validation/{name}": evaluated[name] for name in self.validation})
        return {name: [float(f"{row[name]:.8g}") for row in rows] for name in rows[0]}


def _simclr(**params: Any) -> Case:
    small = {
        "dataset_size": 8, "encoder": "tiny", "projection": 16, "batch_size": 16, "optimizer": "sgd", "lr": 0.03,
        "warmup": 0.3, "weight_decay": 0.01, "blur": 0.5, "eval_probe": "never",
    }  # fmt: skip
    return Case(SmoothSimCLR, small | params, validation=("alignment", "uniformity"), steps=3)


def _bi_encoder(**params: Any) -> Case:
    small = {"batch_size": 16, "lr": 1e-3, "weight_decay": 0.5, "clip": 2.5}
    return Case(BiEncoder, small | params, ("loss", "gradient_norm"), ("pearson",), steps=3)


def _text_ranker(**params: Any) -> Case:
    small = {
        "max_length": 32, "batch_size": 8, "lr": 3e-3, "weight_decay": 0.5, "eval_candidates": 10, "pool": 10,
        "positives": 2, "hard": 0.5,
    }  # fmt: skip
    return Case(TextRanker, small | params, ("loss", "strength"))


def _lifelong(**params: Any) -> Case:
    """The low lr and the high temperature reduce the effect of each session's first step.

    Documents of the memory have no gradient there but rounding errors, and Adam makes full steps of these.
    """
    small = {
        "max_length": 24, "batch_size": 8, "lr": 3e-4, "temperature": 0.2, "weight_decay": 1, "clip": 3,
        "split_sessions": 2, "n_new": 4, "candidates": 12, "n_memory": 2, "capacity": 4,
    }  # fmt: skip
    return Case(Lifelong, small | params, ("loss", "gradient_norm"), epochs=4)


CASES = {
    "simclr": _simclr(),
    "simclr, bcl": _simclr(loss="bcl", optimizer="adam", lr=1e-3),
    "moco": _simclr(method="moco", queue=48),
    "byol": _simclr(method="byol", predictor=8, target_momentum=0.9, optimizer="lars", lr=0.3),
    "protonce": _simclr(method="protonce", queue=48, clusters=3, granularities=2, prototype_warmup=0.4),
    "bi_encoder, mse": _bi_encoder(loss="mse"),
    "bi_encoder, infonce": _bi_encoder(loss="infonce", clip=20),
    "bi_encoder, cross": _bi_encoder(loss="cosent", scoring="cross"),
    "text_ranker, ranknet": _text_ranker(learnable=True),
    "text_ranker, listwise": _text_ranker(loss="listwise", scoring="bi"),
    "vera": Case(
        Vera,
        {
            "eval_candidates": 8, "eval_k": 2, "eval_resamples": 20, "max_length": 16, "hidden": 8, "dropout": 0,
            "batch_size": 64, "lr": 5e-3, "weight_decay": 0.5, "negative_weight": 0.5, "calibration_share": 0.15,
        },
        ("loss", "loss_rank", "loss_cand", "loss_query", "loss_cons"),
        ("calib/nll", "calib/brier", "kappa"),
        epochs=6, steps=3, seed=18,
    ),
    "lifelong, l2r": _lifelong(alpha=0.3),
    "lifelong, er": _lifelong(new="random", memory="random"),
}  # fmt: skip
