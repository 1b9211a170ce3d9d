"""The files of a submitted working directory that are not sent (bulk, secrets, links out), as gitignore patterns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from orchestrator.provenance.secret_files import SECRET_FILES, SECRET_FOLDERS, secret_file, secret_folder

BULK = (".git", ".cache", "__pycache__", "/data", "mlruns", "mlflow.db", "node_modules")
"""Files and folders that are not sent, in addition to what .gitignore names."""

ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""A folder that holds one of these is a virtual environment, whatever its name."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """Gitignore ``patterns`` of what is not sent, and the ``secret`` paths among them, folders with a slash."""

    patterns: list[str]
    secret: tuple[str, ...]


def find_excluded(folder: Path, apart: Sequence[Path] = ()) -> Excluded:
    """What of ``folder`` is not sent: bulk, secrets, environments, the folders ``apart`` (data, runs), links to these.

    Ray follows links, and matches the patterns with their own names: a link to ``~/.ssh`` or to ``.env`` under another
    name would send it.
    """
    root = folder.resolve()
    walked = _Walk(root, {path.resolve() for path in apart})
    inside = (path.relative_to(root).as_posix() for path in walked.paths())
    paths = ["/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path) for path in inside]  # each matches this path only
    # A pattern also covers what is in a linked folder. It would also exclude folders of code of that name.
    names = [_any_case(name) for name in SECRET_FILES if not any(fnmatch(each, name) for each in walked.folders)]
    folders = [_any_case(f"**/{name}") for name in SECRET_FOLDERS]
    return Excluded([*BULK, *folders, *names, *paths], tuple(sorted(walked.secret)))


class _Walk:
    """One walk through ``root``. ``folders`` holds the names of the folders entered, in lower case."""

    def __init__(self, root: Path, apart: set[Path]) -> None:
        self._root = root
        self._apart = apart
        self.folders: set[str] = set()
        self.secret: list[str] = []

    def paths(self) -> Iterator[Path]:
        """The paths that are not sent."""
        for where, folders, files in os.walk(self._root):
            here = Path(where)
            entered = []
            for name in folders:
                path = here / name
                inside = path.relative_to(self._root).as_posix()
                if secret_folder(inside) or self._leads_to_secret(path):
                    self.secret.append(f"{inside}/")
                    yield path
                elif self._leads_to_unsent(path) or _is_environment(path) or path in self._apart:
                    yield path
                elif name not in BULK and f"/{inside}" not in BULK:
                    entered.append(name)
            self.folders.update(name.lower() for name in entered)
            folders[:] = entered
            for name in files:
                path = here / name
                if secret_file(name) or self._leads_to_secret(path):
                    self.secret.append(path.relative_to(self._root).as_posix())
                    yield path
                elif self._leads_to_unsent(path):
                    yield path

    def _leads_to_secret(self, path: Path) -> bool:
        """Whether ``path`` is a link to a secret within the root."""
        target = Path(os.path.realpath(path))
        if not path.is_symlink() or not target.is_relative_to(self._root):
            return False
        inside = target.relative_to(self._root)
        folders = (inside, *inside.parents) if target.is_dir() else inside.parents
        return any(secret_folder(one.as_posix()) for one in folders) or (target.is_file() and secret_file(target.name))

    def _leads_to_unsent(self, path: Path) -> bool:
        """Whether ``path`` is a link out of the root, to a folder that is not sent, or to a parent (endless)."""
        if not path.is_symlink():
            return False
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(self._root) or path.is_relative_to(target):
            return True
        if not target.is_dir():  # one file of the data, chosen by this link
            return False
        parts = [self._root / one for one in (target.relative_to(self._root), *target.relative_to(self._root).parents)]
        return any(
            part in self._apart or _is_environment(part) or part.name in BULK or part == self._root / "data"
            for part in parts[:-1]
        )


def _is_environment(folder: Path) -> bool:
    return any((folder / name).exists() for name in ENVIRONMENTS)


def _any_case(pattern: str) -> str:
    """The pattern with each letter in both cases."""
    return re.sub("[a-z]", lambda letter: f"[{letter[0]}{letter[0].upper()}]", pattern)
