"""Load search spaces, and sample them with some parameters fixed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from orchestrator.config import workload_loader
from orchestrator.config.parsing import validate
from orchestrator.errors import UserError, one_line, unknown

Space = Callable[[Any], Mapping[str, Any]]

PROBES = 32


@dataclass(frozen=True)
class Survey:
    """Result of sampling a space: the distributions of each searched parameter, usually one.

    ``conditional``: not every sample had the same parameters.
    """

    distributions: Mapping[str, Sequence[Any]]
    conditional: bool

    def text(self) -> dict[str, str]:
        """One line per parameter, such as ``lr: float 0.001 to 0.03, log``. Equal spaces have equal lines."""
        return {name: " or ".join(sorted(map(_one, each))) for name, each in sorted(self.distributions.items())}


def _one(distribution: Any) -> str:
    if hasattr(distribution, "choices"):
        return f"one of {', '.join(map(str, distribution.choices))}"
    kind = type(distribution).__name__.removesuffix("Distribution").lower()
    step = f", step {distribution.step}" if distribution.step not in (None, 1) else ""
    return f"{kind} {distribution.low} to {distribution.high}{step}{', log' if distribution.log else ''}"


def load(workload: str, name: str) -> Space:
    """``name`` is one of the :func:`presets` or ``file.py:function``. Raises UserError."""
    file, colon, function = name.rpartition(":")
    if colon:
        return _from_file(Path(file), function)
    spaces = presets(workload)
    if name not in spaces:
        raise unknown(f"search space of {workload}", name, spaces)
    return spaces[name]


def absolute(name: str) -> str:
    """``file.py:function`` with the absolute path. A preset's name is returned unchanged."""
    file, colon, function = name.rpartition(":")
    return f"{Path(file).expanduser().absolute()}:{function}" if colon else name


def presets(workload: str) -> dict[str, Space]:
    """Functions by name of the module that the workload's entry names, or of ``search_spaces/<workload>.py``.

    Raises UserError when there is no such module.
    """
    named = workload_loader.entry(workload).spaces
    try:
        return _functions(importlib.import_module(named or f"search_spaces.{workload}"))
    except Exception as error:
        if named:
            raise UserError(
                f"The search spaces of {workload}, {named}, cannot be loaded: {type(error).__name__}: "
                f"{one_line(error)}",
                fix="Mend the package, or give another with --space file.py:function",
            ) from error
        if not isinstance(error, ModuleNotFoundError) or error.name != f"search_spaces.{workload}":
            raise
        raise UserError(
            f"The workload {workload} has no search space of its own",
            fix="Give one with --space file.py:function, or name a module of them in its Entry",
        ) from None


def suggest(space: Space, trial: Any, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of one trial: the values of ``fixed``, and the space's suggestions for the others."""
    suggested = space(_Fixing(trial, fixed))
    if not isinstance(suggested, Mapping):
        raise UserError("The search space must return the parameters", got=type(suggested).__name__, allowed="a dict")
    return {**suggested, **fixed}


def draws(space: Space, fixed: Mapping[str, Any], seed: int, count: int) -> list[dict[str, Any]]:
    """Parameters of ``count`` random trials."""
    import optuna

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [suggest(space, study.ask(), fixed) for _ in range(count)]


def probe(
    space: Space,
    fixed: Mapping[str, Any],
    params: type[BaseModel],
    seed: int,
    check: Callable[[Mapping[str, Any]], None] = lambda complete: None,
) -> Survey:
    """Sample the space without training. Raises UserError for parameters that no trial could run with.

    ``check`` is called with the complete parameters of every sample.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    distributions: dict[str, list[Any]] = {}
    shapes: set[tuple[str, ...]] = set()
    for _ in range(PROBES):
        trial = study.ask()
        try:
            values = suggest(space, trial, fixed)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"The search space failed: {type(error).__name__}: {one_line(error)}",
                fix="It is called with an Optuna trial",
            ) from None
        complete = validate(params, values, "parameter from the search space")
        _check_plain(values)
        check(complete.model_dump(mode="json"))
        shapes.add(tuple(sorted(trial.params)))
        for name, distribution in trial.distributions.items():
            if distribution not in (seen := distributions.setdefault(name, [])):
                seen.append(distribution)
    return Survey(distributions, conditional=len(shapes) > 1)


def _check_plain(values: Mapping[str, Any]) -> None:
    """Raise UserError for values that are not JSON, the format of the study."""
    for name, value in values.items():
        try:
            json.dumps(value)
        except TypeError:
            raise UserError(
                f"Parameter {name} from the search space is not a plain value",
                got=type(value).__name__,
                allowed="numbers, text, lists and dicts of them",
            ) from None


class _Fixing:
    """Wraps an Optuna trial and returns fixed parameters itself, so that they are not searched.

    A space may read ``fixed`` to choose its parameters.
    """

    def __init__(self, trial: Any, fixed: Mapping[str, Any]) -> None:
        self._trial, self.fixed = trial, fixed

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._trial, name)
        if not name.startswith("suggest_"):
            return attribute

        def suggest(name: str, *args: Any, **kwargs: Any) -> Any:
            return self.fixed[name] if name in self.fixed else attribute(name, *args, **kwargs)

        return suggest


class _Uncached(SourceFileLoader):
    """Loader without bytecode, which would be outdated for a file rewritten within a second at the same length."""

    def path_stats(self, path: Any) -> Any:
        raise OSError


def _from_file(file: Path, function: str) -> Space:
    if not file.is_file():
        raise UserError("The search space's file does not exist", got=str(file), allowed="file.py:function")
    name = f"_space_{file.stem}"
    module_spec = importlib.util.spec_from_file_location(name, file, loader=_Uncached(name, str(file)))
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        line = next((frame.lineno for frame in inspect.trace() if frame.filename == str(file)), None)
        where = f", line {line}" if line else ""
        raise UserError(f"{file}{where} cannot be imported: {type(error).__name__}: {one_line(error)}") from None
    functions = _functions(module)
    if function not in functions:
        raise unknown(f"function in {file}", function, functions)
    return functions[function]


def _functions(module: Any) -> dict[str, Space]:
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
