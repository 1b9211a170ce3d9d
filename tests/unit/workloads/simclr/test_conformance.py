"""SimCLR passes the conformance suite, with several losses and optimisers, on one worker or two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from workloads.contract import Runtime
from workloads.data.images.resident import ImagePart
from workloads.simclr.params import Params
from workloads.simclr.workload import SimCLR
from workloads.testing import Conformance, values

TINY: Mapping[str, Any] = {"dataset_size": 8, "encoder": "tiny", "projection": 16, "batch_size": 32, "lr": 1e-5}
"""A small lr: Adam's first steps are signs of gradients, so rounding errors grow with each step."""


class OfFewImages(SimCLR):
    """SimCLR trained and tested on the first images of each part, which have all classes; an epoch has four steps."""

    tested: ClassVar[int] = 64

    def __init__(self, params: Params, runtime: Runtime) -> None:
        super().__init__(params, runtime)
        train, validation, test = self.data.train, self.data.validation, self.data.test
        parts = {"train": _first(train, 134), "validation": _first(validation, 64), "test": _first(test, self.tested)}
        self.data = replace(self.data, **parts)


def _first(part: ImagePart, count: int) -> ImagePart:
    return replace(part, rows=part.rows[:count], labels=part.labels[:count])


class SimCLRConformance(Conformance):
    workload: ClassVar[type[Any]] = OfFewImages
    ranked: ClassVar[tuple[str, ...]] = ("alpha", "auc")  # alpha is calibrated by an AUC
    tolerance: ClassVar[float] = 1e-4  # for eight steps in float32; test_gather checks one in float64 to 1e-9
    # Batch normalisation is per micro-batch; test_gradient_cache checks the equality without it.
    test_micro_batches_give_the_same_gradient = None  # type: ignore[assignment]

    @contextmanager
    def spoiled_test(self) -> Iterator[None]:
        """Drop half of the test part."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OfFewImages, "tested", OfFewImages.tested // 2)
            yield

    def test_many_short_epochs_are_one_long_one(self) -> None:
        """Six virtual epochs of one step equal two of three.

        A pass has four steps, so virtual epochs end within passes, and the next one continues the pass.
        """
        short, long = self.build(steps_per_epoch=1, epochs=6), self.build(steps_per_epoch=3, epochs=2)
        for epoch in range(1, 7):
            short.train_epoch(epoch)
        for epoch in (1, 2):
            long.train_epoch(epoch)
        assert values(short.evaluate("validation")) == values(long.evaluate("validation"))


class OneProcess(SimCLRConformance):
    """Base without the two-process test, which is expensive."""

    test_two_processes_equal_one = None  # type: ignore[assignment]


class TestBCLWithLARS(SimCLRConformance):
    """The case where ranks exchange most: negatives, batch statistics, and α."""

    # α is calibrated before each epoch, so with more epochs it follows the model more closely.
    test_many_short_epochs_are_one_long_one = None  # type: ignore[assignment]
    params: ClassVar[Mapping[str, Any]] = {
        **TINY, "loss": "bcl", "optimizer": "lars", "lr": 0.005, "warmup": 0.5, "eval_probe": "never",
    }  # fmt: skip


class TestBYOL(SimCLRConformance):
    """Two networks, with batch statistics over both ranks and without negatives; images are shuffled in parts."""

    params: ClassVar[Mapping[str, Any]] = {
        **TINY, "method": "byol", "predictor": 8, "eval_probe": "never", "shuffle_buffer": 64,
    }  # fmt: skip


class TestProtoNCE(SimCLRConformance):
    """The ranks' keys enter one queue; clusters are found before the second epoch."""

    test_many_short_epochs_are_one_long_one = None  # type: ignore[assignment]  # clusters are found before an epoch
    params: ClassVar[Mapping[str, Any]] = {
        **TINY, "method": "protonce", "queue": 48, "clusters": 4, "granularities": 2, "prototype_warmup": 0.5,
        "eval_probe": "never",
    }  # fmt: skip


class TestMoCoWithBCL(OneProcess):
    params: ClassVar[Mapping[str, Any]] = {
        **TINY, "method": "moco", "queue": 48, "loss": "bcl", "alpha": 0.9, "eval_probe": "never",
    }  # fmt: skip


class TestMoCoWithTheOracle(SimCLRConformance):
    """The queue stores the classes of its keys, of both ranks."""

    params: ClassVar[Mapping[str, Any]] = {
        **TINY, "method": "moco", "queue": 48, "loss": "supervised", "eval_probe": "never",
    }  # fmt: skip


class TestInfoNCE(OneProcess):
    params: ClassVar[Mapping[str, Any]] = {**TINY, "eval_probe": "never"}


class TestDirectCLRWithHCLAndAProbe(OneProcess):
    params: ClassVar[Mapping[str, Any]] = {
        **{name: value for name, value in TINY.items() if name != "projection"},
        "loss": "hcl", "subvector": 32, "optimizer": "sgd", "lr": 0.1, "schedule": "constant", "eval_probe": "always",
        "channels_last": False,
    }  # fmt: skip
