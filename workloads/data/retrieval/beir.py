"""Retrieval collections in the layout of BEIR: ``corpus.jsonl``, ``queries.jsonl`` and judgements as TSV.

Thakur et al., NeurIPS 2021. The judgements are in one or more of ``qrels/train.tsv``, ``qrels/dev.tsv`` and
``qrels/test.tsv``, or, if the source has no split, in ``qrels.tsv``. Each begins with the line
``query-id corpus-id score``, separated by tabs. Files may be compressed, as ``<name>.gz``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from workloads.data.errors import DataError, line_error
from workloads.data.files import HALF_CHARACTER, is_encodable, lines, plain_or_gz
from workloads.data.retrieval.judged import Row, judged
from workloads.data.retrieval.types import PARTS
from workloads.data.source import Dataset, SourceFile

if TYPE_CHECKING:
    from workloads.data.retrieval.types import Retrieval

CORPUS, QUERIES, JUDGEMENTS = "corpus.jsonl", "queries.jsonl", "qrels.tsv"
SPLIT_JUDGEMENTS = {part: f"qrels/{part}.tsv" for part in ("train", "dev", "test")}

_HEADER = ("query-id", "corpus-id", "score")


def collection(name: str, summary: str, folder: str, files: tuple[SourceFile, ...], obtain: str = "") -> Dataset:
    """A dataset in this layout. ``files`` that are neither documents nor queries are judgements."""
    judgements = tuple(file.path for file in files if file.path not in (CORPUS, QUERIES))
    reader = partial(read_beir, files=judgements)
    return Dataset(name, summary, "retrieval", reader, files, folder=folder, obtain=obtain)


def judgement_files(folder: Path) -> list[str]:
    """The judgement files in the folder."""
    split = [file for file in SPLIT_JUDGEMENTS.values() if plain_or_gz(folder / file).is_file()]
    return split or [file for file in (JUDGEMENTS,) if plain_or_gz(folder / file).is_file()]


def is_beir(folder: Path) -> bool:
    """Whether a folder has the layout."""
    texts = all(plain_or_gz(folder / file).is_file() for file in (CORPUS, QUERIES))
    return texts and bool(judgement_files(folder))


def own_beir(name: str, folder: Path) -> Dataset:
    """A user's own collection, named by its absolute path."""
    files = [CORPUS, QUERIES, *judgement_files(folder)]
    return collection(name, "a user's own", str(folder), tuple(SourceFile(file) for file in files))


def read_beir(folder: Path, files: tuple[str, ...]) -> Retrieval:
    """Read a collection.

    Judgements of unknown documents or queries are removed and listed in ``unknown``. Grades below 0 become 0, as in
    trec_eval; 1.0 becomes 1. Equal judgements of one pair count once.

    Args:
        folder: the folder of the collection.
        files: judgement files, relative to the folder.

    Raises:
        DataError: a line that is not a document, query or judgement, a repeated id, a pair with two grades, a query
            with judgements in two parts, or a test part without relevant documents.
    """
    doc_ids, docs = read_texts(plain_or_gz(folder / CORPUS), titled=True)
    query_ids, queries = read_texts(plain_or_gz(folder / QUERIES), titled=False)
    rows = [row for file in files for row in _rows(plain_or_gz(folder / file))]
    collection = judged((doc_ids, docs), (query_ids, queries), rows)
    if SPLIT_JUDGEMENTS["test"] in files:
        check_test(plain_or_gz(folder / SPLIT_JUDGEMENTS["test"]), collection)
    return collection


def check_test(file: Path, data: Retrieval) -> None:
    """Check that the test part has relevant documents. Otherwise another part would be drawn in its place.

    Args:
        file: the file of its judgements.
        data: the collection with all parts.

    Raises:
        DataError: no query of the part has a document with a grade above 0.
    """
    tested = data.parts == PARTS.index("test")
    if not (tested & data.answered).any():
        raise DataError(
            "no query of the test part has a relevant document: its judgements are hidden or missing",
            file=file,
            got=f"{tested.sum()} judged queries, no grade above 0",
            fix="Put the true judgements there, or remove the file to have a test part drawn from the other queries",
        )


def read_texts(file: Path, *, titled: bool) -> tuple[list[str], list[str]]:
    """Ids and texts of a file with a JSON object per line."""
    ids: dict[str, int] = {}
    texts = []
    for number, line in lines(file):
        try:
            record = json.loads(line)
            name = record["_id"]
            text = record["text"]
            title = record.get("title") or "" if titled else ""
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
            expected = 'an object like {"_id": "d1", "text": "..."}'
            raise line_error("the line holds no text", file, number, line, expected) from None
        if not (isinstance(name, str) and isinstance(text, str) and isinstance(title, str)):
            raise line_error("id, title and text are strings", file, number, line)
        if not is_encodable(f"{name}{title}{text}"):
            raise line_error(HALF_CHARACTER, file, number, line)
        if name in ids:
            raise DataError("an id occurs twice", file=file, line=number, got=f"{name!r}, as in line {ids[name]}")
        ids[name] = number
        texts.append(f"{title} {text}".strip())
    if not texts:
        raise DataError("the file is empty", file=file, got="no line", expected="a JSON object a line")
    return list(ids), texts


def _rows(file: Path) -> Iterator[Row]:
    part = "" if file.name.startswith(JUDGEMENTS) else file.name.partition(".")[0]
    expected = f"{', '.join(_HEADER)} between tabs"
    for number, line in lines(file):
        cells = line.split("\t")
        if number == 1:
            if tuple(cells) != _HEADER:
                raise line_error("the header differs", file, number, line, expected)
            continue
        try:
            query, doc, grade = cells
            yield Row(query, doc, _grade(grade), part, file, number)
        except ValueError:
            raise line_error(
                "the line holds no judgement", file, number, line, f"{expected}, the score an integer"
            ) from None


def _grade(cell: str) -> int:
    """A grade as an integer from 0; it may be written as 1.0. Raises ValueError."""
    if not float(cell).is_integer():
        raise ValueError(cell)
    return max(0, int(float(cell)))
