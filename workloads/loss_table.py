"""Rows of a workload's tables, such as that of a loss in ``LOSSES``. Imports no PyTorch.

Everything that depends on the loss follows from its row: the values of ``loss=``, the defaults of its parameters, the
errors about parameters that it does not use, its call, and what ``orchestrator workloads NAME`` shows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from workloads.named_function import load_function


@dataclass(frozen=True)
class Row:
    """A row of a table of samplers, backbones or methods.

    Attributes:
        function: ``module:name`` of what it is computed by.
        source: the section or paper.
        params: the parameters used with it and their defaults.
        bounds: closed intervals of parameters that are narrower than, or not part of, the parameter's own.
    """

    function: str
    source: str
    params: Mapping[str, Any] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def load(self) -> Callable[..., Any]:
        """The function or class, whose module is imported at the first call."""
        return load_function(self.function)


@dataclass(frozen=True)
class Loss:
    """A row of a table of losses: the function of a loss and how a workload calls it.

    Attributes:
        function: ``module:name`` of the function that computes it.
        source: the equation or paper.
        inputs: attributes of the workload's scores that the function takes by position.
        params: the parameters used with it and their defaults. The function takes by keyword those that it names.
        bounds: closed intervals of parameters that are narrower than, or not part of, the parameter's own.
    """

    function: str
    source: str
    inputs: tuple[str, ...] = ("positive", "negatives")
    params: Mapping[str, Any] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def load(self) -> Callable[..., Any]:
        """The function, whose module is imported at the first call."""
        return load_function(self.function)

    @property
    def keywords(self) -> tuple[str, ...]:
        """The parameters that the function takes."""
        taken = list(inspect.signature(self.load()).parameters)[len(self.inputs) :]
        return tuple(name for name in self.params if name in taken)

    def compute(self, scores: Any, settings: Mapping[str, Any]) -> Any:
        """The function's value for ``inputs`` of ``scores`` and, by keyword, ``settings``."""
        return self.load()(*(getattr(scores, name) for name in self.inputs), **settings)


def features(row: Any) -> dict[str, str]:
    """What a row of any table says besides its function, parameters and source: the fields that its class adds.

    A flag is ``yes`` or empty, a pair of counts is two parameters or numbers.
    """
    return {entry.name: _text(getattr(row, entry.name)) for entry in fields(row) if entry.name not in _COMMON}


_COMMON = ("function", "source", "inputs", "params", "bounds")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, tuple):
        negatives, positives = value
        return f"{negatives or 1}, {positives or 0}"
    return str(value)
