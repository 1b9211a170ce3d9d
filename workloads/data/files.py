"""Dataset files, plain or compressed with gzip, and those in folders."""

from __future__ import annotations

import errno
import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from workloads.data.errors import DataError, line_error

TABLES = (".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz")
"""File name endings of tables."""

_SHOWN = 60  # characters of an error of Arrow


def plain_or_gz(path: Path) -> Path:
    """``path``, or ``<path>.gz`` if only that exists."""
    compressed = path.with_name(f"{path.name}.gz")
    return compressed if not os.path.exists(path) and os.path.exists(compressed) else path


def is_there(path: Path) -> bool:
    """Whether there is a file, plain or compressed, or a symbolic link to a missing one, which reading then reports."""
    path = plain_or_gz(path)
    return path.is_file() or path.is_symlink()


def decimal(text: str) -> float:
    """The number that ASCII text holds. Raises ValueError, also for ``1_0``, which ``float`` reads as 10."""
    if "_" in text or not text.isascii():
        raise ValueError(f"not a number: {text!r}")
    return float(text)


def is_parquet(path: Path) -> bool:
    """Whether a file name ends in .parquet, in any case."""
    return path.suffix.lower() == ".parquet"


@contextmanager
def parquet_errors(file: Path) -> Iterator[None]:
    """Convert Arrow's errors about the content of a Parquet file to DataError. Those of the system keep their type."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:  # Arrow's own for damaged pages and footers have none
            raise
        got = str(error).strip().partition(". ")[0][:_SHOWN]
        raise DataError("the file is not Parquet, or is damaged", file=file, got=got) from None


def python_values(file: Path, name: str, column: Any) -> list[Any]:
    """The values of a column of Arrow. Raises DataError for times that Python's types cannot hold."""
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError) as error:
        raise DataError(f"column {name} holds a time out of range", file=file, got=str(error)[:_SHOWN]) from None
    return values


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    """Open a file for reading; if its name ends in .gz, its decompressed content.

    Raises:
        OSError: the file cannot be read or decompressed.
    """
    if path.suffix.lower() != ".gz":
        with path.open("rb") as file:
            yield file
        return
    try:
        with gzip.open(path) as compressed:
            yield compressed
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise OSError(errno.EIO, f"it cannot be decompressed: {error}", str(path)) from error


def content(path: Path) -> bytes:
    """The whole content of :func:`opened`."""
    with opened(path) as file:
        return file.read()


def folders_below(folder: Path, *, broken: bool = False) -> Iterator[tuple[Path, list[Path]]]:
    """A folder and all folders in it, each with its files, without those whose names begin with a dot.

    Symbolic links are followed, but not to a folder above. ``broken``: with links that lead to nothing.
    """
    above: dict[str, frozenset[tuple[int, int]]] = {}
    for path, names, files in os.walk(folder, followlinks=True):
        status = os.stat(path)
        here = status.st_dev, status.st_ino
        containing = above.pop(path, frozenset())
        if here in containing:
            names.clear()
            continue
        names[:] = (name for name in names if not name.startswith("."))
        above.update((os.path.join(path, name), containing | {here}) for name in names)
        shown = (Path(path, name) for name in files if not name.startswith("."))
        yield Path(path), [file for file in shown if file.is_file() or (broken and file.is_symlink())]


def files_below(folder: Path, *, broken: bool = False) -> list[Path]:
    """The files that :func:`folders_below` finds, sorted."""
    return sorted(file for _, files in folders_below(folder, broken=broken) for file in files)


HALF_CHARACTER = "the text has half of a character, as \\ud83d without its second half"


def is_encodable(text: str) -> bool:
    """Whether a text of JSON can be stored as UTF-8: JSON may escape one half of a character alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The non-empty lines of a text file, without line ends and byte order mark, with their numbers from 1.

    Raises:
        DataError: a line is not UTF-8.
        OSError: as :func:`opened`.
    """
    with opened(path) as file:
        for number, raw in enumerate(file, 1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise line_error("the text is not UTF-8", path, number, raw) from error
            if line:
                yield number, line


def reserve(file: IO[bytes], size: int) -> None:
    """Allocate the first ``size`` bytes of a file that will be mapped, where the system can.

    Raises:
        OSError: the disk is full. Without the allocation, a write to the map would kill the process.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)
