"""Types that describe a dataset: its files, its source, its reader, and its kind of data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.data.errors import DataError, UnclearLayout
from workloads.data.files import plain_or_gz

VALIDATION = ("validation", "dev", "valid", "val")
"""Usual names of a validation part."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a dataset: its path in the dataset's folder, size, checksum and source.

    The file may also be compressed, as ``<path>.gz``. ``size`` (bytes) and ``sha256`` (hex) are of the decompressed
    content; 0 and empty if unknown, so that damage shows only on reading. ``also``: digests of the same text with
    other line ends. ``url``: the official address, empty if there is none; with ``member`` it is the address of a ZIP
    archive that contains the file under that name. With ``folder``, the path is a folder and stands for all its files.
    """

    path: str
    size: int = 0
    sha256: str = ""
    url: str = ""
    member: str = ""
    also: tuple[str, ...] = ()
    folder: bool = False

    def accepts(self, size: int, sha256: str) -> bool:
        """Whether size and digest match the file's."""
        if self.sha256:
            return sha256 in (self.sha256, *self.also)
        return size > 0 and self.size in (0, size)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset. Its files are in ``<data root>/<folder>/``; a generated dataset has none.

    ``summary`` ends with its :attr:`terms` in parentheses, where they are known.

    ``kind`` names what ``reader`` returns (``interactions``:
    :class:`~workloads.data.interactions.types.Interactions`). ``reader`` takes the dataset's folder, raises
    :class:`~workloads.data.errors.DataError` with file and line if the content is damaged, and does not check
    checksums. ``version`` changes whenever the reader's result for the same files does; for a generated dataset it
    contains all parameters.

    ``extras`` are files that training does not need; ``occupations`` reads from them a group 0, 1, ... for each user,
    ``friends`` pairs of users (n, 2) who know each other.
    ``obtain`` says where to get files without a public address. ``needs``: optional packages that reading requires.
    ``clean_from``: lowest rating of the source's own test part that the split ``clean`` keeps; without it ``clean``
    draws from the highest ratings. ``instead``: files that the reader takes where none of ``files`` is present.
    """

    name: str
    summary: str
    kind: str
    reader: Callable[[Path], Any]
    files: tuple[SourceFile, ...] = ()
    version: str = "1"
    extras: tuple[SourceFile, ...] = ()
    occupations: Callable[[Path], Any] | None = None
    friends: Callable[[Path], Any] | None = None
    folder: str = ""
    obtain: str = ""
    needs: tuple[str, ...] = ()
    clean_from: float | None = None
    instead: tuple[SourceFile, ...] = ()

    @property
    def terms(self) -> str:
        """Licence or terms of use of the source, such as "claims CC BY 4.0"; empty if they are not known."""
        _, opening, last = self.summary.rpartition(" (")
        return last.removesuffix(")") if opening and last.endswith(")") else ""

    def folder_in(self, root: Path) -> Path:
        """Folder of the dataset's files."""
        return root / (self.folder or self.name)

    def files_in(self, root: Path) -> tuple[SourceFile, ...]:
        """``files``, or ``instead`` where only those are present."""

        def present(sources: tuple[SourceFile, ...]) -> bool:
            return any(plain_or_gz(self.folder_in(root) / source.path).exists() for source in sources)

        return self.instead if present(self.instead) and not present(self.files) else self.files

    @property
    def verified(self) -> bool:
        """Whether a checksum is known for every file, so that damage shows without parsing."""
        return all(source.sha256 for source in (*self.files, *self.instead))


def own_dataset(name: str, kind: str, folder: Path, files: Iterable[str], reader: Callable[[Path], Any]) -> Dataset:
    """A user's own dataset, named by its absolute path, with ``files`` in ``folder``."""
    sources = tuple(SourceFile(file) for file in files)
    return Dataset(name, "a user's own", kind, reader, sources, folder=str(folder))


def check_no_validation(folder: Path, ends: Iterable[str], instead: str, names: Iterable[str] = VALIDATION) -> None:
    """Check that a folder has no validation part under one of these names, which the reader would ignore.

    Raises:
        DataError: it has one, which may be moved away, or ``instead``.
    """
    for file in (f"{name}{end}" for name in names for end in ends):
        if (folder / file).exists():
            what = "a validation part is not read from this file"
            fix = f"Move {file} to another folder, or {instead}"
            raise DataError(what, file=folder / file, got=file, fix=fix)


def check_one_form(folder: Path, names: Iterable[str]) -> None:
    """Check that a part is not there in several forms, as train.csv and train.parquet. A compressed copy is no form.

    Raises:
        UnclearLayout: several of the files are there.
    """
    there = [name for name in names if (folder / name).is_file()]
    if len({name.removesuffix(".gz") for name in there}) > 1:
        raise UnclearLayout(
            "a part is in several files", file=folder, got=", ".join(there), fix="Keep one of them in the folder"
        )


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A run's parameters for reading its dataset; None if the workload does not have the parameter."""

    split: str | None = None
    size: int | None = None
    corrupt: str | None = None
    unknown: str | None = None
    noise: float | None = None
    min_rating: float | None = None

    @property
    def change_parts(self) -> bool:
        """Whether the parts are others than those of the files."""
        filtered = self.min_rating is not None
        return self.split in ("clean", "leave_last_out", "global_time") or bool(self.noise) or filtered


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of data: the layout of users' own files, and the checks and counts of its datasets.

    ``layout`` describes users' own data in words. ``own``: pairs of a test whether a path has a layout, and a function
    that returns the dataset there. ``check`` finds, before a worker starts, errors that checksums do not show; it
    raises :class:`~workloads.data.errors.DataError`. With ``checksums_suffice`` a dataset that has them is not checked.
    ``slow``: reading may take an hour whatever the size of the dataset's files, so that only a node that trains does.
    ``counts`` returns numbers such as that of users, None if they would take too long. ``warning`` returns a sentence
    about examples that a run skips, or None. ``overlap`` counts test examples that are in train. These are named as
    ``module:function``: they read data, and what reads data imports the catalogue.
    """

    name: str
    layout: str
    own: tuple[tuple[Callable[[Path], bool], Callable[[str, Path], Dataset]], ...]
    check: str
    overlap: str
    checksums_suffice: bool = True
    slow: bool = False
    counts: str | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Overlap:
    """``repeated`` of ``total`` test examples (``unit``, plural) are in the training part; ``example`` is one."""

    repeated: int
    total: int
    unit: str
    example: str | None = None

    def __str__(self) -> str:
        if not self.total:
            return "no test part"
        shown = f", such as {self.example}" if self.example else ""
        return f"{self.repeated:,} of {self.total:,} test {self.unit} are also in the training part{shown}"
