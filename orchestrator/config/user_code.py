"""Load code that a user names by ``file.py:name`` or ``module:name``: workloads, search spaces, samplers, schedulers.

Consent: only code that this user has named is run. Each named file has a mark in the home; see
:mod:`orchestrator.search.trusted_spaces`. What only a record, model or job names has none.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from orchestrator.errors import UserError, one_line, unknown

T = TypeVar("T")

MARKS = "spaces"
"""Folder in the home with empty files, named by the SHA-256 of the path and the content of each trusted file."""

EXTRAS = {"lightning": "lightning", "accelerate": "trainer"}
"""Extras with packages that workloads of users import, by package."""

_named: set[str] = set()
"""Code that was named in this process, or that the driver of this training process has sent."""

_homes: list[Path] = []
"""The home of this process' settings."""


def is_named(text: str) -> bool:
    """Whether it names code of a user, and not something of ours."""
    return ":" in text


def check_name(text: str, kind: str) -> None:
    """Raise UserError for a file alone, ``file.py``, without the name of the ``kind`` of code in it."""
    if text.endswith(".py"):
        raise UserError(f"The {kind} is named by its file alone", got=text, fix=f"Write {text}:NAME")


def is_file(text: str) -> bool:
    """Whether it names code in a file, ``file.py:name``, and not in an importable module."""
    location = text.rpartition(":")[0]
    return location.endswith(".py") or "/" in location


def is_in_package(text: str) -> bool:
    """Whether it names a module of a package, ``package.module:name``."""
    return not is_file(text) and "." in text.rpartition(":")[0]


def absolute(text: str) -> str:
    """``file.py:name`` with the absolute path. Everything else is returned unchanged."""
    location, _, name = text.rpartition(":")
    return f"{Path(location).expanduser().absolute()}:{name}" if is_file(text) else text


def source(text: str) -> Path | None:
    """The source file, or None if there is none. Executes nothing."""
    location = text.rpartition(":")[0]
    if is_file(text):
        return Path(location) if Path(location).is_file() else None
    path = None
    spec = None
    for depth in range(1, location.count(".") + 2):
        spec = PathFinder.find_spec(".".join(location.split(".")[:depth]), path)
        path = spec.submodule_search_locations if spec else None
    return Path(spec.origin) if spec and spec.origin and Path(spec.origin).is_file() else None


def label(text: str) -> str:
    """A name for ids and titles: ``file-name`` of ``file.py:name``. Everything else is returned unchanged."""
    location, _, name = text.rpartition(":")
    return f"{Path(location).stem if is_file(text) else location.rpartition('.')[2]}-{name}" if location else text


def allow(text: str) -> None:
    """Allow this process to run code that its user, or the driver that has sent it, has named."""
    _named.add(text)


def ask_at(home: Path) -> None:
    """Set the home whose marks :func:`is_allowed` looks at."""
    _homes[:] = [home]


def is_allowed(text: str) -> bool:
    """Whether code may be run: it was named in this process, or has a mark in the home. Built-in names need none."""
    return not is_named(text) or text in _named or any(has_mark(text, home) for home in _homes)


def has_mark(text: str, home: Path) -> bool:
    return any(map(os.path.exists, marks(text, home)))  # another user's folder cannot be read


def marks(text: str, home: Path) -> list[Path]:
    """The marks of the file that ``text`` names: of its path, and of its content."""
    file = source(text)
    contents = [str(file).encode(), file.read_bytes()] if file is not None else []
    if file is None and not is_file(text):  # a missing file is reported when it is loaded
        contents = [text.encode()]
    return [home / MARKS / hashlib.sha256(content).hexdigest() for content in contents]


def load_class(text: str, base: type[T], kind: str) -> type[T]:
    """The subclass of ``base`` that ``text`` names. Executes its module. Raises UserError; ``kind`` names it there."""
    name = text.rpartition(":")[2]
    module = load_module(text, kind)
    classes = {
        key: value
        for key, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, base) and not inspect.isabstract(value)
    }
    if name not in classes:
        given = getattr(module, name, None)
        if given is not None:
            raise UserError(
                f"The {kind} is not an Optuna {base.__name__}", got=text, allowed=sorted(classes) or "none is there"
            )
        raise unknown(f"{kind} in {text.rpartition(':')[0]}", name, classes)
    return classes[name]


def load_module(text: str, kind: str) -> ModuleType:
    """The module of ``file.py:name`` or ``module:name``. Raises UserError; ``kind`` is what it should hold."""
    location = text.rpartition(":")[0]
    if is_file(text):
        check_exists(text, kind)
        return _from_file(Path(location), kind)
    try:
        return importlib.import_module(location)
    except (Exception, SystemExit) as error:  # a script reads its command line, which is ours, and exits
        raise UserError(
            f"The module of the {kind} cannot be imported: {type(error).__name__}: {one_line(error)}", got=text,
            allowed="file.py:name, or module:name of an installed module", fix=install(error, Path.cwd()),
        ) from None  # fmt: skip


def check_exists(text: str, kind: str) -> None:
    """Raise UserError if ``text`` names a file that does not exist."""
    file = Path(text.rpartition(":")[0])
    if is_file(text) and not file.is_file():
        raise UserError(f"The {kind}'s file does not exist", got=str(file), allowed="file.py:name")


def _from_file(file: Path, kind: str) -> ModuleType:
    name = f"_{kind.rpartition(' ')[2]}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file, loader=_Uncached(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        line = next((frame.lineno for frame in inspect.trace() if frame.filename == str(file)), None)
        where = f", line {line}" if line else ""
        raise UserError(
            f"{file}{where} cannot be imported: {type(error).__name__}: {one_line(error)}",
            fix=install(error, file.parent, file.parent.parent, Path.cwd()),
        ) from None  # fmt: skip
    return module


def install(error: BaseException, *folders: Path) -> str | None:
    """What to install where an import lacks a package of an extra, or one in ``folders``; what to do about a script."""
    if isinstance(error, SystemExit):
        return 'Put what a script does, such as reading its arguments, below if __name__ == "__main__"'
    if not isinstance(error, ImportError):
        return None
    if "no known parent package" in str(error):
        return "A file is loaded without its package: name PACKAGE.MODULE:NAME, of an installed package"
    absent = error.name or ""
    if extra := EXTRAS.get(absent.partition(".")[0]):
        return f"Install ray-experiment-orchestrator[{extra}]"
    return not_searched(absent, *folders)


def not_searched(module: str, *folders: Path) -> str | None:
    """What to do about a module that is in one of these folders, where Python does not look; None if it is in none."""
    top = module.partition(":")[0].partition(".")[0]
    for folder in folders if top and PathFinder.find_spec(top) is None else ():
        if (folder / f"{top}.py").is_file() or any((folder / top).glob("*.py")):
            return f"Install your package (pip install -e .), or put {folder} on PYTHONPATH"
    return None


class _Uncached(SourceFileLoader):
    """Loader without bytecode, which would be outdated for a file rewritten within a second at the same length."""

    def path_stats(self, path: Any) -> Any:
        raise OSError
