"""Build a numbered collection from texts and files of judgements with ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from workloads.data.errors import DataError, UnclearLayout
from workloads.data.files import is_there, plain_or_gz
from workloads.data.retrieval.types import PARTS, Retrieval
from workloads.data.source import VALIDATION, check_no_validation

_HIGHEST = 2**31 - 1
_NAMED = 1000  # unknown judgements that are listed; further ones are only counted


class Row(NamedTuple):
    """A judgement in a file: its content, its part of the source, and its line."""

    query: str
    doc: str
    grade: int
    part: str
    file: Path
    line: int


Texts = tuple[Sequence[str], Sequence[str]]
"""Ids and texts."""


def grade_of(cell: str) -> int:
    """A grade as an integer from 0; a negative one is 0. Raises ValueError."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", cell):  # int() takes 1_0 and the digits of other scripts
        raise ValueError(cell)
    return max(0, int(cell))


def judgement_files(folder: Path, suffix: str) -> list[str]:
    """The judgement files in a folder: ``qrels/<part><suffix>``, or without a split ``qrels<suffix>``.

    Raises:
        DataError: the validation part has another name than dev.
        UnclearLayout: there are files of both forms.
    """
    others = [name for name in VALIDATION if name not in PARTS]
    ends = (suffix, f"{suffix}.gz")
    check_no_validation(folder / "qrels", ends, f"rename it to dev{suffix}", others)
    whole = f"qrels{suffix}"
    split = [f"qrels/{part}{suffix}" for part in PARTS[1:]]
    there = [file for file in (*split, whole) if is_there(folder / file)]
    if whole in there[1:]:
        raise UnclearLayout(
            "the judgements are both in one file and in parts", file=folder, got=", ".join(there),
            fix=f"Keep {whole}, or the folder qrels",
        )  # fmt: skip
    return there


def read_judgements(
    docs: Texts, queries: Texts, folder: Path, files: Sequence[str], read: Callable[[Path, str], Iterable[Row]]
) -> Retrieval:
    """Build the collection of these texts and of judgement files; ``read`` takes a file and its part.

    Raises:
        DataError: as of :func:`judged` and ``read``.
    """
    parts = {Path(file).stem.replace("qrels", ""): plain_or_gz(folder / file) for file in files}
    rows = [row for part, file in parts.items() for row in read(file, part)]
    return judged(docs, queries, rows, folder, parts.get("test"))


def judged(
    docs: Texts, queries: Texts, rows: Iterable[Row], source: Path | None = None, test: Path | None = None
) -> Retrieval:
    """Build the collection of these texts and judgements.

    Judgements of unknown documents or queries are removed and listed. Equal judgements of one pair count once.

    Args:
        source: file or folder of the collection, for errors.
        test: the file with the judgements of the test part. Without relevant documents in it, another part would be
            drawn in its place.

    Raises:
        DataError: a pair has two grades, a query has judgements in two parts, or no document is relevant, to any query
            or to one of ``test``.
    """
    import numpy as np
    import pyarrow as pa

    doc_number, query_number = ({name: number for number, name in enumerate(ids)} for ids, _ in (docs, queries))
    grades: dict[tuple[int, int], int] = {}
    parts = np.zeros(len(query_number), np.int8)
    seen = np.zeros(len(query_number), np.bool_)
    unknown: list[str] = []
    for row in rows:
        query = query_number.get(row.query)
        doc = doc_number.get(row.doc)
        if query is None or doc is None:
            missing = f"query {row.query}" if query is None else f"document {row.doc}"
            unknown.append(f"{row.file.name}, line {row.line}: {missing}")
            continue
        part = PARTS.index(row.part)
        if seen[query] and parts[query] != part:
            got = f"query {row.query!r} in {PARTS[parts[query]]} and {row.part}"
            raise DataError("a query is judged in two parts", file=row.file, line=row.line, got=got)
        if row.grade > _HIGHEST:
            raise DataError("the grade is too large", file=row.file, line=row.line, got=str(row.grade))
        if grades.setdefault((query, doc), row.grade) != row.grade:
            got = f"{row.query!r}, {row.doc!r}: {grades[query, doc]} and {row.grade}"
            raise DataError("a pair is judged twice, and differently", file=row.file, line=row.line, got=got)
        parts[query], seen[query] = part, True
    table = np.array([(*pair, grade) for pair, grade in sorted(grades.items())], np.int32).reshape(-1, 3)
    if not (table[:, 2] > 0).any():
        got = f"{len(table)} judgements of known documents, {len(unknown)} of unknown ones"
        raise DataError("no document is judged relevant", file=source, got=got, expected="a grade above 0")
    doc_ids, doc_texts, query_ids, query_texts = (pa.array(column, pa.large_string()) for column in (*docs, *queries))
    data = Retrieval(doc_ids, doc_texts, query_ids, query_texts, table, parts, unknown[:_NAMED], len(unknown))
    tested = parts == PARTS.index("test")
    if test is not None and not (tested & data.answered).any():
        raise DataError(
            "no query of the test part has a relevant document: its judgements are hidden or missing",
            file=test,
            got=f"{tested.sum()} judged queries, no grade above 0",
            fix="Put the true judgements there, or remove the file to have a test part drawn from the other queries",
        )
    return data
