"""A workload made of a function that builds a Hugging Face Trainer, ``def trainer(params, ctx) -> Trainer``.

The Trainer trains, in a thread that waits after each epoch. Its ``eval_dataset`` is the validation split, or a dict of
``validation`` and ``test``. Metrics are those of ``Trainer.evaluate`` without their prefix.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Callable, Generator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from safetensors.torch import save_model

from workloads.adapters import parameters
from workloads.adapters.function import LIMITS, MODEL, Context, FunctionWorkload, of
from workloads.adapters.paused import paused
from workloads.contract import Objective, Split

OPTIMIZER = "optimizer"
SCHEDULER = "scheduler"
SCALER = "scaler"
STATE = "trainer_state"
"""Parts of the state next to the weights."""

TIMES = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
"""Metrics of ``Trainer.evaluate`` that measure the machine."""

OWN_LIMITS = {
    "workers": LIMITS["workers"].replace("a function", "a Trainer"),
    "accumulate": "set gradient_accumulation_steps of the TrainingArguments",
    "steps_per_epoch": "an epoch is a pass of the Trainer",
    "refit": "a Trainer has no dataset for train and validation together",
    "units": "a Trainer computes metrics over a split, no values of single rows",
    "lr": "a Trainer restores the learning rate with its scheduler",
}


def builds_trainer(value: Any) -> bool:
    """Whether this is a function whose annotation says that it returns a Trainer. Imports nothing."""
    if not inspect.isfunction(value):
        return False
    returned = value.__annotations__.get("return")
    name = returned if isinstance(returned, str) else getattr(returned, "__name__", "")
    return name.rpartition(".")[2].endswith("Trainer")


def workload(
    build: Callable[..., Any], objective: Objective | tuple[Objective, ...], source: Path | None,
    predictor: type[Any] | None,
) -> type[FunctionWorkload]:  # fmt: skip
    """The workload of a function that builds a Trainer. Raises ModuleNotFoundError without accelerate."""
    if find_spec("accelerate") is None:
        raise ModuleNotFoundError("a Trainer needs accelerate", name="accelerate")

    return of(partial(_train, build), parameters.of_function(build), objective, source, predictor, OWN_LIMITS, build)


def _train(build: Callable[..., Any], params: BaseModel, ctx: Context) -> Generator[Any, None, None]:
    from transformers import TrainerCallback

    trainer = _prepared(build(parameters.argument(build, params), ctx), ctx)
    ctx.load(**{MODEL: trainer.model})

    @ctx.evaluate
    def evaluate(split: Split) -> dict[str, float]:
        data = trainer.eval_dataset
        chosen = data.get(split) if isinstance(data, Mapping) else data if split == "validation" else None
        if chosen is None:
            return {}
        measured = trainer.evaluate(chosen, metric_key_prefix="eval")
        values = {name.removeprefix("eval_"): value for name, value in measured.items()}
        return {name: value for name, value in values.items() if name not in ("epoch", *TIMES)}

    if ctx.epochs.first is None:
        return
    first: int = ctx.epochs.first

    def fit(pause: Callable[[Any], None]) -> None:
        class Pausing(TrainerCallback):
            """Hands over after each epoch: once the next one begins, or training ends."""

            logs: dict[str, float]

            def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
                if ctx.state and STATE in ctx.state:
                    _restore(trainer, ctx.state)

            def on_epoch_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
                if round(float(state.epoch or 0)) >= first:
                    pause((self.logs, _state(trainer)))
                next(ctx.epochs)

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
                if "loss" in logs:
                    self.logs = {name: float(logs[name]) for name in ("loss", "grad_norm") if name in logs}

            def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
                pause((self.logs, _state(trainer)))

        trainer.add_callback(Pausing())
        plain = trainer.training_step

        def logged(*given: Any, **named: Any) -> Any:
            loss = plain(*given, **named)
            ctx.log(loss, last=trainer.accelerator.sync_gradients)
            return loss

        trainer.training_step = logged
        with tempfile.TemporaryDirectory(prefix="resume-") as folder:
            trainer.train(resume_from_checkpoint=_checkpoint(trainer, ctx, Path(folder)))

    yield from paused(fit)
    ctx.epochs.check_ended("the Trainer")


def _prepared(trainer: Any, ctx: Context) -> Any:
    """The Trainer with the engine's number of epochs and without its own logs, checkpoints and evaluations."""
    from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, Trainer

    if not isinstance(trainer, Trainer):
        raise TypeError(f"the function returns no Trainer but a {type(trainer).__name__}")
    args = trainer.args
    if args.device.type != ctx.device.type:
        raise ValueError(f"the Trainer is on {args.device} and the run on {ctx.device}: set use_cpu in its arguments")
    if args.n_gpu > 1:
        raise ValueError(
            f"the Trainer would train on all {args.n_gpu} GPUs that this process sees, with so many times the batch. "
            "Use --gpus-per-worker 1 on Ray, with --workers for more; with --local set CUDA_VISIBLE_DEVICES to one"
        )
    if ctx.precision == "bf16" and not args.bf16:
        raise ValueError("precision=bf16 needs bf16=True in the arguments of the Trainer, which ctx.precision tells")
    args.num_train_epochs = ctx.last
    args.max_steps = -1
    args.seed = args.data_seed = ctx.seed
    args.save_strategy = args.eval_strategy = "no"
    args.logging_strategy = "epoch"
    for callback in list(trainer.callback_handler.callbacks):
        if isinstance(callback, EarlyStoppingCallback):
            raise ValueError("the Trainer has an EarlyStoppingCallback: leave it out, and set patience=")
        if isinstance(callback, PrinterCallback | ProgressCallback) or "integrations" in type(callback).__module__:
            trainer.remove_callback(callback)
    return trainer


def _state(trainer: Any) -> dict[str, Any]:
    progress = json.loads(json.dumps({**vars(trainer.state), "log_history": [], "stateful_callbacks": {}}, default=str))
    scaler = trainer.accelerator.scaler  # of fp16
    return {
        MODEL: trainer.model.state_dict(),
        OPTIMIZER: trainer.optimizer.state_dict(),
        SCHEDULER: trainer.lr_scheduler.state_dict(),
        STATE: progress,
        **({} if scaler is None else {SCALER: scaler.state_dict()}),
    }


def _restore(trainer: Any, state: Mapping[str, Any]) -> None:
    trainer.optimizer.load_state_dict(state[OPTIMIZER])
    trainer.lr_scheduler.load_state_dict(state[SCHEDULER])
    if SCALER in state:
        trainer.accelerator.scaler.load_state_dict(state[SCALER])


def _checkpoint(trainer: Any, ctx: Context, folder: Path) -> str | None:
    """Write a checkpoint that Trainer resumes from, without the optimiser, which would be a pickle.

    Returns None without a state.
    """
    state = ctx.state or {}
    if STATE not in state:
        return None
    save_model(trainer.model, str(folder / "model.safetensors"))
    (folder / "trainer_state.json").write_text(json.dumps(state[STATE]))
    return str(folder)
