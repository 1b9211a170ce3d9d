"""What a dataset is: its files at their official source and the functions that read them; what a kind of data is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: its path in the dataset's folder, and what is known of its content.

    The file may also lie there compressed, as ``<path>.gz``. ``size`` in bytes and ``sha256`` in hex are those of the
    content; 0 and empty where no one vouches for them, so that only reading shows damage. ``also`` holds the digests
    of the same text with other line ends. ``url`` is the official address, empty where there is none; with
    ``member`` it is that of a ZIP archive which holds the file under that name. With ``folder`` the path is that of a
    folder, and all files below it are meant.
    """

    path: str
    size: int = 0
    sha256: str = ""
    url: str = ""
    member: str = ""
    also: tuple[str, ...] = ()
    folder: bool = False

    def accepts(self, size: int, sha256: str) -> bool:
        """Whether content of this size and digest can be the file's."""
        if self.sha256:
            return sha256 in (self.sha256, *self.also)
        return size > 0 and self.size in (0, size)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset by name. Its files lie in ``<data root>/<folder>/``; a generated one has none.

    ``kind`` names what ``reader`` returns (``interactions``:
    :class:`~workloads.data.interactions.types.Interactions`). ``reader`` takes the dataset's folder, raises
    :class:`~workloads.data.errors.DataError` with file and line where the content is damaged, and does not
    look at checksums. ``version`` changes whenever the reader makes something else of the same files; for a
    generated dataset it holds all parameters.

    ``extras`` are files that training does without, and ``occupations`` reads from them a group 0, 1, ... of each
    user. ``obtain`` says where to get files that have no public address, or who fetches what has no files here.
    ``needs`` are the packages, beyond those of every installation, that it cannot be read without.
    ``clean_from`` is the lowest rating of the source's own test part that the split ``clean`` keeps; without it
    ``clean`` draws from the highest ratings.
    """

    name: str
    summary: str
    kind: str
    reader: Callable[[Path], Any]
    files: tuple[SourceFile, ...] = ()
    version: str = "1"
    extras: tuple[SourceFile, ...] = ()
    occupations: Callable[[Path], Any] | None = None
    folder: str = ""
    obtain: str = ""
    needs: tuple[str, ...] = ()
    clean_from: float | None = None

    def folder_in(self, root: Path) -> Path:
        """The folder of its files."""
        return root / (self.folder or self.name)

    @property
    def verified(self) -> bool:
        """Whether a checksum is known for every file, so that damage shows without reading."""
        return all(source.sha256 for source in self.files)


def own_dataset(name: str, kind: str, folder: Path, files: Iterable[str], reader: Callable[[Path], Any]) -> Dataset:
    """A user's own, by its absolute path; ``files`` lie in ``folder``."""
    sources = tuple(SourceFile(file) for file in files)
    return Dataset(name, "a user's own", kind, reader, sources, folder=str(folder))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Parameters of a run that say how its dataset is read; None where the run does not have the parameter."""

    split: str | None = None
    size: int | None = None
    corrupt: str | None = None
    unknown: str | None = None
    noise: float | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of data: what a user's own files look like, and how a dataset of the kind is checked and counted.

    ``layout`` describes a user's own data. ``own`` are its forms at an absolute path: whether a path has that form,
    and the dataset there. ``check`` refuses, before a worker starts, what checksums do not show; it raises
    :class:`~workloads.data.errors.DataError`. ``counts`` are the numbers that describe a dataset, such as its users,
    none where they would cost too much. Both import NumPy only when called.
    """

    name: str
    layout: str
    own: tuple[tuple[Callable[[Path], bool], Callable[[str, Path], Dataset]], ...]
    check: Callable[[Dataset, Path, ReadOptions], None]
    counts: Callable[[str, Path], Mapping[str, int]] = lambda _name, _root: {}
