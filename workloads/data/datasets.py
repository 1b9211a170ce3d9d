"""The catalogue of datasets, and whether one is present and intact. Imports nothing heavy."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workloads.data.digests import digest, sha256
from workloads.data.errors import DataError
from workloads.data.files import plain_or_gz
from workloads.data.images.archives import CIFAR_10, CIFAR_100, STL_10, TINY_IMAGENET
from workloads.data.images.kind import IMAGES, skipped_warning
from workloads.data.images.synthetic import SYNTHETIC_IMAGES
from workloads.data.images.tables import CIFAR_10_SUBSET
from workloads.data.interactions.kind import INTERACTIONS
from workloads.data.interactions.lightgcn import GOWALLA, LASTFM, YELP2018
from workloads.data.interactions.movielens import ML_1M, ML_100K, ML_100K_RAW
from workloads.data.interactions.synthetic import SYNTHETIC
from workloads.data.interactions.synthetic_large import SYNTHETIC_1M
from workloads.data.interactions.tables import is_path, own_interactions
from workloads.data.interactions.yahoo import YAHOO_R3
from workloads.data.pairs.kind import PAIRS
from workloads.data.pairs.sts import GLUE_STSB, STSB
from workloads.data.pairs.synthetic import SYNTHETIC_PAIRS
from workloads.data.questions.kind import QUESTIONS
from workloads.data.questions.knowledge_graph import PATHQUESTION
from workloads.data.questions.synthetic import SYNTHETIC_QUESTIONS
from workloads.data.retrieval.collections import CACM, CISI, CRAN, MED, SCIFACT, TIME
from workloads.data.retrieval.kind import RETRIEVAL
from workloads.data.retrieval.synthetic import SYNTHETIC_RETRIEVAL
from workloads.data.retrieval.topical import CLASSIC_IR
from workloads.data.source import Dataset, Kind, ReadOptions, SourceFile

DATASETS: Mapping[str, Dataset] = {
    known.name: known
    for known in (
        SYNTHETIC,
        ML_100K,
        ML_100K_RAW,
        ML_1M,
        YAHOO_R3,
        LASTFM,
        GOWALLA,
        YELP2018,
        SYNTHETIC_1M,
        SYNTHETIC_RETRIEVAL,
        SCIFACT,
        CRAN,
        CISI,
        CACM,
        MED,
        TIME,
        CLASSIC_IR,
        SYNTHETIC_QUESTIONS,
        PATHQUESTION,
        SYNTHETIC_PAIRS,
        STSB,
        GLUE_STSB,
        SYNTHETIC_IMAGES,
        CIFAR_10,
        CIFAR_10_SUBSET,
        CIFAR_100,
        STL_10,
        TINY_IMAGENET,
    )
}

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (RETRIEVAL, QUESTIONS, PAIRS, IMAGES, INTERACTIONS)}
"""The kinds of data by name, in the order in which their forms are looked for at a path; interactions are the rest."""


def dataset(name: str) -> Dataset:
    """The dataset of that name, or at that absolute path.

    Raises:
        DataError: there is none; the message offers the nearest name.
    """
    if name in DATASETS:
        return DATASETS[name]
    if is_path(name):
        path = Path(name)
        forms = (form for kind in KINDS.values() for form in kind.own)
        own = next((own for fits, own in forms if path.is_absolute() and fits(path)), None)
        return own(name, path) if own else own_interactions(name)
    raise _unknown(name, sorted(DATASETS), " or the path of your own")


def check_kind(name: str, *kinds: str) -> str:
    """``name``, unless it is none, or what it names is there and of none of these kinds. Needs no data root.

    Raises:
        DataError: it is unknown or of another kind; the message names what would do.
    """
    fitting = [known.name for known in DATASETS.values() if known.kind in kinds]
    if name not in DATASETS and not is_path(name):
        raise _unknown(name, fitting, " or the path of your own")
    if name in DATASETS:
        kind = DATASETS[name].kind
    elif not os.path.isabs(name) or not os.path.exists(name):  # who checks or reads it says so
        return name
    else:
        try:
            kind = dataset(name).kind
        except DataError:
            layouts = "; or ".join(KINDS[kind].layout for kind in kinds)
            raise DataError("what is there is no dataset", file=Path(name), expected=layouts) from None
    if kind not in kinds:
        expected = f"{' or '.join(kinds)}: {', '.join(fitting)}, or the path of your own"
        raise DataError(f"dataset {name!r} holds another kind of data", got=kind, expected=expected)
    return name


def _unknown(name: str, known: Sequence[str], path: str = "") -> DataError:
    """What may be said instead of ``name``, with the nearest of it; a ``path`` where that would do, too."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1, cutoff=0.5)
    fix = f"Did you mean {close[0]!r}?" if close else None
    return DataError("Unknown dataset", got=repr(name), expected=f"one of {', '.join(known)}{path}", fix=fix)


def check(name: str, root: Path) -> None:
    """Refuse a dataset that is not present and intact under the data root.

    A file that has not changed since it was last read costs a ``stat``.

    Raises:
        DataError: the first problem; of a damaged file the line, where parsing finds one.
    """
    for problem in _problems(dataset(name), root, digest):
        raise problem


def check_readable(name: str, root: Path, options: ReadOptions | None = None) -> None:
    """Refuse, before a worker starts, what :func:`check` does not see.

    That is: a damaged line or image where there is no checksum, a split or noise that the dataset cannot have, and
    parts that nothing could be judged by. Such a dataset is converted now, as by its first reader.

    Raises:
        DataError: the dataset is unknown, missing or damaged, or does not have what the options need.
        CacheUnwritable: the cache cannot be written.
    """
    known = dataset(name)
    KINDS[known.kind].check(known, root, options or ReadOptions())


def counts(name: str, root: Path) -> Mapping[str, int]:
    """The numbers that describe a dataset, by its kind. The first call on a machine may convert it."""
    return KINDS[dataset(name).kind].counts(name, root)


def skipped_images_warning(params: Mapping[str, Any], root: Path) -> str | None:
    """A sentence about the examples of a run's dataset that are left out; None without one."""
    name = params.get("dataset")
    return None if name is None else skipped_warning(dataset(name), params, root)


def verify(name: str, root: Path) -> list[str]:
    """Every problem of a dataset, a sentence each; empty when it is intact. Reads every byte.

    Raises:
        DataError: there is no dataset of that name.
    """
    known = dataset(name)
    problems = list(_problems(known, root, sha256))
    if not problems and not known.verified and (fault := _parse_fault(known, root)):
        problems = [fault]
    return [str(problem) for problem in problems]


def fetch(name: str, root: Path) -> list[Path]:
    """Download what is missing or damaged from the official source; the paths that were fetched.

    Raises:
        DataUnreachable: no network, or the source does not answer.
        DataError: unknown name, no public address, wrong content, or the data root cannot be written.
    """
    from workloads.data.download import download

    if name not in DATASETS and not is_path(name):
        raise _unknown(name, sorted(DATASETS))
    known = dataset(name)
    damaged = [source for source in (*known.files, *known.extras) if _damage(known, source, root, sha256) is not None]
    for source in damaged:
        if not source.url:
            file = known.folder_in(root) / source.path
            raise DataError("the file has no public address", file=file, fix=_advice(known, root))
    return [download(source, known.folder_in(root)) for source in damaged]


def fingerprint(name: str, root: Path) -> str:
    """SHA-256 in hex of what the dataset holds: every file's bytes and its reader's or generator's version.

    Raises:
        DataError: unknown name, or a file is missing or unreadable.
    """
    known = dataset(name)
    identity = [known.name, known.version]
    for source in known.files:
        path = plain_or_gz(known.folder_in(root) / source.path)
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
        return known.reader(known.folder_in(root))
    except DataError as fault:
        raise (fault.advise(_advice(known, root)) if known.files else fault) from None
    except OSError as error:
        raise _unreadable(known, Path(error.filename or known.folder_in(root)), root, error) from error


def occupations(name: str, root: Path) -> Any:
    """The group of each user, int32 (n_users,), numbered from 0: what BNS-4 takes its prior from.

    Raises:
        DataError: unknown name, a dataset without occupations, or their file is missing or damaged.
    """
    known = dataset(name)
    if known.occupations is None:
        having = ", ".join(known.name for known in DATASETS.values() if known.occupations)
        raise DataError(
            f"dataset {name} does not tell its users' occupations", got=name, expected=f"one of {having}",
            fix="Set another bns_prior, or one of these datasets",
        )  # fmt: skip
    for source in known.extras:
        if (damage := _damage(known, source, root, digest)) is not None:
            raise damage
    return known.occupations(known.folder_in(root))


def install(known: Dataset) -> str:
    """The command that brings the packages which a dataset needs."""
    return f"pip install {' '.join(known.needs)}"


def _importable(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # it is loaded, and does not say from where
        return True


def _problems(known: Dataset, root: Path, digest_of: Callable[[Path], str]) -> Iterator[DataError]:
    if missing := [package for package in known.needs if not _importable(package)]:
        what = f"dataset {known.name} is read with the package {missing[0]}, which is missing"
        yield DataError(what, fix=f"Install it: {install(known)}")
        return
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
    path = plain_or_gz(known.folder_in(root) / source.path)
    try:
        size = path.stat().st_size
        if path.is_dir() and not source.folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        found = digest_of(path)
    except OSError as error:
        return _unreadable(known, path, root, error)
    plain = path.name == Path(source.path).name  # of a compressed one the content's size is not looked up
    if source.accepts(size if plain else source.size or size, found):
        return None
    got, fix = f"{size} bytes, sha256 {found}", _advice(known, root)
    if not source.sha256:
        expected = f"{source.size} bytes" if source.size else "some content"
        return DataError("the size differs", file=path, got=got, expected=expected, fix=fix)
    what = "the checksum differs though no line was found damaged"
    expected = f"{source.size} bytes, sha256 {source.sha256}"
    return DataError(what, file=path, got=got, expected=expected, fix=fix)


def _parse_fault(known: Dataset, root: Path) -> DataError | None:
    """Where the reader stumbles, if all files are there and it does."""
    if all(plain_or_gz(known.folder_in(root) / source.path).is_file() for source in known.files):
        try:
            read(known.name, root)
        except DataError as fault:
            return fault
    return None


def _unreadable(known: Dataset, path: Path, root: Path, error: OSError) -> DataError:
    what = f"the file of dataset {known.name} cannot be read ({error.strerror or error})"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        what = f"the file of dataset {known.name} is missing"
    return DataError(what, file=path, fix=_advice(known, root))


def _advice(known: Dataset, root: Path) -> str:
    folder = known.folder or known.name
    if Path(folder).is_absolute():
        return "Correct the file, or the path"
    get = f"Get it with `orchestrator data fetch {known.name}`"
    if known.obtain:
        files = " and ".join(source.path for source in known.files)
        get = f"{known.obtain}; put {files} into {root / folder}"
    return f"{get}, or set ORCHESTRATOR_DATA to the folder that holds {folder}/ (searched: {root})"
