"""Workloads that a user names by ``file.py:name`` or ``module:name``: a function, or one of the other kinds of code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from orchestrator.config import user_code
from orchestrator.errors import UserError, one_line, unknown
from workloads.catalog import Entry

if TYPE_CHECKING:
    from pydantic import BaseModel

    from workloads.contract import Workload

_loaded: dict[str, tuple[bytes | None, ModuleType, type[Workload]]] = {}
"""Content of the file, its module and the workload, by name: executed again when the file has changed."""


@dataclass(frozen=True, slots=True)
class UserEntry(Entry):
    """The entry of a workload of a user's file. Its parameters are those of its code, which imports PyTorch."""

    def load_params(self) -> type[BaseModel]:
        return self.load().Params

    def load(self) -> type[Workload]:
        return _load(self.workload)[2]

    def load_module(self) -> ModuleType:
        """The file, executed once."""
        return _load(self.workload)[1]

    @property
    def folder(self) -> Path:
        assert self.predictor is not None, "it is the user's file"
        return Path(self.predictor).parent


def entry(text: str) -> UserEntry:
    """The entry. Executes nothing. Raises UserError if this user has never named the file."""
    if not user_code.is_allowed(text):
        raise UserError(
            f"The workload is {'a file' if user_code.is_file(text) else 'a module'}, and running it would run code "
            "that was never named here",
            got=text, fix=f"Read it; if you trust it, name it: orchestrator workloads {text}",
        )  # fmt: skip
    file = user_code.source(text)
    if file is None:
        is_file = user_code.is_file(text)
        raise UserError(
            f"The workload's {'file does not exist' if is_file else 'module is not installed'}",
            got=text, allowed="file.py:name, or module:name of an installed module",
            fix=None if is_file else user_code.not_searched(text, Path.cwd()),
        )  # fmt: skip
    return UserEntry(text, text, "A workload of a file.", predictor=str(file))


def _load(text: str) -> tuple[bytes | None, ModuleType, type[Workload]]:
    from workloads.adapters import adapt  # imports PyTorch
    from workloads.contract import MEMBERS

    file = user_code.source(text)
    content = file.read_bytes() if file else None
    if text in _loaded and _loaded[text][0] == content:
        return _loaded[text]
    module = user_code.load_module(text, "workload")
    name = text.rpartition(":")[2]
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise unknown(f"workload in {text.rpartition(':')[0]}", name, own)
    try:
        workload = adapt.workload(module, name, file, MEMBERS)
    except ImportError as error:
        raise UserError(
            f"The workload needs a package that is not installed: {one_line(error)}", got=text,
            fix=user_code.install(error),
        ) from None  # fmt: skip
    except ValueError as error:
        raise UserError(f"The workload cannot be used: {one_line(error)}", got=text) from None
    _loaded[text] = (content, module, workload)
    return _loaded[text]
