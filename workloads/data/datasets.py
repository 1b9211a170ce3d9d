"""The catalogue of datasets: lookup, checks, download, fingerprints. Imports neither NumPy nor PyTorch."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workloads.data import stores
from workloads.data.cache import local_path
from workloads.data.digests import digest, sha256
from workloads.data.errors import CacheUnwritable, DataError, UnclearLayout
from workloads.data.files import plain_or_gz
from workloads.data.images.archives import CIFAR_10, CIFAR_100, STL_10, TINY_IMAGENET
from workloads.data.images.kind import IMAGES
from workloads.data.images.synthetic import SYNTHETIC_IMAGES
from workloads.data.images.tables import CIFAR_10_SUBSET
from workloads.data.interactions.columns import check_columns
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
from workloads.data.source import Dataset, Kind, Overlap, ReadOptions, SourceFile
from workloads.named_function import load_function

DATASETS: Mapping[str, Dataset] = {
    entry.name: entry
    for entry in (
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

LARGE_BYTES = 2**28
"""Size of a dataset's files from which reading them for the first time may take more than ten seconds."""

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (RETRIEVAL, QUESTIONS, PAIRS, IMAGES, INTERACTIONS)}
"""Kinds of data by name, in the order in which a path is tested for them. Interactions are the default."""


def dataset(name: str) -> Dataset:
    """The dataset with this name, at this absolute path, or at this URI (:mod:`workloads.data.stores`).

    Raises:
        DataError: there is none, and the message names the nearest; a path cannot be read, or a URI not be copied.
    """
    if name in DATASETS:
        return DATASETS[name]
    if is_path(name):
        path = local_path(name)
        stores.stage(path)
        try:
            forms = (own for kind in KINDS.values() for fits, own in kind.own if path.is_absolute() and fits(path))
            return own(name, path) if (own := next(forms, None)) else own_interactions(name)
        except OSError as error:
            raise DataError("the path cannot be read", file=path, got=error.strerror, fix="Fix its rights") from None
    raise _unknown(name, sorted(DATASETS), " or the path of your own")


def check_kind(name: str, *kinds: str) -> str:
    """Check that ``name`` is a dataset of one of ``kinds``. A missing path is accepted. Needs no data root.

    Raises:
        DataError: it is unknown or of another kind; the message names the ones that fit.
    """
    fitting = [entry.name for entry in DATASETS.values() if entry.kind in kinds]
    layouts = "; or ".join(KINDS[kind].layout for kind in kinds)
    if name not in DATASETS and not is_path(name):
        raise _unknown(name, fitting, " or the path of your own")
    if name in DATASETS:
        kind = DATASETS[name].kind
    elif not (path := local_path(name)).is_absolute() or not os.path.exists(path):  # reading it reports that
        return name
    else:
        try:
            kind = dataset(name).kind
            if kind == INTERACTIONS.name and kind not in kinds and path.is_file():  # so is a table of no other kind
                check_columns(path)
        except UnclearLayout:
            raise
        except DataError as error:
            what = "the path is not a dataset"
            raise DataError(what, file=Path(name), got=error.got, expected=layouts, fix=error.fix) from None
    if kind not in kinds:
        expected = layouts if name not in DATASETS else f"{', '.join(fitting)}, or the path of your own"
        expected = f"{' or '.join(kinds)}: {expected}"
        raise DataError(f"dataset {name!r} holds another kind of data", got=kind, expected=expected)
    return name


def _unknown(name: str, names: Sequence[str], path: str = "") -> DataError:
    """The error for an unknown name, with the nearest one. ``path`` is added to what is allowed."""
    from difflib import get_close_matches

    close = get_close_matches(name, names, n=1, cutoff=0.5)
    fix = f"Did you mean {close[0]!r}?" if close else None
    return DataError("Unknown dataset", got=repr(name), expected=f"one of {', '.join(names)}{path}", fix=fix)


def is_slow(name: str, root: Path) -> bool:
    """Whether a first reading may take long, by the dataset's kind or the size of its files. Raises DataError."""
    entry = dataset(name)
    return KINDS[entry.kind].slow or size_bytes(entry, root) >= LARGE_BYTES


def size_bytes(entry: Dataset, root: Path) -> int:
    """Size of a dataset's files, without those in folders of images; 0 for what is missing."""
    paths = (plain_or_gz(entry.folder_in(root) / source.path) for source in entry.files_in(root))
    return sum(path.stat().st_size for path in paths if os.path.isfile(path))


def check(name: str, root: Path) -> None:
    """Check that a dataset is present and intact.

    A file that has not changed since it was last read costs one ``stat``. Below a data root that is a copy of an object
    store the dataset is staged first.

    Raises:
        DataError: the first problem; for a damaged file with the line, if parsing finds it.
    """
    entry = dataset(name)
    _stage(entry, root)
    for problem in _problems(entry, root, digest):
        raise problem


def check_readable(name: str, root: Path, options: ReadOptions | None = None) -> None:
    """Check before a start that the dataset can be read with these options. Converts it if needed.

    Finds what :func:`check` cannot: damaged lines or images of a dataset without checksums, a split, noise or lowest
    rating that the dataset cannot have, parts without evaluable test data.

    Raises:
        DataError: the dataset is unknown, missing or damaged, or does not have what the options need.
        CacheUnwritable: the cache cannot be written.
    """
    entry = dataset(name)
    kind = KINDS[entry.kind]
    options = options or ReadOptions()
    if entry.verified and kind.checksums_suffice and not options.change_parts:
        return
    load_function(kind.check)(entry, root, options)


def counts(name: str, root: Path) -> Mapping[str, int]:
    """The numbers that describe a dataset, by its kind; none if reading it may take long.

    The first call on a machine converts it.
    """
    counts = KINDS[dataset(name).kind].counts
    return load_function(counts)(name, root) if counts and not is_slow(name, root) else {}


def overlap(name: str, root: Path) -> Overlap | None:
    """Test examples of a dataset that also are in its training part; None for a kind without. Raises DataError."""
    kind = KINDS.get(dataset(name).kind)
    return load_function(kind.overlap)(name, root) if kind else None


def skipped_images_warning(params: Mapping[str, Any], root: Path) -> str | None:
    """A sentence about the examples of a run's datasets that are left out; None without one."""
    entry = dataset(params["dataset"]) if params.get("dataset") is not None else None
    warning = KINDS[entry.kind].warning if entry else None
    return load_function(warning)(entry, params, root) if warning else None


def verify(name: str, root: Path) -> list[str]:
    """All problems of a dataset, one sentence each; empty if it is intact. Reads every byte.

    Raises:
        DataError: there is no dataset of this name.
    """
    entry = dataset(name)
    _stage(entry, root)
    problems = list(_problems(entry, root, sha256))
    if not problems and not entry.verified and (fault := _parse_error(entry, root)):
        problems = [fault]
    return [str(problem) for problem in problems]


def fetch(name: str, root: Path) -> list[Path]:
    """Download missing or damaged files from the official source. Returns their paths.

    Raises:
        DataUnreachable: no network, or the source does not answer.
        DataError: unknown name, no public address, wrong content, or the data root cannot be written.
    """
    from workloads.data.download import download

    if name not in DATASETS and not is_path(name):
        raise _unknown(name, sorted(DATASETS))
    entry = dataset(name)
    if entry.files and (uri := stores.uri_of(root)):
        raise DataError(f"the data root is an object store, {uri}", fix=f"Upload the files of {name} there")
    damaged = [source for source in (*entry.files, *entry.extras) if _damage(entry, source, root, sha256) is not None]
    for source in damaged:
        if not source.url:
            file = entry.folder_in(root) / source.path
            raise DataError("the file has no public address", file=file, fix=_advice(entry, root))
    return [download(source, entry.folder_in(root)) for source in damaged]


def fingerprint(name: str, root: Path) -> str:
    """SHA-256 in hex of a dataset: the bytes of every file, and the version of its reader or generator.

    Raises:
        DataError: unknown name, or a file is missing or unreadable.
    """
    entry = dataset(name)
    _stage(entry, root)
    identity = [entry.name, entry.version]
    for source in entry.files_in(root):
        path = plain_or_gz(entry.folder_in(root) / source.path)
        try:
            identity.append(f"{source.path} {digest(path)}")
        except OSError as error:
            raise _unreadable(entry, path, root, error) from error
    return hashlib.sha256("\n".join(identity).encode()).hexdigest()


def _stage(entry: Dataset, root: Path) -> None:
    """Copy a dataset of the catalogue from the object store that the data root is a copy of."""
    folder = entry.folder_in(root)
    if entry.files and not Path(entry.folder).is_absolute() and stores.uri_of(folder):
        stores.stage(folder)


def read(name: str, root: Path) -> Any:
    """Read the dataset, ignoring checksums.

    Raises:
        DataError: unknown name, or a file that is missing, unreadable or damaged.
        CacheUnwritable: the cache cannot be written.
    """
    entry = dataset(name)
    try:
        return entry.reader(entry.folder_in(root))
    except CacheUnwritable:  # not a fault of the files
        raise
    except DataError as fault:
        raise (fault.advise(_advice(entry, root)) if entry.files else fault) from None
    except OSError as error:
        raise _unreadable(entry, entry.folder_in(root), root, error) from error


def occupations(name: str, root: Path) -> Any:
    """Group of each user, for BNS-4's prior: int32 (n_users,), from 0.

    Raises:
        DataError: unknown name, a dataset without occupations, or their file is missing or damaged.
    """
    return _side_information(name, root, "occupations")


def friends(name: str, root: Path) -> Any:
    """Pairs of users who know each other, each in both orders: int32 (n, 2), without repetitions.

    Raises:
        DataError: unknown name, a dataset without friends, or their file is missing or damaged.
    """
    return _side_information(name, root, "friends")


def _side_information(name: str, root: Path, kind: str) -> Any:
    entry = dataset(name)
    if getattr(entry, kind) is None:
        having = ", ".join(entry.name for entry in DATASETS.values() if getattr(entry, kind))
        raise DataError(
            f"dataset {name} has no {kind} of its users", got=name, expected=f"one of {having}",
            fix="Set another bns_prior, or one of these datasets",
        )  # fmt: skip
    for source in entry.extras:
        if (damage := _damage(entry, source, root, digest)) is not None:
            raise damage
    return getattr(entry, kind)(entry.folder_in(root))


def install(entry: Dataset) -> str:
    """The command that installs the packages a dataset needs."""
    return f"pip install {' '.join(entry.needs)}"


def _importable(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # a module that is loaded without a spec
        return True


def _problems(entry: Dataset, root: Path, digest_of: Callable[[Path], str]) -> Iterator[DataError]:
    if missing := [package for package in entry.needs if not _importable(package)]:
        what = f"dataset {entry.name} is read with the package {missing[0]}, which is missing"
        yield DataError(what, fix=f"Install it: {install(entry)}")
        return
    problems = [problem for source in entry.files_in(root) if (problem := _damage(entry, source, root, digest_of))]
    if not problems:
        return
    fault = _parse_error(entry, root)
    # A pair in both parts is found in the second file although the first may be the damaged one.
    elsewhere = fault is not None and fault.file not in {problem.file for problem in problems}
    for problem in problems:
        # An error with a line is more useful than one about a checksum.
        yield fault if fault is not None and (elsewhere or fault.file == problem.file) else problem


def _damage(entry: Dataset, source: SourceFile, root: Path, digest_of: Callable[[Path], str]) -> DataError | None:
    """Size or checksum error of a file."""
    path = plain_or_gz(entry.folder_in(root) / source.path)
    try:
        size = path.stat().st_size
        if path.is_dir() and not source.folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        actual = digest_of(path)
    except OSError as error:
        return _unreadable(entry, path, root, error)
    plain = path.name == Path(source.path).name  # the size of compressed content is not known without reading
    if source.accepts(size if plain else source.size or size, actual):
        return None
    got = f"{size} bytes, sha256 {actual}"
    fix = _advice(entry, root)
    if not source.sha256:
        expected = f"{source.size} bytes" if source.size else "some content"
        return DataError("the size differs", file=path, got=got, expected=expected, fix=fix)
    what = "the checksum differs though no line was found damaged"
    expected = f"{source.size} bytes, sha256 {source.sha256}"
    return DataError(what, file=path, got=got, expected=expected, fix=fix)


def _parse_error(entry: Dataset, root: Path) -> DataError | None:
    """First parse error, if all files are present."""
    if all(os.path.isfile(plain_or_gz(entry.folder_in(root) / source.path)) for source in entry.files_in(root)):
        try:
            read(entry.name, root)
        except DataError as fault:
            return fault
    return None


def _unreadable(entry: Dataset, path: Path, root: Path, error: OSError) -> DataError:
    what = f"the file of dataset {entry.name} cannot be read ({error.strerror or error})"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        what = f"the file of dataset {entry.name} is missing"
    return DataError(what, file=Path(error.filename or path), fix=_advice(entry, root))


def _advice(entry: Dataset, root: Path) -> str:
    folder = entry.folder or entry.name
    if Path(folder).is_absolute():
        return "Correct the file, or the path"
    get = f"Get it with `orchestrator data fetch {entry.name}`"
    if entry.obtain:
        files = " and ".join(source.path for source in entry.files)
        get = f"{entry.obtain}; put {files} into {root / folder}"
    return f"{get}, or set ORCHESTRATOR_DATA to the folder that holds {folder}/ (searched: {root})"
