"""A function, a Lightning module and a Trainer as workloads: the conformance suite over the examples, and bad files."""

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
from workloads.contract import MEMBERS, Limited, Objective, Runtime
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
    """The workload of an example whose packages not every environment has."""
    if file not in LOADED:
        FILES[file] = module(EXAMPLES / file)
        LOADED[file] = adapt.workload(FILES[file], name, EXAMPLES / file, MEMBERS)
    return LOADED[file]


def check_steps(workload: Any, steps: int, mean: float | None = None) -> None:
    """Of two epochs of ``steps`` each: values by step, nothing else changed, also after a resume.

    ``mean``: how close the mean of an epoch's values is to its training loss; None where that is of other models.
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


LOGGING = """
import torch

def train(params, ctx):
    for epoch in ctx.epochs:
        losses = torch.rand(5)
        for loss in losses:
            ctx.log(loss / 2, last=False)
            ctx.log(loss / 2)
        yield {"loss": losses.mean()}
"""


def test_a_function_logs_steps_of_several_micro_batches(write: Any) -> None:
    check_steps(write(LOGGING), 5, mean=1e-6)
    silent = write(STATELESS)
    silent = silent(silent.Params(), replace(runtime(), log_every=3))
    silent.train_epoch(1)
    with pytest.warns(UserWarning, match=r"log_every=3: train logs no steps, by ctx.log\(loss\)"):
        assert silent.take_steps() == []


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


STATELESS = """
import random
import numpy as np
import torch

def train(params, ctx):
    value = torch.rand(()).item()
    for epoch in ctx.epochs:
        value += torch.rand(()).item() + random.random() + np.random.rand()
        yield {"loss": value, "validation/loss": value + 1}
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str, name: str = "train") -> Any:
        (tmp_path / "mine.py").write_text(text)
        return adapted(tmp_path / "mine.py", name)

    return write


def test_a_function_without_state_is_trained_again_up_to_the_epoch(write: Any) -> None:
    mine = write(STATELESS)
    assert isinstance(mine(mine.Params(), runtime()), Limited)
    whole = mine(mine.Params(), runtime())
    rows = [whole.train_epoch(epoch) for epoch in (1, 2)]
    saved = whole.state_dict()
    third = whole.train_epoch(3)
    assert saved == {"adapter": {"epoch": 2, "step": 0, "validation": {"loss": rows[1]["loss"] + 1}}}
    torch.manual_seed(99)
    again = mine(mine.Params(), runtime())
    again.load_state_dict(saved)
    assert again.evaluate("validation").metrics == {"loss": rows[1]["loss"] + 1}
    assert again.evaluate("test").metrics == {}
    assert again.train_epoch(3) == third
    assert again.servable().predictor is None


def test_parameters_are_those_of_a_dataclass_or_none(write: Any) -> None:
    dataclass = "from dataclasses import dataclass\n@dataclass\nclass P:\n    lr: float = 0.1\n    steps: int = 3\n"
    model = write(f"{dataclass}def train(params: P, ctx):\n    yield {{}}\n").Params
    assert model(lr=1).model_dump() == {"lr": 1.0, "steps": 3}
    with pytest.raises(ValueError, match="ls"):
        model(ls=1)
    assert not write(STATELESS).Params.model_fields
    assert write(STATELESS).objective == Objective("loss", "min")
    assert write(f"OBJECTIVE = 'acc:max', 'loss:min'\n{STATELESS}").objective[0] == Objective("acc", "max")


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("def train(params, ctx):\n    return 1\n", "train", "no workload, but function; allowed: a function that"),
        ("train = 3\n", "train", "no workload, but int"),
        ("class Mine:\n    objective = 1\n", "Mine", "no Params, no train_epoch"),
        ("def train(params: int, ctx):\n    yield {}\n", "train", "neither a pydantic model nor a dataclass"),
        ("def train():\n    yield {}\n", "train", "takes no arguments"),
        ("def train(params):\n    yield {}\n", "train", r"takes params, .* \(def train\(params, ctx\)\)"),
        ("OBJECTIVE = 'acc'\ndef train(params, ctx):\n    yield {}\n", "train", "OBJECTIVE is 'acc'; allowed: METRIC:"),
    ],
)
def test_a_file_that_is_no_workload_is_refused(write: Any, text: str, name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        write(text, name)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    yield {'loss': 1.0}\n", "has ended before epoch 2; it yields once for each of ctx.epochs"),
        ("    for _ in ctx.epochs:\n        yield {}, {'adapter': 1}\n", "a part 'adapter'"),
        ("    yield {}, {}, 3\n", r"train yields a tuple \(dict, dict, int\); allowed: a dict of metrics, or a tuple"),
        ("    yield\n", "train yields NoneType; allowed: a dict of metrics"),
        ("    yield {'note': 'x'}\n", "train yields the metric note as 'x'; a metric is one number"),
        ("    import torch\n    yield {'a': torch.ones(2)}\n", r"the metric a as a tensor of shape \(2,\)"),
        (
            "    import torch\n    ctx.load(net=torch.nn.Linear(1, 1))\n"
            "    for _ in ctx.epochs:\n        yield {}, {'model': {}, 'opt': {}}\n",
            "loads net, which it does not yield; it yields model, opt",
        ),
        (
            "    for _ in ctx.epochs:\n        yield {}, {'model': {}}\n",
            r"yields a state and loads none of it, by ctx.load\(model=...\)",
        ),
    ],
)
def test_a_function_that_yields_wrongly_fails_with_a_sentence(write: Any, body: str, words: str) -> None:
    mine = write(f"def train(params, ctx):\n{body}")
    workload = mine(mine.Params(), runtime())
    with pytest.raises(RuntimeError, match=words):
        [workload.train_epoch(epoch) for epoch in (1, 2)]


def test_a_function_may_yield_an_empty_state(write: Any) -> None:
    mine = write("def train(params, ctx):\n    for _ in ctx.epochs:\n        yield {'loss': 1.0}, {}\n")
    assert mine(mine.Params(), runtime()).train_epoch(1) == {"loss": 1.0}


def test_weights_need_a_function_that_loads_a_model_and_evaluates(write: Any) -> None:
    mine = write(STATELESS)
    with pytest.raises(ValueError, match="the function loads no model"):
        mine(mine.Params(), runtime()).load_weights({"weight": torch.ones(1)}, {})
    reads = write("def train(params, ctx):\n    ctx.state['optimizer']\n    yield {}\n")
    with pytest.raises(ValueError, match="needs 'optimizer' of the state too"):
        reads(reads.Params(), runtime()).load_weights({}, {})


COUNTS = """
import torch
def train(params, ctx):
    model = torch.nn.Linear(1, 1)
    ctx.load(model=model)
    ctx.evaluate(lambda split: {"loss": model.weight.item()})
    for epoch in ctx.epochs:
        with torch.no_grad():
            model.weight.add_(1)
        yield {"loss": model.weight.item()}
"""


def test_a_function_without_state_is_trained_again_from_its_first_weights(write: Any) -> None:
    mine = write(COUNTS)
    begun = {"weight": torch.full((1, 1), 100.0), "bias": torch.zeros(1)}
    whole = mine(mine.Params(), runtime())
    whole.load_weights(begun, {})
    assert [whole.train_epoch(epoch)["loss"] for epoch in (1, 2)] == [101, 102]
    again = mine(mine.Params(), runtime())
    again.load_weights(begun, {})
    again.load_state_dict(whole.state_dict())
    assert again.evaluate("test").metrics == {"loss": 102}
    assert again.train_epoch(3) == {"loss": 103}


def test_any_error_of_a_dataclass_is_one_of_its_values(write: Any) -> None:
    dataclass = (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    layers: int = 3\n"
        "    def __post_init__(self):\n        if self.layers > 8:\n            raise RuntimeError('too many')\n"
    )
    model = write(f"{dataclass}def train(params: P, ctx):\n    yield {{}}\n").Params
    assert model(layers=8).layers == 8
    with pytest.raises(ValueError, match="RuntimeError: too many"):
        model(layers=9)


def test_a_function_is_called_with_its_dataclass(write: Any) -> None:
    mine = write(
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass P:\n    lr: float = 0.1\n"
        "    def __post_init__(self):\n        if self.lr < 0:\n            raise ValueError('lr is negative')\n"
        "    @property\n    def twice(self):\n        return 2 * self.lr\n"
        "def train(params: P, ctx):\n    for epoch in ctx.epochs:\n        yield {'loss': params.twice}\n"
    )
    assert mine(mine.Params(lr=3), runtime()).train_epoch(1) == {"loss": 6}
    with pytest.raises(ValueError, match="lr is negative"):
        mine.Params(lr=-3)


def test_lightnings_own_warnings_alone_are_silenced() -> None:
    with warnings.catch_warnings(record=True) as caught, lightning._quiet():
        warnings.warn_explicit("Lightning's", UserWarning, "a.py", 1, module="lightning.pytorch.trainer")
        warnings.warn("the user's", stacklevel=1)
    assert [str(one.message) for one in caught] == ["the user's"]


def test_a_library_that_stops_early_is_refused_with_what_to_do() -> None:
    epochs = Epochs(7, range(1, 4))
    next(epochs)
    with pytest.raises(RuntimeError, match=r"Lightning has stopped before epoch 2.* set patience="):
        epochs.check_ended("Lightning")
    list(epochs)
    epochs.check_ended("Lightning")


@pytest.mark.parametrize(("epoch", "step"), [(2, 8), (0, 8), (2, 0)])
def test_a_version_of_lightning_whose_loops_differ_is_refused(epoch: int, step: int) -> None:
    """Its epoch and step are public, the counters that set them are not documented."""
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
    """As the installed version counts them."""
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


def test_a_loop_that_calls_back_waits_and_is_ended() -> None:
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
