"""The catalogue of datasets, and whether one is present and intact. Imports nothing heavy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads.data.digests import digest, sha256
from workloads.data.errors import DataError
from workloads.data.movielens import ML_100K
from workloads.data.source import Dataset, SourceFile
from workloads.data.synthetic import SYNTHETIC

DATASETS: Mapping[str, Dataset] = {
    known.name: known
    for known in (
        SYNTHETIC,
        ML_100K,
    )
}


def dataset(name: str) -> Dataset:
    """The dataset of that name.

    Raises:
        DataError: there is none; the message offers the nearest name.
    """
    if name in DATASETS:
        return DATASETS[name]
    from difflib import get_close_matches

    close = get_close_matches(name, DATASETS, n=1, cutoff=0.5)
    raise DataError(
        "Unknown dataset",
        got=repr(name),
        expected=f"one of {', '.join(sorted(DATASETS))}",
        fix=f"Did you mean {close[0]!r}?" if close else None,
    )


def check(name: str, root: Path) -> None:
    """Refuse a dataset that is not present and intact under the data root.

    A file that has not changed since it was last read costs a ``stat``.

    Raises:
        DataError: the first problem; of a damaged file the line, where parsing finds one.
    """
    for problem in _problems(dataset(name), root, digest):
        raise problem


def verify(name: str, root: Path) -> list[str]:
    """Every problem of a dataset, a sentence each; empty when it is intact. Reads every byte.

    Raises:
        DataError: there is no dataset of that name.
    """
    return [str(problem) for problem in _problems(dataset(name), root, sha256)]


def fetch(name: str, root: Path) -> list[Path]:
    """Download what is missing or damaged from the official source; the paths that were fetched.

    Raises:
        DataUnreachable: no network, or the source does not answer.
        DataError: unknown name, wrong content, or the data root can not be written.
    """
    from workloads.data.download import download

    known = dataset(name)
    damaged = [source for source in known.files if _damage(known, source, root, sha256) is not None]
    return [download(source, root / known.name) for source in damaged]


def fingerprint(name: str, root: Path) -> str:
    """SHA-256 in hex of what the dataset holds: every file's bytes and its reader's or generator's version.

    Raises:
        DataError: unknown name, or a file is missing or unreadable.
    """
    known = dataset(name)
    identity = [known.name, known.version]
    for source in known.files:
        path = root / known.name / source.path
        try:
            identity.append(f"{source.path} {digest(path)}")
        except OSError as error:
            raise _unreadable(known, path, root, error) from error
    return hashlib.sha256("\n".join(identity).encode()).hexdigest()


def read(name: str, root: Path) -> Any:
    """What the dataset's reader makes of its files, whatever their checksums.

    Raises:
        DataError: unknown name, or a file that is missing, unreadable or damaged.
    """
    known = dataset(name)
    try:
        return known.reader(root / known.name)
    except DataError as fault:
        raise fault.advise(_advice(known, root)) from None
    except OSError as error:
        raise _unreadable(known, Path(error.filename or root / known.name), root, error) from error


def _problems(known: Dataset, root: Path, digest_of: Callable[[Path], str]) -> Iterator[DataError]:
    found = (_damage(known, source, root, digest_of) for source in known.files)
    problems = [problem for problem in found if problem is not None]
    if not problems:
        return
    fault = _parse_fault(known, root)
    # A pair in both parts is found in the second file although the first may be the damaged one.
    elsewhere = fault is not None and fault.file not in {problem.file for problem in problems}
    for problem in problems:
        # A line says more than a checksum.
        yield fault if fault is not None and (elsewhere or fault.file == problem.file) else problem


def _damage(known: Dataset, source: SourceFile, root: Path, digest_of: Callable[[Path], str]) -> DataError | None:
    """What is wrong with one file by its size and checksum."""
    path = root / known.name / source.path
    try:
        size = path.stat().st_size
        found = digest_of(path)
    except OSError as error:
        return _unreadable(known, path, root, error)
    if (size, found) == (source.size, source.sha256):
        return None
    return DataError(
        "the checksum differs though no line was found damaged",
        file=path,
        got=f"{size} bytes, sha256 {found}",
        expected=f"{source.size} bytes, sha256 {source.sha256}",
        fix=_advice(known, root),
    )


def _parse_fault(known: Dataset, root: Path) -> DataError | None:
    """Where the reader stumbles, if all files are there and it does."""
    if all((root / known.name / source.path).is_file() for source in known.files):
        try:
            read(known.name, root)
        except DataError as fault:
            return fault
    return None


def _unreadable(known: Dataset, path: Path, root: Path, error: OSError) -> DataError:
    what = f"the file of dataset {known.name} can not be read ({error.strerror or error})"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        what = f"the file of dataset {known.name} is missing"
    return DataError(what, file=path, fix=_advice(known, root))


def _advice(known: Dataset, root: Path) -> str:
    return (
        f"Get it with `orchestrator data fetch {known.name}`, "
        f"or set ORCHESTRATOR_DATA to the folder that holds {known.name}/ (searched: {root})"
    )
