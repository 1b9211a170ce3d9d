"""Functions that a table names as ``module:function``, so that the table imports neither PyTorch nor NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pkgutil import resolve_name
from typing import Any

load_function: Callable[[str], Callable[..., Any]] = cache(resolve_name)
"""The function of that name, whose module is imported at the first call."""
