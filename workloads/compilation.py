"""Compilation of loops by numba, without the GIL; compiled code is kept in the user's cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from workloads.data.cache import cache_dir

try:
    import numba
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "compiled loops need numba, which is not installed. Install numba, or train in batches", name="numba"
    ) from missing

Int: TypeAlias = Any
Real: TypeAlias = Any
"""Numbers inside compiled code; the compiler infers their width."""

_Function = TypeVar("_Function", bound=Callable[..., Any])

_MATH = {"contract", "reassoc", "nsz", "arcp"}
"""Fast-math flags. Those that assume that there is no infinity and no NaN are left out: masks and diverged runs
have them."""


def compiled(function: _Function) -> _Function:
    """Compile ``function`` at its first call; later processes load the compiled code.

    ``NUMBA_CACHE_DIR`` sets another folder. If the folder is not writable, each process compiles again.
    """
    return _compiled(function, inline=False)


def inlined(function: _Function) -> _Function:
    """Compile a function and inline it into its callers.

    For hot loops: a call counts references to its arrays, which costs more than most of these functions.
    """
    return _compiled(function, inline=True)


def _compiled(function: _Function, inline: bool) -> _Function:
    given = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = given or str(_folder(function))
    try:
        result: _Function = numba.njit(
            function, nogil=True, error_model="numpy", fastmath=_MATH, cache=_writable(), forceinline=inline
        )
        return result
    finally:
        numba.config.CACHE_DIR = given


def _folder(function: Callable[..., Any]) -> Path:
    """A cache folder for each version of the sources next to ``function``: numba checks only a function's own file."""
    sources = sorted(Path(function.__code__.co_filename).parent.glob("*.py"))
    digest = hashlib.blake2b(b"".join(source.read_bytes() for source in sources), digest_size=8)
    return cache_dir() / "numba" / digest.hexdigest()


def _writable() -> bool:
    try:
        Path(numba.config.CACHE_DIR).mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return True
