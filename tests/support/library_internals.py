"""Uses of what Ray and Optuna do not document, found in the source: names with an underscore, and assignments.

Names are resolved through imports and aliases of a file. An object's class is not known here. In a file that imports a
library, an attribute with an underscore counts as the library's when no file of this project defines that name, or when
the object's own name is in :data:`OBJECTS`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

LIBRARIES = ("ray", "optuna")

OBJECTS = ("optuna_study", "sampler", "pruner", "tuner", "trainer")
"""Names that this project gives to objects of the libraries."""

MODULES = ("os", "psutil", "torch")
"""Other libraries."""

UNMARKED = ("ray.experimental.internal_kv", "ray.train.v2._internal")
"""Internal modules whose names do not say so, or not at their beginning."""

SETTERS = ("setattr", "delattr")
"""Also methods of pytest's monkeypatch, which may replace a public name for a test, but no private one."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def private_part(path: str) -> bool:
    """Whether a dotted path is of a library, and has a part that is not public."""
    parts = path.split(".")
    return parts[0] in LIBRARIES and (any(map(is_private, parts)) or path.startswith(UNMARKED))


DEFINITIONS = re.compile(
    r"\b(?:def|class) (_\w+)|\b(?:self|cls)\.(_\w+)(?:, |(?:: [^=\n]+)? [-+*|&]?= )|^ *(_\w+)(?:, |(?:: [^=\n]+)? = )",
    re.MULTILINE,
)

MAY_USE = re.compile(r"\b(?:ray|optuna)\b|optuna_study|getattr")
"""What a source must contain for :class:`Source` to find a use in it. Most need not be parsed."""


def defined(texts: Iterable[str]) -> set[str]:
    """The private names that this project's own code defines: functions, classes, variables and attributes."""
    return {name for text in texts for names in DEFINITIONS.findall(text) for name in names if is_private(name)}


def root(node: ast.AST) -> str | None:
    """The name that a chain of attributes begins with. None for another expression."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


class Source:
    """One file: what its names stand for, and its :meth:`uses` of internals."""

    def __init__(self, tree: ast.AST, own: set[str]) -> None:
        self._nodes = list(ast.walk(tree))
        self._own = own
        self._names: dict[str, str] = {}
        for node in self._nodes:
            self._names |= dict(imported(node))
        for node in self._nodes:  # aliases: manager = ray.tune.execution.Manager
            if isinstance(node, ast.Assign) and (path := self._path(node.value)):
                self._names |= {target.id: path for target in node.targets if isinstance(target, ast.Name)}

    def uses(self) -> Iterator[ast.AST]:
        """The nodes that import, read, override or assign what is not theirs."""
        for node in self._nodes:
            if any(private_part(path) for _, path in imported(node)) or (
                isinstance(node, ast.Attribute | ast.Call | ast.ClassDef)
                and {ast.Attribute: self._reads, ast.Call: self._calls, ast.ClassDef: self._overrides}[type(node)](node)
            ):
                yield node

    def _path(self, node: ast.AST) -> str | None:
        """The dotted path of a library that an expression stands for, or None."""
        chain = []
        while isinstance(node, ast.Attribute):
            chain.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in self._names:
            return ".".join((self._names[node.id], *reversed(chain)))
        return None

    def _reads(self, node: Any) -> bool:
        """An attribute that is private, or any that is assigned or deleted."""
        path = self._path(node)
        if path and (private_part(path) or not isinstance(node.ctx, ast.Load)):
            return True
        return is_private(node.attr) and self._of_library(node.value, node.attr)

    def _of_library(self, holder: ast.AST, name: str) -> bool:
        if isinstance(holder, ast.Name) and holder.id in ("self", "cls"):
            return False  # of an own class: see _overrides
        if isinstance(holder, ast.Call) and isinstance(holder.func, ast.Name) and holder.func.id == "super":
            return False
        parts = ast.unparse(holder).split(".")
        if not self._names:  # nothing of a library can be here but the study's
            return OBJECTS[0] in parts
        return any(part in OBJECTS for part in parts) or (name not in self._own and parts[0] not in MODULES)

    def _calls(self, node: Any) -> bool:
        """``getattr`` and ``setattr`` with a name as text, and patches."""
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if function not in ("getattr", "hasattr", "object", *SETTERS) or not node.args:
            return False
        names = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if any(private_part(name) for name in names if "." in name):
            return True
        path = self._path(node.args[0])
        if path and isinstance(node.func, ast.Name) and function in SETTERS:
            return True
        private = [name for name in names[:1] if is_private(name)]
        return bool(private) and (bool(path) or (function == "getattr" and private[0] not in self._own))

    def _overrides(self, node: Any) -> bool:
        """A class that defines or calls a private part of its base class from a library."""
        paths = [path for base in node.bases if (path := self._path(base))]
        names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        names |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and root(each) == "self"}
        names |= {
            each.attr
            for each in ast.walk(node)
            if isinstance(each, ast.Attribute)
            and isinstance(each.value, ast.Call)
            and ast.unparse(each.value) == "super()"
        }
        return any(defines(load(path), name) for path in paths for name in names if is_private(name))


def imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that a statement imports from a library, each with the path that it stands for."""
    if isinstance(node, ast.Import):
        for each in node.names:
            if each.name.split(".")[0] in LIBRARIES:
                if is_private(each.name) or private_part(each.name) or each.asname:
                    yield (each.asname or each.name), each.name
                else:
                    yield each.name.split(".")[0], each.name.split(".")[0]
    elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in LIBRARIES:
        for each in node.names:
            yield (each.asname or each.name), f"{node.module}.{each.name}"


@cache
def defines(base: Any, name: str) -> bool:
    """Whether a class of a library or one of its bases has a method or an instance's attribute of that name."""
    classes = [each for each in getattr(base, "__mro__", ()) if each.__module__.split(".")[0] in LIBRARIES]
    return any(name in vars(each) or f"self.{name} =" in inspect.getsource(each) for each in classes)


@cache
def load(path: str) -> Any:
    """The class or module at a dotted path."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            loaded = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for name in parts[end:]:
            loaded = getattr(loaded, name)
        return loaded
    raise ImportError(path)
