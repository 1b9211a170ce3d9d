"""Files in the home that only its user may read: models with code, logs, marks of trusted code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

from orchestrator.errors import UserError

HOME_VARIABLE = "ORCHESTRATOR_HOME"
DEFAULT_HOME = "~/.orchestrator"


def home() -> Path:
    """The home of this environment: ``ORCHESTRATOR_HOME``, else the default. Raises UserError as :func:`absolute`."""
    return absolute(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME)


def absolute(path: str) -> Path:
    """The absolute path, with ``~`` replaced. Raises UserError if the user has no home folder."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:  # HOME is unset, and the user has no entry in the system's list
        raise UserError(
            "The path cannot be resolved, since the user has no home folder", got=path,
            fix=f"Set {HOME_VARIABLE} to a folder that can be written, or name the folder in full",
        ) from None  # fmt: skip


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents; the home, if it is one of them, gets mode 0700.

    An existing home keeps its mode: its user may share it. Raises OSError.
    """
    own = home()
    if folder == own or own in folder.parents:
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)


def open_file(file: Path, mode: str, buffering: int = -1) -> IO[Any]:
    """Like ``open``, but a new file in the home gets mode 0600.

    The umask decides elsewhere, and in a home that others may write to, since it is shared.
    """
    return open(file, mode, buffering, encoding=None if "b" in mode else "utf-8", opener=_opener)


def write(file: Path, content: str | bytes) -> None:
    """Write a whole file with :func:`open_file`."""
    with open_file(file, "wb") as stream:
        stream.write(content if isinstance(content, bytes) else content.encode())


def replace(file: Path, content: str) -> None:
    """Write a file with :func:`open_file`; it has the old content or the whole new one, also after a crash."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    with open_file(partial, "w") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)


def read_json(file: Path) -> dict[str, Any] | None:
    """The object in a file, or None if the file is missing or damaged. Raises OSError if it may not be read."""
    try:
        values = json.loads(file.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _opener(file: str, flags: int) -> int:
    own = home()
    closed = own in Path(file).absolute().parents and not own.stat().st_mode & 0o022
    return os.open(file, flags, 0o600 if closed else 0o666)
