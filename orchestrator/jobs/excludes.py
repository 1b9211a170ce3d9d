"""What of a submitted working directory stays at home: bulk, secrets, other people's files. As gitignore patterns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.provenance.scrub import SECRET_FILES, secret_file

NAMED = (
    *(".git", ".cache", "__pycache__", "/data", "mlruns", "mlflow.db", "node_modules"),
    *(".ssh", ".aws", ".azure", ".docker", ".gnupg", ".huggingface", ".kaggle", ".kube", ".ray"),
    *("**/.config/gcloud", "**/.config/gh", ".databrickscfg", ".s3cfg", ".boto", ".vault-token"),
)
"""Files and folders that stay, beside what .gitignore names."""

ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""What a folder holds that is a virtual environment, whatever it is called."""


def of(folder: Path, apart: Sequence[Path] = ()) -> list[str]:
    """The patterns for ``folder``: known names, secrets, environments, what lies ``apart`` (data, runs), links out.

    Ray follows links, so that one to ``~/.ssh`` under another name would send that.
    """
    root, others = folder.resolve(), {path.resolve() for path in apart}
    return [*NAMED, *SECRET_FILES, *(_anchored(path.relative_to(root)) for path in _found(root, others))]


def _found(root: Path, apart: set[Path]) -> Iterator[Path]:
    for where, folders, files in os.walk(root):
        here = Path(where)
        leaving = [here / name for name in (*folders, *files) if _leaves(here / name, root)]
        closed = [here / name for name in folders if _is_environment(here / name) or here / name in apart]
        secret = [here / name for name in files if secret_file(name)]  # of any case, unlike the patterns
        yield from {*leaving, *closed, *secret}
        folders[:] = [name for name in folders if name not in NAMED and here / name not in closed]


def _leaves(path: Path, root: Path) -> bool:
    """Whether it is a link to what is not below ``root``, or that leads back up, which Ray would follow for ever."""
    if not path.is_symlink():
        return False
    target = Path(os.path.realpath(path))
    return not target.is_relative_to(root) or path.is_relative_to(target)


def _is_environment(folder: Path) -> bool:
    return any((folder / name).exists() for name in ENVIRONMENTS)


def _anchored(path: Path) -> str:
    """A pattern for this path alone."""
    return "/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path.as_posix())
