"""The home is its user's alone: models that are code lie in it, and the marks of what may be run."""

from __future__ import annotations

import os
from pathlib import Path

HOME_VARIABLE, DEFAULT_HOME = "ORCHESTRATOR_HOME", "~/.orchestrator"


def home() -> Path:
    """The embedded home of this environment."""
    return Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser().absolute()


def make_folder(folder: Path) -> None:
    """Make ``folder`` and its missing parents; the home, where it is one of them, with mode 0700.

    A home that exists keeps its mode: its user may share it. Raises OSError.
    """
    own = home()
    if folder == own or own in folder.parents:
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
