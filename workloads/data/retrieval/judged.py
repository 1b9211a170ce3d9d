"""Build a numbered collection from texts and judgements with ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from workloads.data.errors import DataError
from workloads.data.retrieval.types import PARTS

if TYPE_CHECKING:
    from workloads.data.retrieval.types import Retrieval

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


def judged(docs: Texts, queries: Texts, rows: Iterable[Row]) -> Retrieval:
    """Build the collection of these texts and judgements.

    Judgements of unknown documents or queries are removed and listed. Equal judgements of one pair count once.

    Raises:
        DataError: a pair has two grades, a query has judgements in two parts, or no document is relevant.
    """
    import numpy as np
    import pyarrow as pa

    from workloads.data.retrieval.types import Retrieval

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
        raise DataError("no document is judged relevant", got=got, expected="a grade above 0")
    doc_ids, doc_texts, query_ids, query_texts = (pa.array(column, pa.large_string()) for column in (*docs, *queries))
    return Retrieval(doc_ids, doc_texts, query_ids, query_texts, table, parts, unknown[:_NAMED], len(unknown))
