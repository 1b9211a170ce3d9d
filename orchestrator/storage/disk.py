"""Check that storage is writable, and repair journals with an incomplete last line."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard

from orchestrator.errors import UNAVAILABLE, UserError, one_line
from orchestrator.provenance import private_files
from orchestrator.storage import remote


def drop_half_line(journal: Path) -> None:
    """Remove the incomplete last line of a killed writer: the next line would be appended to it and lost."""
    if not journal.exists():
        return
    with journal.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65_536)  # from the end, since a journal may be long
            file.seek(start)
            if whole := file.read(end - start).rfind(b"\n") + 1:
                end = start + whole
                break
            end = start
        file.truncate(end)


def is_full(error: BaseException | None) -> TypeGuard[OSError]:
    """Whether the error means that nothing can be written: no space, no quota, or read-only."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Convert write errors below ``folder`` to UserError (exit 3)."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise unwritable(folder, error) from error


def check_writable(storage: Path) -> None:
    """Raise UserError (exit 3) unless a file can be written and removed in ``storage`` and in its object storage."""
    probe = storage / f".probe-{os.getpid()}-{time.monotonic_ns()}"
    try:
        private_files.make_folder(storage)
        probe.write_text("probe")
        probe.unlink()
    except OSError as error:
        raise unwritable(storage, error) from None
    if location := remote.location_of(storage):
        location.check()


def unwritable(storage: Path, error: Exception) -> UserError:
    return UserError(
        f"The storage {storage} cannot be written", got=getattr(error, "strerror", None) or one_line(error),
        fix="Free space or rights there, or choose another with --storage", code=UNAVAILABLE,
    )  # fmt: skip
