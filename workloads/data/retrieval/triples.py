"""Users' own triples in Parquet: the texts of a query, a relevant document and a negative one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from workloads.data.errors import DataError
from workloads.data.files import is_parquet, parquet_errors
from workloads.data.retrieval.judged import Row, judged
from workloads.data.retrieval.types import Retrieval
from workloads.data.source import Dataset, own_dataset

COLUMNS = ("query", "positive", "negative")


def is_triples(file: Path) -> bool:
    """Whether a file is Parquet with these columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not is_parquet(file) or not file.is_file():
        return False
    try:
        return set(COLUMNS) <= set(pq.read_schema(file).names)
    except (pa.ArrowException, OSError):
        return False


def own_triples(name: str, file: Path) -> Dataset:
    """The dataset of a user's triples, named by the file's absolute path."""
    return own_dataset(name, "retrieval", file.parent, (file.name,), partial(read_triples, file=file.name))


def read_triples(folder: Path, file: str) -> Retrieval:
    """Read the triples. Equal texts are one query or document, numbered in order of first appearance.

    The positive has grade 1, the negative, a hard negative that the source chose, grade 0.

    Raises:
        DataError: a column is not text or has nulls, the file cannot be read, or a document is both for one query.
    """
    import pyarrow.parquet as pq

    path = folder / file
    with parquet_errors(path):
        table = pq.read_table(path, columns=list(COLUMNS))
        table.validate(full=True)  # Arrow reads text that is not UTF-8
    texts = {column: _texts(path, column, table.column(column)) for column in COLUMNS}
    queries: dict[str, int] = {}
    docs: dict[str, int] = {}
    rows = []
    for number, (query, positive, negative) in enumerate(zip(*texts.values()), 1):
        query_id = str(queries.setdefault(query, len(queries)))
        for text, grade in ((positive, 1), (negative, 0)):
            rows.append(Row(query_id, str(docs.setdefault(text, len(docs))), grade, "", path, number))
    return judged(_numbered(docs), _numbered(queries), rows, path)


def _texts(path: Path, name: str, column: Any) -> list[str]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(f"column {name} holds no text", file=path, got=str(kind), expected="string")
    if column.null_count:
        line = column.is_null().to_pylist().index(True) + 1
        raise DataError(f"column {name} has a gap", file=path, line=line, got="no value")
    texts: list[str] = column.to_pylist()
    return texts


def _numbered(texts: dict[str, int]) -> tuple[list[str], list[str]]:
    return [str(number) for number in texts.values()], list(texts)
