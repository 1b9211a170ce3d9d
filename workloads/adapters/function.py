"""A workload made of one function, ``def train(params, ctx)``, which yields metrics and, by choice, state."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from pydantic import BaseModel

from workloads.adapters import parameters, served
from workloads.adapters.streams import apart, seed_global
from workloads.contract import Evaluation, Metrics, Objective, Precision, Runtime, Servable, Split, State, StepValues
from workloads.initial_weights import copy_weights
from workloads.step_log import StepLog

Results: TypeAlias = "Metrics | tuple[Metrics, Mapping[str, Any]] | Evaluation"
"""Metrics, also with units: a row a user, query or pair, the column ``id`` first."""

Evaluate: TypeAlias = Callable[[Split], Results]
Train: TypeAlias = Callable[[Any, "Context"], Generator[Any, None, None]]

MODEL = "model"
"""The part of a state that holds the weights."""

OWN = "adapter"
"""The part of a state that is the adapter's."""

PREFIX = "validation/"

LIMITS = {
    "workers": "a function trains in one process",
    "accumulate": "a function splits its batches itself",
    "steps_per_epoch": "a function yields once an epoch",
}


class Epochs:
    """Iterator over the epochs to train, ``first`` is the next one, None where there is none.

    The global generators of Python, NumPy and PyTorch are seeded from (seed, epoch) at each step.
    """

    def __init__(self, seed: int, epochs: range) -> None:
        self._seed = seed
        self._left = epochs

    @property
    def first(self) -> int | None:
        return self._left[0] if self._left else None

    def check_ended(self, library: str) -> None:
        """Raise RuntimeError if a library's loop has ended before the last epoch."""
        if self._left:
            raise RuntimeError(
                f"{library} has stopped before epoch {self._left[0]}. A callback that ends training, such as "
                "EarlyStopping, has no part here: leave it out, and set patience="
            )

    def __iter__(self) -> Epochs:
        return self

    def __next__(self) -> int:
        if not self._left:
            raise StopIteration
        epoch = self._left[0]
        self._left = self._left[1:]
        seed_global(self._seed, "epoch", epoch)
        return epoch


@dataclass
class Context:
    """What a training function gets in addition to its parameters.

    ``epochs``: the numbers of the epochs to train, from 1. What is drawn from the global generators of Python, NumPy
    and PyTorch within one of them depends on (seed, epoch) alone. ``last`` is the planned number, for schedules.
    ``state``: what the function has yielded before the first of these epochs, or None. ``holdout``: False in a refit,
    which trains on train + validation. ``step``: the number of steps that have been logged since epoch 1.
    """

    device: torch.device
    data: Path
    seed: int
    holdout: bool
    precision: Precision
    last: int
    epochs: Epochs
    steps: StepLog
    step: int = 0
    saved: InitVar[State | None] = None
    _evaluate: Evaluate | None = field(default=None, init=False)
    _requested: set[str] = field(default_factory=set, init=False)
    _loaded: set[str] = field(default_factory=set, init=False)
    _scratch: TemporaryDirectory[str] | None = field(default=None, init=False)

    def __post_init__(self, saved: State | None) -> None:
        self._state = saved
        self._is_read = False

    @property
    def state(self) -> State | None:
        self._is_read = True
        return self._state

    @property
    def folder(self) -> str:
        """An empty folder for what a library writes next to its training; it is removed at the end."""
        if self._scratch is None:
            self._scratch = TemporaryDirectory(prefix="training-", ignore_cleanup_errors=True)
        return self._scratch.name

    def evaluate(self, function: Evaluate) -> Evaluate:
        """Register the function that evaluates the present model on ``validation`` or ``test``; a decorator.

        It returns metrics, or metrics and units. The engine calls it with ``test`` for the final model alone.
        """
        self._evaluate = function
        return function

    def log(self, loss: torch.Tensor, last: bool = True) -> None:
        """Log the loss of a training step, a scalar, for ``log_every``; nothing waits for the device.

        Args:
            last: False for a micro-batch that others of the step follow; their losses are added.
        """
        self.steps.add(self.step + 1, loss, last=last)
        if last:
            self.step += 1

    def load(self, **parts: Any) -> None:
        """Load the parts of the state that there are into modules, optimisers and other objects with such a method.

        An optimiser without a scheduler keeps the learning rate and the other settings that it was built with.
        """
        self._requested |= parts.keys()
        for name, part in parts.items():
            if name not in (self._state or {}):
                continue
            given = self._state[name]  # type: ignore[index]
            self._loaded.add(name)
            if isinstance(part, torch.nn.Module):
                copy_weights(part, given)
            elif isinstance(part, torch.optim.Optimizer):
                built = [{key: group[key] for key in group if key != "params"} for group in part.param_groups]
                part.load_state_dict(given)
                for group, settings in zip(part.param_groups, built, strict=True):
                    if "initial_lr" not in settings:
                        group.update(settings)
            else:
                part.load_state_dict(given)


class FunctionWorkload:
    """The six methods around a training function, which a subclass names. See :func:`of`."""

    Params: ClassVar[type[BaseModel]]
    objective: Objective | tuple[Objective, ...]
    limits: ClassVar[Mapping[str, str]] = LIMITS
    function: ClassVar[Train]
    source: ClassVar[Path | None] = None
    """The file of the function, which may also define ``class Predictor``."""
    predictor_class: ClassVar[type[Any] | None] = None

    def __init__(self, params: Any, runtime: Runtime) -> None:
        self.params = params
        self.runtime = runtime
        self._name = type(self).__name__
        self._initial: State | None = None
        self._begin(0, None)

    def _begin(self, epoch: int, state: State | None, step: int = 0) -> None:
        """Go on after ``epoch`` from ``state``. The function is called when something is requested of it."""
        if training := getattr(self, "_training", None):
            training.close()
        self._epoch = epoch
        self._step = step
        self._steps = StepLog(self.runtime.log_every, self.runtime.device)
        self._state = state
        self._training: Generator[Any, None, None] | None = None
        self._context: Context | None = None
        self._validation: dict[str, float] | None = None

    def train_epoch(self, epoch: int) -> Metrics:
        if self._training is None:
            # Without a state the epochs before are trained again: they draw the same numbers.
            start = self._epoch if self._state is not None or self._epoch == 0 else 0
            self._training = self._call(range(start + 1, self.runtime.epochs + 1))
            for again in range(start + 1, epoch):
                self._advance(again)
            self._steps.take()
        metrics, self._state = self._advance(epoch)
        self._epoch = epoch
        assert self._context is not None
        self._step = self._context.step
        self._validation = {
            name.removeprefix(PREFIX): value for name, value in metrics.items() if name.startswith(PREFIX)
        } or None
        return {name: value for name, value in metrics.items() if not name.startswith(PREFIX)}

    def take_steps(self) -> Sequence[StepValues]:
        values = self._steps.take()
        if self.runtime.log_every and not values:
            message = f"log_every={self.runtime.log_every}: {self._name} logs no steps, by ctx.log(loss)"
            warnings.warn(message, stacklevel=2)
        return values

    def evaluate(self, split: Split) -> Evaluation:
        if split == "validation" and self._validation is not None:
            return Evaluation(self._validation)
        function = self._prepared()._evaluate
        if function is None:
            return Evaluation({})
        with apart(self.runtime.device), torch.no_grad():
            seed_global(self.runtime.seed, f"evaluate {split}", self._epoch)
            return _evaluation(function(split))

    def state_dict(self) -> State:
        own = {"epoch": self._epoch, "step": self._step, "validation": self._validation}
        return {OWN: own, **(self._state or {})}

    def load_state_dict(self, state: State) -> None:
        own = state[OWN]
        kept = {name: part for name, part in state.items() if name != OWN} or None
        self._begin(own["epoch"], kept, own.get("step", 0))
        self._validation = own["validation"]

    def load_weights(self, weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
        """Raises ValueError also for a function that loads no model, or that registers no evaluation."""
        self._initial = {MODEL: dict(weights)}
        self._begin(0, self._initial)
        try:
            context = self._prepared()
        except KeyError as error:
            raise ValueError(f"the weights do not fit: the function needs {error} of the state too") from None
        if MODEL not in context._loaded:
            raise ValueError("the weights do not fit: the function loads no model, by ctx.load(model=...)")
        if context._evaluate is None:
            raise ValueError("the weights do not fit: no evaluation is registered, by ctx.evaluate, to begin with")

    def servable(self) -> Servable:
        state = self._state or {}
        weights = dict(served.tensors(state.get(MODEL, state)))
        return served.servable(self.source, self.predictor_class, weights, self.params)

    def _prepared(self) -> Context:
        """The context of the call that trains or, before any epoch, of one that only prepares."""
        if self._context is not None:
            return self._context
        if self._state is None and self._epoch > 0:
            self._training = self._call(range(1, self.runtime.epochs + 1))
            for again in range(1, self._epoch + 1):
                self._advance(again)
        else:
            preparing = self._call(range(0))
            with apart(self.runtime.device):
                seed_global(self.runtime.seed, "function")
                if next(preparing, None) is not None:
                    raise RuntimeError(
                        f"{self._name} yields where ctx.epochs is empty; it yields once for each of them"
                    )
        assert self._context is not None
        return self._context

    def _call(self, epochs: range) -> Generator[Any, None, None]:
        runtime = self.runtime
        self._context = Context(
            device=runtime.device, data=runtime.data, seed=runtime.seed, holdout=runtime.holdout,
            precision=runtime.precision, last=runtime.epochs, epochs=Epochs(runtime.seed, epochs),
            saved=self._initial if self._state is None else self._state,
            steps=self._steps, step=self._step if epochs and epochs[0] > 1 else 0,
        )  # fmt: skip
        function = type(self).function
        return function(parameters.argument(function, self.params), self._context)

    def _advance(self, epoch: int) -> tuple[Metrics, State | None]:
        assert self._training is not None
        with apart(self.runtime.device):
            seed_global(self.runtime.seed, "function")  # what the function draws before its first epoch
            try:
                produced = next(self._training)
            except StopIteration:
                raise RuntimeError(
                    f"{self._name} has ended before epoch {epoch}; it yields once for each of ctx.epochs"
                ) from None
        metrics, state = _parts(produced, f"{self._name} yields", "state")
        if state is not None:
            self._check_state(state)
        return metrics, state

    def _check_state(self, state: State) -> None:
        """Raise RuntimeError for a state that the function could not continue from."""
        assert self._context is not None
        if OWN in state:
            raise RuntimeError(f"the state of {self._name} has a part {OWN!r}, a name of the adapter's; rename it")
        if absent := self._context._requested - state.keys():
            names = ", ".join(sorted(absent))
            raise RuntimeError(f"{self._name} loads {names}, which it does not yield; it yields {', '.join(state)}")
        if state and not (self._context._requested or self._context._is_read):
            raise RuntimeError(
                f"{self._name} yields a state and loads none of it, by ctx.load({next(iter(state))}=...) or from "
                "ctx.state, so that a resume would begin again"
            )


def of(
    function: Train,
    params: type[BaseModel],
    objective: Objective | tuple[Objective, ...],
    source: Path | None,
    predictor: type[Any] | None,
    limits: Mapping[str, str] = LIMITS,
    named: Any = None,
) -> type[FunctionWorkload]:
    """The workload of a function; its name is that of ``named``, by default of the function."""
    named = named or function
    members = {
        "Params": params, "objective": objective, "function": staticmethod(function), "source": source,
        "predictor_class": predictor, "limits": dict(limits), "__module__": named.__module__,
    }  # fmt: skip
    return type(named.__name__, (FunctionWorkload,), members)


def _evaluation(result: Any) -> Evaluation:
    if isinstance(result, Evaluation):
        return result
    metrics, units = _parts(result, "the function of ctx.evaluate returns", "units")
    return Evaluation(
        metrics,
        {
            name: np.asarray(column.cpu() if isinstance(column, torch.Tensor) else column)
            for name, column in (units or {}).items()
        },
    )


def _parts(result: Any, says: str, second: str) -> tuple[dict[str, float], Any]:
    """The metrics of a result, and what it has as ``second`` or None. Raises RuntimeError for another result."""
    parts = result if isinstance(result, tuple) else (result, None)
    if len(parts) != 2 or not isinstance(parts[0], Mapping):
        kinds = ", ".join(type(part).__name__ for part in parts)
        got = f"a tuple ({kinds})" if isinstance(result, tuple) else type(result).__name__
        raise RuntimeError(f"{says} {got}; allowed: a dict of metrics, or a tuple of it and the {second}")
    return {name: _number(name, value, says) for name, value in parts[0].items()}, parts[1]


def _number(name: str, value: Any, says: str) -> float:
    is_tensor = isinstance(value, torch.Tensor)
    try:
        if not is_tensor or value.numel() == 1:
            return value.item() if is_tensor else float(value)
    except (TypeError, ValueError):
        pass
    got = f"a tensor of shape {tuple(value.shape)}" if is_tensor else repr(value)[:200]
    raise RuntimeError(f"{says} the metric {name} as {got}; a metric is one number")
