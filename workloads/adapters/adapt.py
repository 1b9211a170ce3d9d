"""The workload that a name of a user's file stands for."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from workloads.adapters import function, hugging_face, lightning, parameters
from workloads.contract import Objective, Workload

OBJECTIVE = "OBJECTIVE"
"""Constant of the file: what to select by, such as ``accuracy:max``."""

DEFAULT = Objective("loss", "min")

KINDS = (
    "a function that yields (def train(params, ctx)), a function that returns a Trainer, a LightningModule, or a class "
    "of six methods"
)


def workload(module: ModuleType, name: str, source: Path | None, members: tuple[str, ...]) -> type[Workload]:
    """The class of the workload ``name`` in ``module``; ``members`` are those of the contract.

    Raises ValueError if it is none, or if its objective, parameters or predictor are not valid.
    """
    value: Any = getattr(module, name)
    if inspect.isclass(value) and not lightning.is_module(value):
        if missing := [member for member in members if not hasattr(value, member)]:
            raise ValueError(f"the class {name} has no {', no '.join(missing)} (see workloads.contract.Workload)")
        return cast("type[Workload]", value)
    given = (objective(module), source, getattr(module, "Predictor", None))
    if lightning.is_module(value):
        return lightning.workload(value, module, *given)
    if inspect.isgeneratorfunction(value):
        return function.of(value, parameters.of_function(value), *given)
    if hugging_face.builds_trainer(value):
        return hugging_face.workload(value, *given)
    raise ValueError(f"{name} is no workload, but {type(value).__name__}; allowed: {KINDS}")


def objective(module: ModuleType) -> Objective | tuple[Objective, ...]:
    """What the file's constant says, by default the validation loss. Raises ValueError."""
    given = getattr(module, OBJECTIVE, DEFAULT)
    if isinstance(given, Objective):
        return given
    chosen = []
    for text in [given] if isinstance(given, str) else given:
        metric, _, direction = str(text).partition(":")
        if not metric or direction not in ("min", "max"):
            raise ValueError(f"{OBJECTIVE} is {given!r}; allowed: METRIC:min or METRIC:max, or several of them")
        chosen.append(Objective(metric, direction))  # type: ignore[arg-type]
    return tuple(chosen) if len(chosen) > 1 else chosen[0]
