"""A function, a Lightning module and a Trainer as workloads: conformance of the examples, logged steps, resumption."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from tests.support.readme_tree import ROOT
from workloads.adapters import adapt, lightning
from workloads.adapters.function import Epochs
from workloads.adapters.paused import paused
from workloads.contract import MEMBERS, Runtime
from workloads.testing import Conformance

EXAMPLES = ROOT / "examples" / "functions"


def module(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"adapted_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def adapted(file: Path, name: str) -> Any:
    return adapt.workload(module(file), name, file, MEMBERS)


def runtime(epochs: int = 3) -> Runtime:
    return Runtime(device=torch.device("cpu"), data=Path(), seed=7, epochs=epochs)


class TestFunction(Conformance):
    workload = adapted(EXAMPLES / "linreg.py", "train")
    params: ClassVar = {"lr": 0.05}

    @contextmanager
    def spoiled_test(self) -> Iterator[None]:
        function = type(self).workload.function
        plain = function.__globals__["errors"]
        own = {**function.__globals__, "errors": lambda model, split: plain(model, split) + (split == "test")}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(self).workload, "function", staticmethod(FunctionType(function.__code__, own)))
            yield


needs_lightning = pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="make test-tools")
needs_accelerate = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="make test-tools")


@pytest.mark.tools
@needs_lightning
class TestLightning(Conformance):
    params: ClassVar = {}

    @property
    def workload(self) -> Any:  # type: ignore[override]
        return loaded("digits.py", "Classifier")

    @contextmanager
    def spoiled_test(self) -> Iterator[None]:
        points = FILES["digits.py"].Points
        plain = points.__init__

        def spoiled(own: Any) -> None:
            plain(own)
            own.test_dataloader = lambda: FILES["digits.py"].loader(3)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(points, "__init__", spoiled)
            yield


@pytest.mark.tools
@needs_accelerate
class TestTrainer(Conformance):
    params: ClassVar = {}

    @property
    def workload(self) -> Any:  # type: ignore[override]
        return loaded("reviews.py", "trainer")

    @contextmanager
    def spoiled_test(self) -> Iterator[None]:
        plain = FILES["reviews.py"].sentences
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FILES["reviews.py"], "sentences", lambda seed: plain(3 if seed == 2 else seed))
            yield


FILES: dict[str, Any] = {}
LOADED: dict[str, Any] = {}


def loaded(file: str, name: str) -> Any:
    """The workload of an example with optional packages, imported at first use."""
    if file not in LOADED:
        FILES[file] = module(EXAMPLES / file)
        LOADED[file] = adapt.workload(FILES[file], name, EXAMPLES / file, MEMBERS)
    return LOADED[file]


def check_steps(workload: Any, steps: int, mean: float | None = None) -> None:
    """Check the logged steps of two epochs of ``steps`` each, that logging changes no result, and a resumed epoch.

    ``mean``: relative tolerance of the mean of an epoch's values to its training loss; None if that is of other models.
    """
    plain, logged = (workload(workload.Params(), replace(runtime(2), log_every=every)) for every in (0, 3))
    first = logged.train_epoch(1)
    saved, values = deepcopy(logged.state_dict()), logged.take_steps()
    assert plain.train_epoch(1) == first
    assert plain.take_steps() == []
    ends = [min(end, steps) for end in range(3, steps + 3, 3)]
    assert [value.step for value in values] == ends
    if mean is not None:
        weights = np.diff([0, *ends])
        total = sum(weight * value.metrics["loss"] for weight, value in zip(weights, values))
        assert total / steps == pytest.approx(first["loss"], rel=mean)
    assert logged.train_epoch(2) == plain.train_epoch(2)
    resumed = workload(workload.Params(), replace(runtime(2), log_every=3))
    resumed.load_state_dict(saved)
    resumed.train_epoch(2)
    again = [(value.step, value.metrics) for value in resumed.take_steps()]
    assert again == [(value.step, value.metrics) for value in logged.take_steps()]
    assert again[0][0] == steps + min(3, steps)


@pytest.mark.tools
@needs_lightning
def test_lightning_logs_steps() -> None:
    check_steps(loaded("digits.py", "Classifier"), 4, mean=1e-5)


@pytest.mark.tools
@needs_accelerate
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_trainer_logs_steps(micro_batches: int) -> None:
    workload = loaded("reviews.py", "trainer")
    plain = FILES["reviews.py"].TrainingArguments
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            FILES["reviews.py"], "TrainingArguments",
            lambda *given, **named: plain(*given, **named, gradient_accumulation_steps=micro_batches),
        )  # fmt: skip
        check_steps(workload, 8 // micro_batches, mean=1e-3)


def test_lightnings_own_warnings_alone_are_silenced() -> None:
    with warnings.catch_warnings(record=True) as caught, lightning._quiet():
        warnings.warn_explicit("Lightning's", UserWarning, "a.py", 1, module="lightning.pytorch.trainer")
        warnings.warn("the user's", stacklevel=1)
    assert [str(one.message) for one in caught] == ["the user's"]


def test_library_that_stops_before_the_last_epoch_is_refused() -> None:
    epochs = Epochs(7, range(1, 4))
    next(epochs)
    with pytest.raises(RuntimeError, match=r"Lightning has stopped before epoch 2.* set patience="):
        epochs.check_ended("Lightning")
    list(epochs)
    epochs.check_ended("Lightning")


@pytest.mark.parametrize(("epoch", "step"), [(2, 8), (0, 8), (2, 0)])
def test_lightning_restored_to_another_epoch_or_step_is_refused(epoch: int, step: int) -> None:
    """Lightning's epoch and step are public, but the counters that set them are undocumented."""
    trainer = MagicMock(optimizers=[], lr_scheduler_configs=[], current_epoch=epoch, global_step=step)
    state = {lightning.OPTIMIZERS: [], lightning.SCHEDULERS: [], lightning.STEP: 8}
    if (epoch, step) == (2, 8):
        lightning._restore(trainer, state, 2)
        return
    with pytest.raises(RuntimeError, match=f"stands at epoch {epoch} and step {step}, not at 2 and 8"):
        lightning._restore(trainer, state, 2)


@pytest.mark.tools
@needs_lightning
def test_lightning_resumes_at_its_epoch_and_step() -> None:
    """The counters are those of the installed version."""
    import lightning.pytorch as library

    steps: list[tuple[int, int]] = []
    plain = loaded("digits.py", "Classifier")

    def seen(own: Any, batch: Any) -> Any:
        steps.append((own.trainer.current_epoch, own.trainer.global_step))
        return own.step(batch, "train")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FILES["digits.py"].Classifier, "training_step", seen)
        whole = plain(plain.Params(), runtime())
        whole.train_epoch(1)
        state = whole.state_dict()
        resumed = plain(plain.Params(), runtime())
        resumed.load_state_dict(state)
        steps.clear()
        resumed.train_epoch(2)
    assert steps == [(1, step) for step in range(4, 8)], library.__version__


def test_paused_loop_waits_between_values_and_ends_when_closed() -> None:
    log: list[str] = []

    def loop(pause: Any) -> None:
        try:
            for number in range(3):
                log.append(f"before {number}")
                pause(number)
        finally:
            log.append("end")

    values = paused(loop)
    assert next(values) == 0
    assert log == ["before 0"]
    assert next(values) == 1
    values.close()
    assert log == ["before 0", "before 1", "end"]

    def broken(pause: Any) -> None:
        pause(1)
        raise KeyError("lr")

    with pytest.raises(KeyError, match="lr"):
        list(paused(broken))
