"""Functions that a table names as ``module:function``, so that the table imports neither PyTorch nor NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


@cache
def load_function(name: str) -> Callable[..., Any]:
    """The function of that name, whose module is imported at the first call."""
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), attribute)
    return function
