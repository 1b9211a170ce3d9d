"""Folder for the files of local clusters that no other user can enter.

Ray gives its own folders mode 0777. In ``/tmp`` every user of the machine could replace the sockets through which
drivers and workers exchange pickled objects.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "RAY_TMPDIR"
"""Variable that Ray reads before ``TMPDIR``. Ray writes below the folder ``ray`` in it."""

LONGEST = 107 - len("/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Length of the longest folder in which the paths of Ray's sockets fit what Linux takes, in bytes."""


@contextmanager
def private() -> Iterator[None]:
    """Let a local cluster that is started within the block keep its files in :func:`folder`. Raises OSError."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(folder())
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def folder() -> Path:
    """Ray's choice (``RAY_TMPDIR``, ``TMPDIR``, ``/tmp``), or a folder of this user in it if others can enter it.

    Where the path of that folder would be too long for Ray's sockets, it is the one in ``/tmp``. Raises OSError if it
    cannot be created or belongs to another user.
    """
    usual = Path(os.environ.get(VARIABLE) or os.environ.get("TMPDIR") or "/tmp")
    usual.mkdir(parents=True, exist_ok=True)  # as Ray does
    if not usual.stat().st_mode & 0o011:
        return usual
    name = f"ray-{os.getuid()}"
    own = usual / name if len(os.fsencode(usual / name)) <= LONGEST else Path("/tmp", name)
    own.mkdir(mode=0o700, exist_ok=True)
    status = own.lstat()  # another user could have created it, or a link to a folder of this user
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{own} is not a folder of this user. Set {VARIABLE} to one")
    own.chmod(0o700)
    return own
