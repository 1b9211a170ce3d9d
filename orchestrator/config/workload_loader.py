"""Load workloads by name. UserError for one that is unknown, cannot be loaded or does not meet the contract."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from orchestrator.config import user_code, user_workload
from orchestrator.errors import UserError, one_line, unknown
from workloads.catalog import Entry, broken, catalog, package
from workloads.contract import LIMITS, MEMBERS, RESERVED, Direction, Objective, Preset, Workload
from workloads.predictor_sources import predictor_sources

T = TypeVar("T")


def entry(name: str) -> Entry:
    """The catalog entry, or that of a user's file. Raises UserError with the nearest name, or why it cannot be used."""
    if user_code.is_named(name):
        return user_workload.entry(name)
    user_code.check_name(name, "workload")
    if name in catalog():
        return catalog()[name]
    if name in (faults := broken()):
        raise _unusable(name, faults[name])
    raise unknown("workload", name, {*catalog(), *faults})


def params(name: str) -> type[BaseModel]:
    """The model of a workload's parameters. Raises UserError, also if one has the name of an engine setting."""
    model = _loading(name, entry(name).load_params)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise UserError(
            f"The workload {name} cannot be run: its Params is no pydantic model",
            fix="class Params(pydantic.BaseModel)",
        )
    if taken := [field for field in model.model_fields if field in RESERVED]:
        raise UserError(
            f"The workload {name} cannot be run: settings of the engine have the names of its parameters",
            got=", ".join(taken), fix=f"Rename them in {model.__module__}",
        )  # fmt: skip
    return model


def presets(name: str) -> Mapping[str, Preset]:
    """The named settings of a workload; empty without any. Raises UserError as :func:`params`."""
    offered = getattr(params(name), "presets", {})
    if not isinstance(offered, Mapping):  # an unrelated attribute of this name
        return {}
    return {preset: settings for preset, settings in offered.items() if isinstance(settings, Preset)}


def tables(name: str) -> Mapping[str, Mapping[str, Any]]:
    """Tables of a workload, such as its losses: rows by parameter and value; empty without any.

    A row has ``source`` and ``params``. Raises UserError as :func:`params`.
    """
    offered = getattr(params(name), "tables", {})
    return offered if isinstance(offered, Mapping) else {}


def reads_test(name: str, values: Mapping[str, Any]) -> bool:
    """Whether training with these parameters uses the test part (``reads_test`` in the contract)."""
    model = params(name)
    return bool(model.reads_test(values)) if hasattr(model, "reads_test") else False


def code(name: str) -> type[Workload]:
    """The class of a workload. Raises UserError if it does not meet the contract."""
    registered = entry(name)
    workload = _loading(name, registered.load)
    if faults := list(_faults(workload)):
        raise UserError(
            f"The workload {name} cannot be run: {registered.workload} does not meet the contract",
            got=", ".join(faults), fix="See workloads.contract.Workload",
        )  # fmt: skip
    return workload


def _faults(workload: Any) -> Iterator[str]:
    """What of the contract a class does not meet."""
    yield from (f"no {member}" for member in MEMBERS if not hasattr(workload, member))
    objective = getattr(workload, "objective", ())
    for each in objective if isinstance(objective, tuple) else (objective,):
        if not isinstance(each, Objective):
            yield f"the objective {each!r}, which is no Objective"
    for metric, direction in getattr(workload, "directions", {}).items():
        if direction not in get_args(Direction):
            yield f"the direction {direction!r} of {metric}, which is not max or min"
    for limit in getattr(workload, "limits", {}):
        if limit not in LIMITS:
            yield f"the limit {limit!r}, which is none of {', '.join(LIMITS)}"
    try:
        if inspect.isclass(workload):
            inspect.signature(workload).bind(None, None)
    except TypeError:
        yield f"a constructor with the arguments {inspect.signature(workload)}, where it is called with params, runtime"


def predictor(name: str) -> Path | None:
    """The source file of the served model; None for a user's file without one, and an entry that names none.

    Raises UserError if it could not serve, whatever the weights.
    """
    registered = entry(name)
    if registered.predictor is None:
        return None
    file = _loading(name, lambda: registered.folder) / registered.predictor
    try:
        trees = [ast.parse(source.read_bytes()) for source in predictor_sources(file).values()]
    except OSError as error:
        in_entry = "Write it, or name it in the Entry (predictor=None: no model is served)"
        fix = in_entry if error.filename == str(file) else "Write it, or do not import it"
        raise _unservable(name, f"{error.filename} cannot be read ({error.strerror})", fix) from None
    except SyntaxError as error:
        raise _unservable(
            name, f"{error.filename}, line {error.lineno}, is not valid Python: {error.msg}", "Correct it"
        ) from None
    except ValueError as error:
        raise _unservable(name, f"{file}: {one_line(error)}", "Correct it") from None
    if user_code.is_named(name) and not _defines_predictor(trees[0]):
        return None
    imported = set().union(*map(_imported, trees)) - sys.modules.keys()
    if absent := sorted(module for module in imported if find_spec(module) is None):
        raise _unservable(name, f"{file} imports {', '.join(absent)}, not installed here", "Install it, or remove it")
    if not _defines_predictor(trees[0]):
        raise _unservable(name, f"{file} has no class Predictor", "See workloads.contract.Servable")
    return file


def can_serve(name: str) -> bool:
    """Whether there is a :func:`predictor`, or a user's class of six methods, whose ``servable`` names the file.

    Raises UserError if it could not serve, whatever the weights.
    """
    if predictor(name) is not None:
        return True
    own = entry(name)
    if not isinstance(own, user_workload.UserEntry):
        return False
    return own.load() is getattr(own.load_module(), name.rpartition(":")[2])


def _defines_predictor(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.ClassDef) and node.name == "Predictor" for node in tree.body)


def _imported(tree: ast.Module) -> set[str]:
    """The packages that a module imports at its top level, without files that are exported with it."""
    imports = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in imports}


def _unservable(name: str, why: str, fix: str) -> UserError:
    return UserError(f"The model of {name} could not be served: {why}", fix=fix)


def _loading(name: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except Exception as error:
        if package(name) is None:
            raise  # a built-in workload
        raise _unusable(name, f"{type(error).__name__}: {one_line(error)}") from error


def _unusable(name: str, why: str) -> UserError:
    return UserError(f"The workload {name} cannot be loaded: {why}", fix="Repair or uninstall its package")
