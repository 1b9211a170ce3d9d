"""Checks and writes of files: storage is writable, a folder is empty, a journal has no incomplete last line."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeGuard

from orchestrator.errors import UNAVAILABLE, Interrupted, RunFailed, UserError, one_line
from orchestrator.provenance import private_files
from orchestrator.storage import generations, remote

Setting = Literal["storage", "tracking", "to"]


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


def append_lines(journal: Path, lines: Iterable[str]) -> None:
    """Add lines, each with its end, after the last complete one: a full disk may have cut off the last write.

    Raises OSError.
    """
    drop_half_line(journal)
    with journal.open("a") as stream:
        stream.writelines(lines)


def json_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file of JSON lines, without incomplete and damaged lines; none without the file."""
    with suppress(FileNotFoundError), file.open(errors="replace") as stream:
        yield from json_objects(stream)


def json_objects(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects among some lines, without incomplete and damaged ones."""
    for line in lines:
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                yield row


def last_line(file: Path) -> str | None:
    """The last line that is not blank, of a file of any size; None without one, or without the file."""
    with suppress(FileNotFoundError), file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 4096))
        lines = stream.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), None)
    return None


def write_json(file: Path, values: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write a file atomically: readers find the old values or the new ones. Raises OSError.

    If ``durable``, that also holds after a crash of the machine.
    """
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    with partial.open("w") as stream:
        stream.write(json.dumps(values))
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
    partial.replace(file)


def is_full(error: BaseException | None) -> TypeGuard[OSError]:
    """Whether the error means that nothing can be written: no space, no quota, or read-only."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def unreadable(path: Path, what: str, error: OSError) -> UserError:
    """The error (exit 3) that ``path``, which is a ``what``, cannot be read: it is another user's, for example."""
    got = error.strerror or str(error)
    return UserError(f"The {what} {path} cannot be read", got=got, fix="Get the right to read it", code=UNAVAILABLE)


def explained(folder: Path, error: BaseException) -> BaseException:
    """The error to report for a run in ``folder``: that its storage is full, or the folder removed, else ``error``.

    That the folder was removed is reported where it explains the error, and where the run could be resumed otherwise.
    """
    try:
        os.stat(folder)
    except FileNotFoundError:
        run = generations.run_id(folder.name)
        if generations.is_superseded(folder):
            return RunFailed(run, f"another driver has taken it over, and its folder {folder} was removed")
        if _is_of_missing_file(error) or isinstance(error, Interrupted | KeyboardInterrupt):
            return RunFailed(run, f"its folder {folder} was removed")
    except OSError:  # the storage does not answer
        pass
    return unwritable(folder.parent, error) if is_full(error) else error


def _is_of_missing_file(error: BaseException | None) -> bool:
    """Whether the error, or what it was raised from, says so. An error of another process has only its text."""
    while error is not None:
        if os.strerror(errno.ENOENT) in one_line(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def writing(folder: Path, setting: Setting = "storage") -> Iterator[None]:
    """Convert write errors below ``folder`` to UserError (exit 3)."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise unwritable(folder, error, setting) from error


def check_writable(folder: Path, setting: Setting = "storage") -> None:
    """Raise UserError (exit 3) unless a file can be written and removed in ``folder`` and in its object storage."""
    probe = folder / f".probe-{os.getpid()}-{time.monotonic_ns()}"
    try:
        private_files.make_folder(folder)
        probe.write_text("probe")
        probe.unlink()
    except OSError as error:
        raise unwritable(folder, error, setting) from None
    if location := remote.location_of(folder):
        location.check()


def check_empty(folder: Path) -> None:
    """Raise UserError unless ``folder`` is an empty folder or does not exist."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"The folder {folder} is not empty", fix="Name a new one, or empty it")


def unwritable(folder: Path, error: Exception, setting: Setting = "storage") -> UserError:
    """The error (exit 3) that nothing can be written in ``folder``, which is that of ``setting``."""
    named = {"storage": f"The storage {folder}", "tracking": f"The folder of the tracking store, {folder},"}
    what = named.get(setting, f"The folder {folder}")
    file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
    if file and isinstance(error, FileExistsError | NotADirectoryError):
        return UserError(
            f"{what} cannot be used: {file} is a file, not a folder",
            fix=f"Choose another with --{setting}", code=UNAVAILABLE,
        )  # fmt: skip
    return UserError(
        f"{what} cannot be written", got=getattr(error, "strerror", None) or one_line(error),
        fix=f"Free space or rights there, or choose another with --{setting}", code=UNAVAILABLE,
    )  # fmt: skip
