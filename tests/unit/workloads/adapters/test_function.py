"""A function as a workload: state, parameters, results, and refused functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.workloads.adapters.test_adapters import adapted, check_steps, runtime
from workloads.contract import Limited, Objective

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


def test_parameters_are_read_from_a_dataclass_or_are_empty(write: Any) -> None:
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
def test_function_with_invalid_yields_raises_runtime_error(write: Any, body: str, words: str) -> None:
    mine = write(f"def train(params, ctx):\n{body}")
    workload = mine(mine.Params(), runtime())
    with pytest.raises(RuntimeError, match=words):
        [workload.train_epoch(epoch) for epoch in (1, 2)]


def test_a_function_may_yield_an_empty_state(write: Any) -> None:
    mine = write("def train(params, ctx):\n    for _ in ctx.epochs:\n        yield {'loss': 1.0}, {}\n")
    assert mine(mine.Params(), runtime()).train_epoch(1) == {"loss": 1.0}


def test_load_weights_is_refused_without_a_model_or_with_other_state(write: Any) -> None:
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


def test_any_error_of_a_dataclass_raises_value_error(write: Any) -> None:
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
