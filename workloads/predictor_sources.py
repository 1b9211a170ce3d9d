"""The source files that a served model consists of. Imports no PyTorch."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path


def predictor_sources(predictor: Path) -> dict[str, Path]:
    """A predictor's file and those that it imports by relative imports, by their paths in an exported model.

    ``from .NAME import`` names a file in the importing file's folder, ``from ..FOLDER.NAME import`` one in a folder
    next to it. An exported model has the predictor's own folder at its top and the others below it.

    Raises:
        OSError: a file cannot be read.
        SyntaxError: a file is not Python.
        ValueError: a file is not Python, or a relative import names no such file.
    """
    sources: dict[str, Path] = {}
    pending = [predictor]
    while pending:
        file = pending.pop()
        folder = Path() if file.parent == predictor.parent else Path(file.parent.name)
        name = (folder / file.name).as_posix() if file != predictor else "predictor.py"
        if name not in sources:
            sources[name] = file
            pending += _imported(file, predictor.parent)
    return sources


def copy_sources(predictor: Path, folder: Path, own: str = "") -> None:
    """Copy the files of :func:`predictor_sources` into ``folder``, those of the predictor's own folder into ``own``."""
    for name, file in predictor_sources(predictor).items():
        target = folder / name if "/" in name else folder / own / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _imported(file: Path, top: Path) -> list[Path]:
    """The files that ``file`` imports by relative imports; ``top`` is the predictor's folder."""
    tree = ast.parse(file.read_bytes(), str(file))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    targets = []
    for node in imports:
        parts = (node.module or "").split(".")
        target = file.parents[node.level - 1].joinpath(*parts).with_suffix(".py")
        if not node.module or node.level != len(parts) or node.level > 2 or (node.level == 2 and target.parent == top):
            raise ValueError(
                f"{file}, line {node.lineno}: a relative import of a predictor is `from .NAME import` or "
                "`from ..FOLDER.NAME import`"
            )
        targets.append(target)
    return targets
