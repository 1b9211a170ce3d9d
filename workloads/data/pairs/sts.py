"""The semantic textual similarity benchmark (STS-B) and a user's own pairs, as CSV, TSV or Parquet.

Cer et al., "SemEval-2017 Task 1: Semantic Textual Similarity", 2017. ``stsb`` has the English files of
stsb-multi-mt, whose test scores are public; ``glue-stsb`` is GLUE's copy through the package ``datasets``, whose test
scores are hidden (E-S1).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from workloads.data.errors import DataError
from workloads.data.files import (
    TABLES,
    content,
    decimal,
    is_parquet,
    is_there,
    opened,
    parquet_errors,
    plain_or_gz,
    python_values,
)
from workloads.data.pairs.types import HIDDEN, HIGHEST, KIND, Pairs, SentencePairs
from workloads.data.source import VALIDATION, Dataset, SourceFile, check_one_form

COLUMNS = ("sentence1", "sentence2")
PLAIN = "sentence"
"""The column of a training part without pairs."""
_SCORES = ("score", "label", "similarity_score")
_PARTS = {"train": ("train",), "validation": VALIDATION, "test": ("test",)}
_SHOWN = 60

_Columns: TypeAlias = tuple[Sequence[int], list[str], list[str], list[Any] | None]
"""Line numbers (Parquet: rows) from 1, first sentences, second sentences, and scores as text, None without a column."""


def is_pairs(path: Path) -> bool:
    """Whether a table, or the train part of a folder, has the columns of sentence pairs; the latter also plain ones."""
    file = _part(path, "train") if path.is_dir() else path
    if file is None or not file.name.lower().endswith(TABLES) or not file.is_file():
        return False
    try:
        names = set(_names(file))
    except (OSError, DataError):
        return False
    return set(COLUMNS) <= names or (path.is_dir() and PLAIN in names)


def own_pairs(name: str, path: Path) -> Dataset:
    """The dataset of a user's pairs: a table, or a folder with train and optionally dev and test.

    Raises:
        UnclearLayout: a part is in several files.
    """
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        for part in _PARTS:
            check_one_form(folder, _file_names(part))
    files = {part: _part(path, part) for part in _PARTS} if path.is_dir() else {"train": path}
    named = {part: file.name for part, file in files.items() if file is not None}
    return _of_tables(name, "a user's own", str(folder), {part: SourceFile(file) for part, file in named.items()}, True)


def read_tables(folder: Path, files: dict[str, str], header: bool) -> SentencePairs:
    """Read the parts, one from each of ``files``.

    The scores of a test part without a score column, or without any score, are hidden, and those of a training part of
    plain sentences, which become pairs of a sentence and itself.

    Raises:
        DataError: a missing column, a line with another number of fields, a field that is too long, an empty sentence,
            a score that is not a number from 0 to 5, or training scores from 0 to 1. It names file and line (Parquet:
            the row).
    """
    read = SentencePairs(**{part: _pairs(plain_or_gz(folder / file), header, part) for part, file in files.items()})
    scores = read.train.scores
    if len(scores) and scores.max() <= 1 and (scores % 1).any():
        raise DataError(
            "the scores look like similarities from 0 to 1", file=plain_or_gz(folder / files["train"]),
            got=f"at most {scores.max():g}", expected=f"0 to {HIGHEST:g}", fix=f"Multiply them by {HIGHEST:g}",
        )  # fmt: skip
    return read


def read_glue(_folder: Path) -> SentencePairs:
    """Read GLUE's copy, from the cache of the package ``datasets`` or from the hub.

    Raises:
        DataError: the package cannot get the data.
    """
    import numpy as np
    from datasets import load_dataset

    try:
        glue = load_dataset("nyu-mll/glue", "stsb")
    except Exception as error:  # of that package or of its HTTP library
        got = (str(error).splitlines() or [type(error).__name__])[0]
        fix = "Load it once where there is a network, or use dataset=stsb"
        raise DataError("GLUE's STS-B is not in the cache of the package datasets", got=got, fix=fix) from None
    parts = {
        part: Pairs(list(rows["sentence1"]), list(rows["sentence2"]), np.asarray(rows["label"], np.float32))
        for part, rows in ((part, glue[part]) for part in _PARTS)
    }
    return SentencePairs(**parts)


def _part(folder: Path, part: str) -> Path | None:
    return next((folder / name for name in _file_names(part) if is_there(folder / name)), None)


def _file_names(part: str) -> list[str]:
    return [f"{name}{form}" for name in _PARTS[part] for form in TABLES]


def _names(file: Path) -> list[str]:
    """Column names of a table."""
    from pyarrow import parquet

    if is_parquet(file):
        with parquet_errors(file):
            names: list[str] = parquet.read_schema(file).names
        return names
    with opened(file) as stream:
        lines = io.TextIOWrapper(stream, "utf-8-sig", "replace", newline="")
        return next((names for _, names in _rows(file, lines)), [])


def _rows(file: Path, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The non-empty rows of a text table, each with its first line number.

    CSV fields may be quoted. In a TSV a quote is an ordinary character, as in GLUE's files.
    """
    tabs = ".tsv" in Path(file.name.lower()).suffixes
    line = 1
    # Not strict, a quote that is not closed would join lines to the next quote.
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines, strict=True)
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        fix = None if tabs else "Close the quotes that begin there, and write one within them twice"
        raise DataError("the line cannot be read", file=file, line=line, got=str(error), fix=fix) from None


def _pairs(file: Path, header: bool, part: str) -> Pairs:
    import numpy as np

    read = _parquet(file, part) if is_parquet(file) else _text(file, header, part)
    places, first, second, values = read
    for texts, name in ((first, COLUMNS[0]), (second, COLUMNS[1])):
        empty = next((row for row, text in enumerate(texts) if not isinstance(text, str) or not text.strip()), None)
        if empty is not None:
            raise _fault(file, places[empty], f"{name} is empty", repr(texts[empty]), "a sentence")
    if values is None:
        return Pairs(first, second, np.full(len(first), HIDDEN, np.float32))
    scores = np.array([_number(value) for value in values], np.float64)
    if part == "test" and (all(value in ("", None) for value in values) or (scores == HIDDEN).all()):
        scores = np.full(len(values), HIDDEN)
    else:
        wrong = np.flatnonzero(~((scores >= 0) & (scores <= HIGHEST)))
        if len(wrong):
            row = int(wrong[0])
            expected = f"a number from 0 to {HIGHEST:g}"
            raise _fault(file, places[row], "the score is out of its bounds", repr(values[row]), expected)
    return Pairs(first, second, scores.astype(np.float32))


def _fault(file: Path, row: int, what: str, got: str, expected: str) -> DataError:
    """The error for a line, or for a row of Parquet, from 1."""
    if is_parquet(file):
        return DataError(f"in row {row} {what}", file=file, got=got, expected=expected)
    return DataError(what, file=file, line=row, got=got, expected=expected)


def _number(value: Any) -> float:
    try:
        return decimal(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return float("nan")


def _parquet(file: Path, part: str) -> _Columns:
    from pyarrow import parquet

    columns, score = _columns(file, _names(file), part)
    with parquet_errors(file):
        table = parquet.read_table(file, columns=[*dict.fromkeys(columns), *([score] if score else [])])
        table.validate(full=True)  # Arrow reads text that is not UTF-8
    first, second = (python_values(file, name, table.column(name)) for name in columns)
    scores = python_values(file, score, table.column(score)) if score else None
    return range(1, len(first) + 1), first, second, scores


def _text(file: Path, header: bool, part: str) -> _Columns:
    try:
        text = content(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError("the file is not UTF-8 text", file=file, line=line, got=str(error)) from None
    rows = list(_rows(file, io.StringIO(text, newline="")))
    names = rows.pop(0)[1] if header and rows else [*COLUMNS, _SCORES[0]]
    columns, score = _columns(file, names, part)
    for line, row in rows:
        if len(row) != len(names):
            got = f"{len(row)} fields"
            expected = f"{len(names)}: {', '.join(names)}"
            raise DataError("the line has another number of fields", file=file, line=line, got=got, expected=expected)
    first, second = ([row[names.index(name)] for _, row in rows] for name in columns)
    scores = [row[names.index(score)] for _, row in rows] if score else None
    return [line for line, _ in rows], first, second, scores


def _columns(file: Path, names: list[str], part: str) -> tuple[tuple[str, str], str | None]:
    """The columns of the texts, and that of the scores; None if it is missing and may be."""
    texts = (PLAIN, PLAIN) if part == "train" and PLAIN in names and not set(COLUMNS) & set(names) else COLUMNS
    score = None if PLAIN in texts else next((name for name in _SCORES if name in names), None)
    if not set(texts) <= set(names) or (score is None and part != "test" and PLAIN not in texts):
        expected = f"{', '.join(COLUMNS)} and one of {', '.join(_SCORES)}"
        raise DataError("the columns are wrong", file=file, got=", ".join(names)[:_SHOWN] or "none", expected=expected)
    if repeated := next((name for name in (*texts, score) if name and names.count(name) > 1), None):
        raise DataError("a column occurs twice", file=file, got=repeated)
    return texts, score


def _of_tables(name: str, summary: str, folder: str, files: dict[str, SourceFile], header: bool) -> Dataset:
    named = {part: source.path for part, source in files.items()}
    reader = partial(read_tables, files=named, header=header)
    return Dataset(name, summary, KIND, reader, tuple(files.values()), folder=folder)


_SOURCE = "https://raw.githubusercontent.com/PhilipMay/stsb-multi-mt/99a65f1b68667f69a57bea13f602c7c9c27a9fcd/data"


def _file(part: str, size: int, sha256: str) -> SourceFile:
    return SourceFile(f"stsb-en-{part}.csv", size, sha256, f"{_SOURCE}/stsb-en-{part}.csv")


STSB = _of_tables(
    "stsb",
    "STS benchmark, English, 5,749 + 1,500 + 1,379 pairs with scores 0 to 5 (scores CC BY-SA 4.0)",
    "",
    {
        "train": _file("train", 708_863, "e1e84fec60bbb598735552f54a35f4949904a484750fd2cb11e2720e49f63da6"),
        "validation": _file("dev", 204_675, "d29586e96558c4eb52cf5ea5d14e9c24d3bf0e44f111b017caba43a5adc33226"),
        "test": _file("test", 158_891, "11523b625219e94e9ca05d2816b5f02cac1614c5894fe657376fa0806378d053"),
    },
    header=False,
)

GLUE_STSB = Dataset(
    name="glue-stsb",
    summary="the same in GLUE, through the package datasets; its test scores are hidden, so with split=dev",
    kind=KIND,
    reader=read_glue,
    obtain="fetched by the package datasets",
    needs=("datasets",),
)
