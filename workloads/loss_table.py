"""The row of a loss in its workload's table ``LOSSES``. Imports no PyTorch.

Everything that depends on the loss follows from its row: the values of ``loss=``, the defaults of its parameters, the
errors about parameters that it does not use, its call, and what ``orchestrator workloads NAME`` shows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Loss:
    """One loss.

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
        return _load(self.function)

    @property
    def keywords(self) -> tuple[str, ...]:
        """The parameters that the function takes."""
        taken = list(inspect.signature(self.load()).parameters)[len(self.inputs) :]
        return tuple(name for name in self.params if name in taken)

    def compute(self, scores: Any, settings: Mapping[str, Any]) -> Any:
        """The function's value for ``inputs`` of ``scores`` and, by keyword, ``settings``."""
        return self.load()(*(getattr(scores, name) for name in self.inputs), **settings)


@cache
def _load(function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    loaded: Callable[..., Any] = getattr(import_module(module), name)
    return loaded
