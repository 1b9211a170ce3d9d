"""Trust in search spaces from files: only files that this home's user has named are executed.

The record of a sweep may come from another user, through shared storage or MLflow. Executing a file that it names would
run their code. So the files that a user names are remembered, and no other file is executed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.provenance import private_files

NAMED = "spaces"
"""Folder in the home with empty files, named by the SHA-256 of the path and the content of each trusted file."""


def trust(space: str, home: Path) -> None:
    """Remember the file of ``file.py:function``, which the user has named. Does nothing for a preset."""
    for mark in _marks(space, home):
        with suppress(OSError):  # the user is asked again
            private_files.make_folder(home)
            mark.parent.mkdir(mode=0o700, exist_ok=True)  # write access would decide what is executed
            mark.touch(mode=0o600)


def check(space: str, home: Path, whose: str) -> None:
    """Raise UserError for a recorded search space whose file was never named here, by path or by content."""
    marks = list(_marks(space, home))
    if marks and not any(map(os.path.exists, marks)):  # of another user's folder there are no marks
        raise UserError(
            f"The search space of {whose} is a file, and running it would run code that was never named here",
            got=space, fix=f"Read it; if you trust it, name it: --space {space}",
        )  # fmt: skip


def _marks(space: str, home: Path) -> Iterator[Path]:
    file = Path(space.rpartition(":")[0])
    if ":" in space and file.is_file():  # a missing file is reported when it is loaded
        for content in (str(file).encode(), file.read_bytes()):
            yield home / NAMED / hashlib.sha256(content).hexdigest()
