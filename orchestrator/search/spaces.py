"""Load search spaces, and sample them with some parameters fixed."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import re
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from orchestrator.config import user_code, user_workload, workload_loader
from orchestrator.config.parsing import validate
from orchestrator.errors import UserError, one_line, unknown
from orchestrator.storage import disk

_GIVE = "Define a function space(trial) in it, or give one with --space file.py:function"

Space = Callable[[Any], Mapping[str, Any]]

PROBES = 32

DEFAULT = "space"
"""Name of the preset that is searched unless another is named."""

_ORIGIN = "from the search space"
FAILED = "The search space failed"


@dataclass(frozen=True)
class Survey:
    """Result of sampling a space: the distributions of each searched parameter, usually one.

    ``conditional``: not every sample had the same parameters. ``names`` are those of all parameters. ``defaults`` has
    the values of those that the samples lacked, where it is one value.
    """

    distributions: Mapping[str, Sequence[Any]]
    conditional: bool
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Sequence[str] = ()

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
    """``name`` is one of the :func:`presets`, ``file.py:function`` or ``module:function``. Raises UserError."""
    if user_code.is_named(name):
        location, _, function = name.rpartition(":")
        functions = _functions(user_code.load_module(name, "search space"))
        if function not in functions:
            raise unknown(f"function in {location}", function, functions)
        return functions[function]
    user_code.check_name(name, "search space")
    spaces = presets(workload)
    if name not in spaces:
        raise unknown(f"search space of {workload}", name, spaces, listed_by=f"orchestrator workloads {workload}")
    return spaces[name]


def presets(workload: str) -> dict[str, Space]:
    """Functions by name of the module that the workload's entry names, or of ``search_spaces/<workload>.py``.

    Of a user's file those whose name ends in ``space``.

    Raises UserError when there is no such module.
    """
    entry = workload_loader.entry(workload)
    named = entry.spaces
    if isinstance(entry, user_workload.UserEntry):
        own = {name: one for name, one in _functions(entry.load_module()).items() if name.endswith("space")}
        if own:
            return own
        raise UserError("The workload's file has no search space", got=workload, fix=_GIVE)
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


def summaries(workload: str) -> dict[str, str]:
    """What each of the :func:`presets` searches: the first line of its docstring. Empty if there are none.

    A module of spaces imports Optuna, so it is not imported here, but its source is read.
    """
    entry = workload_loader.entry(workload)
    with suppress(UserError, ImportError, OSError, SyntaxError, ValueError):
        if isinstance(entry, user_workload.UserEntry):  # its file was loaded for the parameters
            return {name: _first_line(inspect.getdoc(space)) for name, space in presets(workload).items()}
        module = importlib.util.find_spec(entry.spaces or f"search_spaces.{workload}")
        body = ast.parse(Path(module.origin).read_bytes()).body if module and module.origin else []
        functions = [one for one in body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
        return {one.name: _first_line(ast.get_docstring(one)) for one in functions}
    return {}


def _first_line(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0]


def suggest(space: Space, trial: Any, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of one trial: the values of ``fixed``, and the space's suggestions for the others.

    Raises UserError, for an exception of the space with its line. A full disk, on which the study cannot be written,
    is no error of the space.
    """
    try:
        suggested = space(_Fixing(trial, fixed))
    except UserError:
        raise
    except Exception as error:
        if disk.is_full(error):
            raise
        frames = traceback.extract_tb(error.__traceback__)[1:]  # the space's own come first, then those of Optuna
        lines = [f" ({Path(one.filename).name}:{one.lineno})" for one in frames if one.filename == frames[0].filename]
        raise UserError(
            f"{FAILED}: {type(error).__name__}: {one_line(error)}{''.join(lines[-1:])}",
            fix="It is called with an Optuna trial",
        ) from error
    if not isinstance(suggested, Mapping):
        raise UserError("The search space must return the parameters", got=type(suggested).__name__, allowed="a dict")
    return {**suggested, **fixed}


def draws(space: Space, fixed: Mapping[str, Any], seed: int, count: int) -> list[dict[str, Any]]:
    """Parameters of ``count`` random trials."""
    import optuna

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [suggest(space, study.ask(), fixed) for _ in range(count)]


def distributions_at(space: Space, fixed: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The distributions of a trial with ``params``: those of its branch, if the space is conditional.

    Searched parameters that ``params`` lack are drawn. Empty if the space has no such trial.
    """
    import optuna

    def drawn() -> optuna.Trial:
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        study.enqueue_trial(dict(params))
        return study.ask()

    # The first draws nothing, and takes a tenth of the time.
    kinds: tuple[Callable[[], Any], ...] = (partial(optuna.trial.FixedTrial, dict(params)), drawn)
    for kind in kinds:
        with warnings.catch_warnings(action="ignore"), suppress(UserError):  # values outside of the space
            suggest(space, trial := kind(), fixed)
            return dict(trial.distributions)
    return {}


def probe(
    space: Space,
    fixed: Mapping[str, Any],
    params: type[BaseModel],
    seed: int,
    check: Callable[[Mapping[str, Any]], None] = lambda complete: None,
    named: tuple[str, str] | None = None,
) -> Survey:
    """Sample the space without training. Raises UserError for parameters that no trial could run with.

    ``check`` is called with the complete parameters of every sample. ``named`` are the names of the workload and of the
    space: with them, the error about a drawn value that conflicts with ``fixed`` names the space and those that fit.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    distributions: dict[str, list[Any]] = {}
    shapes: set[tuple[str, ...]] = set()
    given: set[str] = set()
    samples: list[dict[str, Any]] = []
    for _ in range(PROBES):
        trial = study.ask()
        values = suggest(space, trial, fixed)
        try:
            complete = validated(values, params)
        except UserError as error:
            raise _conflict(error, named, fixed, params, seed) if named else error from None
        samples.append(complete.model_dump(mode="json"))
        check(samples[-1])
        given.update(values)
        shapes.add(tuple(sorted(trial.params)))
        for name, distribution in trial.distributions.items():
            if distribution not in (seen := distributions.setdefault(name, [])):
                _check_recorded(name, distribution)
                seen.append(distribution)
    names = sorted(set[str]().union(*samples))
    values = {name: [sample.get(name) for sample in samples] for name in names if name not in given}
    defaults = {name: each[0] for name, each in values.items() if all(one == each[0] for one in each)}
    return Survey(distributions, len(shapes) > 1, defaults, names)


def _check_recorded(name: str, distribution: Any) -> None:
    """Raise UserError for choices that the journal would not return as they are: a tuple would be a list."""
    from optuna.distributions import distribution_to_json, json_to_distribution

    with suppress(TypeError):  # not JSON
        if json_to_distribution(distribution_to_json(distribution)) == distribution:
            return
    raise UserError(
        f"The choices of {name} in the search space cannot be recorded", got=", ".join(map(repr, distribution.choices)),
        allowed="None, bools, numbers, text, and lists of them",
    )  # fmt: skip


def _conflict(
    error: UserError, named: tuple[str, str], fixed: Mapping[str, Any], params: type[BaseModel], seed: int
) -> UserError:
    """``error``; if it is a condition between fields that a drawn value violates, with its space and those that fit."""
    if _ORIGIN in error.what:
        return error
    try:
        validate(params, fixed, "parameter")
    except UserError as alone:
        if alone.what == error.what:  # the fixed values conflict with one another
            return error
    workload, name = named
    space = "the default search space" if name == DEFAULT else f"the search space {name}"
    what, _, fix = error.what.rstrip(".").partition(". ")
    fix = re.sub(r"^Drop \w+(, or )?", "", fix)  # a drawn parameter is not the user's to drop
    fitting = _fitting(workload, fixed, params, seed)
    others = (
        f"choose another with --space: {', '.join(fitting)}" if fitting else "give one with --space file.py:function"
    )
    fix = f"{fix}, or {others}" if fix else others
    return UserError(f"{what} (drawn by {space})", fix=fix[0].upper() + fix[1:], code=error.code)


def _fitting(workload: str, fixed: Mapping[str, Any], params: type[BaseModel], seed: int) -> list[str]:
    """The presets of a workload that trials with the fixed parameters can draw from, by name."""
    fitting = []
    with suppress(UserError):  # a workload without presets
        for name, space in presets(workload).items():
            with suppress(UserError):
                if probe(space, fixed, params, seed).distributions:
                    fitting.append(name)
    return sorted(fitting)


def validated(values: Mapping[str, Any], params: type[BaseModel]) -> BaseModel:
    """The complete parameters of a trial. Raises UserError, also for values that are not JSON, the study's format."""
    complete = validate(params, values, f"parameter {_ORIGIN}")
    for name, value in values.items():
        try:
            json.dumps(value)
        except TypeError:
            raise UserError(
                f"Parameter {name} {_ORIGIN} is not a plain value",
                got=type(value).__name__,
                allowed="numbers, text, lists and dicts of them",
            ) from None
    return complete


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


def _functions(module: Any) -> dict[str, Space]:
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
