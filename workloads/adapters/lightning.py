"""A workload made of a Lightning module and the data module of its file.

Lightning's own trainer trains, in a thread that waits after each epoch. Parameters are the arguments of both
constructors. Metrics are what the module logs: ``train_x`` and ``train/x`` of training, ``val_x`` of validation and
``test_x`` of test, each as ``x``; a name without such a beginning is of training.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import warnings
from collections.abc import Generator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from pydantic import BaseModel

from workloads.adapters import parameters
from workloads.adapters.function import LIMITS, MODEL, Context, FunctionWorkload, of
from workloads.adapters.paused import paused
from workloads.contract import Objective, Split
from workloads.initial_weights import copy_weights

ROOTS = ("lightning", "pytorch_lightning")
OPTIMIZERS = "optimizers"
SCHEDULERS = "schedulers"
STEP = "step"
"""Parts of the state next to the weights. Callbacks of the module start afresh after a resume."""

PRECISIONS = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed"}
SPLITS = {"validation": ("val", "validation", "valid"), "test": ("test",), "train": ("train",)}

OWN_LIMITS = {
    **{name: why.replace("a function", "a Lightning module") for name, why in LIMITS.items() if name == "workers"},
    "accumulate": "Lightning splits no batches here",
    "steps_per_epoch": "an epoch is a pass of Lightning's trainer",
    "refit": "a data module has no part for train and validation together",
    "units": "Lightning logs means over a split, no values of single rows",
    "lr": "Lightning restores the learning rate with the optimiser",
}


def is_module(value: Any) -> bool:
    """Whether this is a class of Lightning modules. Imports nothing."""
    return inspect.isclass(value) and "LightningModule" in _bases(value)


def workload(
    module: type[Any], file: ModuleType, objective: Objective | tuple[Objective, ...], source: Path | None,
    predictor: type[Any] | None,
) -> type[FunctionWorkload]:  # fmt: skip
    """The workload of a Lightning module. Raises ValueError unless its file has one class of data modules."""
    kinds = [
        value
        for value in vars(file).values()
        if inspect.isclass(value) and value.__module__ == file.__name__ and "LightningDataModule" in _bases(value)
    ]
    if len(kinds) != 1:
        names = ", ".join(cls.__name__ for cls in kinds) or "none"
        raise ValueError(f"the file of {module.__name__} needs one LightningDataModule; there is {names}")
    (data,) = kinds
    library = importlib.import_module(_bases(module)["LightningModule"])

    train = partial(_train, library, module, data)
    return of(train, parameters.of_classes(module, data), objective, source, predictor, OWN_LIMITS, module)


def _bases(cls: type[Any]) -> dict[str, str]:
    """Lightning's classes among the bases, each with the library's name."""
    roots = {base.__name__: base.__module__.partition(".")[0] for base in cls.__mro__}
    return {name: "lightning.pytorch" if root == "lightning" else root for name, root in roots.items() if root in ROOTS}


def _train(
    library: ModuleType, module: type[Any], data: type[Any], params: BaseModel, ctx: Context
) -> Generator[Any, None, None]:
    def build(kind: type[Any]) -> Any:
        return kind(**parameters.arguments(params, kind))

    model = build(module)
    batches = build(data)
    held = build(data)
    ctx.load(**{MODEL: model})

    @ctx.evaluate
    def evaluate(split: Split) -> dict[str, float]:
        """By a trainer, a module and a data module of its own: Lightning ties them to one trainer."""
        copied = build(module)
        copy_weights(copied, model.state_dict())
        with _quiet():
            trainer = _trainer(library, ctx)
            run = trainer.validate if split == "validation" else trainer.test
            run(copied, datamodule=held, verbose=False)
        return named(trainer.callback_metrics, split)

    if ctx.epochs.first is None:
        return
    first: int = ctx.epochs.first

    def fit(pause: Any) -> None:
        class Pausing(library.Callback):  # type: ignore[misc, name-defined]
            """Hands over after each epoch: once the next one begins, or training ends."""

            def on_fit_start(self, trainer: Any, module: Any) -> None:
                if ctx.state and OPTIMIZERS in ctx.state:
                    _restore(trainer, ctx.state, first - 1)

            def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
                if trainer.current_epoch >= first:
                    pause((dict(trainer.callback_metrics), _state(trainer)))
                next(ctx.epochs)

            def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
                if loss := _loss(outputs):
                    ctx.log(loss[0])

            def on_train_end(self, trainer: Any, module: Any) -> None:
                pause((dict(trainer.callback_metrics), _state(trainer)))

        with _quiet():
            trainer = _trainer(library, ctx, max_epochs=ctx.last, callbacks=[Pausing()])
            trainer.fit(model, datamodule=batches)

    for metrics, state in paused(fit):
        validation = {f"validation/{name}": value for name, value in named(metrics, "validation").items()}
        yield named(metrics, "train") | validation, state
    ctx.epochs.check_ended("Lightning")


def _loss(outputs: Any) -> list[torch.Tensor]:
    """The loss that a training step has returned, in a list; manual optimisation may return none."""
    value = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return [value] if isinstance(value, torch.Tensor) else []


def _state(trainer: Any) -> dict[str, Any]:
    return {
        MODEL: trainer.lightning_module.state_dict(),
        OPTIMIZERS: [optimizer.state_dict() for optimizer in trainer.optimizers],
        SCHEDULERS: [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        STEP: trainer.global_step,
    }


def _restore(trainer: Any, state: Mapping[str, Any], epoch: int) -> None:
    """Give a trainer that begins the state after ``epoch``.

    Lightning's own restore takes the path of a checkpoint, a pickle. The counters of its loops are public attributes,
    but of classes that it does not document: a version in which they do not move its epoch and step is refused.

    Raises:
        RuntimeError: the trainer does not stand at the epoch and step of the state.
    """
    for optimizer, part in zip(trainer.optimizers, state[OPTIMIZERS], strict=True):
        optimizer.load_state_dict(part)
    for config, part in zip(trainer.lr_scheduler_configs, state[SCHEDULERS], strict=True):
        config.scheduler.load_state_dict(part)
    loop = trainer.fit_loop
    for progress in (loop.epoch_progress.current, loop.epoch_progress.total):
        progress.ready = progress.started = progress.processed = progress.completed = epoch
    steps = loop.epoch_loop
    steps.automatic_optimization.optim_progress.optimizer.step.total.completed = state[STEP]
    steps.manual_optimization.optim_step_progress.total.completed = state[STEP]
    if (trainer.current_epoch, trainer.global_step) != (epoch, state[STEP]):
        raise RuntimeError(
            f"this version of Lightning does not resume: it stands at epoch {trainer.current_epoch} and step "
            f"{trainer.global_step}, not at {epoch} and {state[STEP]}. Install the one that began the run"
        )


def named(metrics: Mapping[str, Any], split: str) -> dict[str, float]:
    """The metrics of a split without the beginning that says so; see the head of this module."""
    values = {}
    for name, value in metrics.items():
        beginning, rest = _split_name(name)
        if beginning == split and not name.endswith("_step"):
            values[rest.removesuffix("_epoch")] = float(value)
    return values


def _split_name(name: str) -> tuple[str, str]:
    beginning, *rest = re.split("[_/]", name, maxsplit=1)
    split = next((split for split, beginnings in SPLITS.items() if beginning in beginnings), None)
    return (split, rest[0]) if split and rest else ("train", name)


def _trainer(library: ModuleType, ctx: Context, **settings: Any) -> Any:
    gpu = ctx.device.type == "cuda"
    return library.Trainer(
        accelerator="gpu" if gpu else "cpu", devices=[ctx.device.index or 0] if gpu else 1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        precision=PRECISIONS[ctx.precision], **settings,
    )  # fmt: skip


class _quiet(warnings.catch_warnings):  # noqa: N801  # a context manager
    """Without Lightning's lines and warnings about devices, loggers and numbers of workers."""

    def __enter__(self) -> Any:
        self._loggers = [logging.getLogger(f"{root}.{part}") for root in ROOTS for part in ("pytorch", "fabric")]
        self._loggers += [logging.getLogger(root) for root in ROOTS]
        self._levels = [logger.level for logger in self._loggers]
        for logger in self._loggers:
            logger.setLevel(logging.ERROR)
        entered = super().__enter__()
        for root in ROOTS:
            warnings.filterwarnings("ignore", module=rf"{root}\.")
        return entered

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for logger, level in zip(self._loggers, self._levels):
            logger.setLevel(level)
