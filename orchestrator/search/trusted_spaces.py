"""Search spaces that are files: a record may name any, so only those that were named by this home's user run.

A sweep's record, its folder on shared storage, or what MLflow holds of it may be somebody else's. To run the file that
it names is to run their code; so what a user names is remembered, and nothing else is run.
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
"""Below the home: empty files, called by the SHA-256 of the path and of the content of each file that was named."""


def give(space: str, home: Path) -> None:
    """Remember the file of ``file.py:function``, which the user has named; nothing for a preset."""
    for mark in _marks(space, home):
        with suppress(OSError):  # it is asked for again
            private_files.make_folder(home)
            mark.parent.mkdir(mode=0o700, exist_ok=True)  # who may write there decides what is run
            mark.touch(mode=0o600)


def check(space: str, home: Path, whose: str) -> None:
    """Raises UserError for a recorded search space whose file was never named here, neither there nor as it is."""
    marks = list(_marks(space, home))
    if marks and not any(map(os.path.exists, marks)):  # a folder of another user has none of mine
        raise UserError(
            f"The search space of {whose} is a file, and running it would run code that was never named here",
            got=space, fix=f"Read it; if you trust it, name it: --space {space}",
        )  # fmt: skip


def _marks(space: str, home: Path) -> Iterator[Path]:
    file = Path(space.rpartition(":")[0])
    if ":" in space and file.is_file():  # of a file that is missing, whoever loads it says so
        for content in (str(file).encode(), file.read_bytes()):
            yield home / NAMED / hashlib.sha256(content).hexdigest()
