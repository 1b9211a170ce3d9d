"""Workloads by name: one that is unknown, cannot be loaded or does not keep the contract is told in one sentence."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from orchestrator.errors import UserError, one_line, unknown
from workloads.catalog import Entry, broken, catalog, package
from workloads.contract import RESERVED, Preset, Workload
from workloads.predictor_sources import predictor_sources

T = TypeVar("T")

MEMBERS = ("Params", "objective", "train_epoch", "evaluate", "state_dict", "load_state_dict", "servable")
"""What the class of a workload has: its attributes and methods by the contract."""


def entry(name: str) -> Entry:
    """The catalog's entry. Raises UserError: with the nearest name, or with what keeps it from being loaded."""
    if name in catalog():
        return catalog()[name]
    if name in (faults := broken()):
        raise _unusable(name, faults[name])
    raise unknown("workload", name, {*catalog(), *faults})


def params(name: str) -> type[BaseModel]:
    """The model of a workload's parameters. Raises UserError, as for one that has the name of a setting of ours."""
    model = _loading(name, entry(name).load_params)
    if taken := [field for field in model.model_fields if field in RESERVED]:
        raise UserError(
            f"The workload {name} cannot be run: settings of the engine have the names of its parameters",
            got=", ".join(taken), fix=f"Rename them in {model.__module__}",
        )  # fmt: skip
    return model


def presets(name: str) -> Mapping[str, Preset]:
    """The settings that a workload offers by name; empty where it offers none. Raises UserError as :func:`params`."""
    offered = getattr(params(name), "presets", {})
    if not isinstance(offered, Mapping):  # another's attribute that has this name
        return {}
    return {preset: settings for preset, settings in offered.items() if isinstance(settings, Preset)}


def tables(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The rows behind the values of a workload's parameters; empty where it offers none.

    By parameter, then by value; a row has ``source`` and ``params``. Raises UserError as :func:`params`.
    """
    offered = getattr(params(name), "tables", {})
    return offered if isinstance(offered, Mapping) else {}


def code(name: str) -> type[Workload]:
    """The class of a workload, with all that the contract asks for. Raises UserError."""
    known = entry(name)
    found = _loading(name, known.load)
    if missing := [member for member in MEMBERS if not hasattr(found, member)]:
        raise UserError(
            f"The workload {name} cannot be run: {known.workload} has not all of the contract",
            got=f"no {', no '.join(missing)}", fix="See workloads.contract.Workload",
        )  # fmt: skip
    return found


def predictor(name: str) -> Path:
    """The file of the served model. Raises UserError for one that could not serve, whatever the weights."""
    file = _loading(name, lambda: entry(name).folder) / entry(name).predictor
    try:
        trees = [ast.parse(source.read_bytes()) for source in predictor_sources(file).values()]
    except OSError as error:
        fix = "Write it, or name it in the Entry" if error.filename == str(file) else "Write it, or do without"
        raise _unservable(name, f"{error.filename} cannot be read ({error.strerror})", fix) from None
    except SyntaxError as error:
        raise _unservable(
            name, f"{error.filename}, line {error.lineno}, is no Python: {error.msg}", "Correct it"
        ) from None
    except ValueError as error:
        raise _unservable(name, f"{file}: {one_line(error)}", "Correct it") from None
    imported = set().union(*map(_imported, trees)) - sys.modules.keys()
    if absent := sorted(module for module in imported if find_spec(module) is None):
        raise _unservable(name, f"{file} imports {', '.join(absent)}, not installed here", "Install it, or do without")
    if not any(isinstance(node, ast.ClassDef) and node.name == "Predictor" for node in trees[0].body):
        raise _unservable(name, f"{file} has no class Predictor", "See workloads.contract.Servable")
    return file


def _imported(tree: ast.Module) -> set[str]:
    """The packages that a module imports as it is loaded, come what may; not the files that are exported with it."""
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
            raise  # ours
        raise _unusable(name, f"{type(error).__name__}: {one_line(error)}") from error


def _unusable(name: str, why: str) -> UserError:
    return UserError(f"The workload {name} cannot be loaded: {why}", fix="Mend or uninstall the package it comes from")
