"""The servable of an adapted workload: its own file, where that defines ``class Predictor``."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel

from workloads.contract import Columns, Servable
from workloads.predictor_sources import predictor_sources

EXAMPLE = "example"
"""Attribute of a Predictor: the columns of an input, for the model's signature."""


def servable(
    source: Path | None, predictor: type[Any] | None, weights: Mapping[str, torch.Tensor], params: BaseModel
) -> Servable:
    """What the registry stores. Without a predictor it has weights and parameters only, and no model is logged."""
    config = params.model_dump(mode="json")
    if source is None or predictor is None:
        return Servable(None, weights, config, {}, {}, ())
    options = {
        name: one.default
        for name, one in list(inspect.signature(predictor.predict).parameters.items())[2:]
        if one.default is not one.empty
    }
    return Servable(source, weights, config, example(predictor), options, requirements(source))


def example(predictor: type[Any]) -> Columns:
    """The input columns that a predictor gives as its example. Raises ValueError without any."""
    columns = getattr(predictor, EXAMPLE, None)
    if not isinstance(columns, Mapping) or not columns:
        raise ValueError(f"{predictor.__name__} has no {EXAMPLE}: set it to a dict of input columns of equal length")
    return {name: np.asarray(column) for name, column in columns.items()}


def requirements(source: Path) -> tuple[str, ...]:
    """The packages that a file, and those that it imports by relative imports, import; with NumPy and pandas."""
    names = {"numpy", "pandas"}
    for file in predictor_sources(source).values():
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add((node.module or "").partition(".")[0])
    installed = packages_distributions()
    return tuple(sorted({installed[name][0] for name in names - sys.stdlib_module_names if name in installed}))


def tensors(state: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a nested state, with names joined by dots."""
    if isinstance(state, torch.Tensor):
        yield path, state
    elif isinstance(state, Mapping | list | tuple):
        for name, part in state.items() if isinstance(state, Mapping) else enumerate(state):
            yield from tensors(part, f"{path}.{name}" if path else str(name))
