"""Retrieval collections in the layout of BEIR: ``corpus.jsonl``, ``queries.jsonl`` and judgements as TSV.

Thakur et al., NeurIPS 2021. The judgements are in one or more of ``qrels/train.tsv``, ``qrels/dev.tsv`` and
``qrels/test.tsv``, or, if the source has no split, in ``qrels.tsv``. Each begins with the line
``query-id corpus-id score``, separated by tabs. Files may be compressed, as ``<name>.gz``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from workloads.data.errors import DataError, line_error
from workloads.data.files import HALF_CHARACTER, is_encodable, lines, plain_or_gz
from workloads.data.retrieval.judged import Row, grade_of, judgement_files, read_judgements
from workloads.data.retrieval.types import Retrieval
from workloads.data.source import Dataset, SourceFile

CORPUS, QUERIES, JUDGEMENTS = "corpus.jsonl", "queries.jsonl", "qrels.tsv"

_HEADER = ("query-id", "corpus-id", "score")


def collection(name: str, summary: str, folder: str, files: tuple[SourceFile, ...], obtain: str = "") -> Dataset:
    """A dataset in this layout. ``files`` that are neither documents nor queries are judgements."""
    judgements = tuple(file.path for file in files if file.path not in (CORPUS, QUERIES))
    reader = partial(read_beir, files=judgements)
    return Dataset(name, summary, "retrieval", reader, files, folder=folder, obtain=obtain)


def is_beir(folder: Path) -> bool:
    """Whether a folder has the layout."""
    return bool(beir_files(folder))


def beir_files(folder: Path) -> list[str]:
    """The files of a folder in this layout; none if it has another."""
    judgements = judgement_files(folder, ".tsv")
    there = judgements and all(plain_or_gz(folder / file).is_file() for file in (CORPUS, QUERIES))
    return [CORPUS, QUERIES, *judgements] if there else []


def own_beir(name: str, folder: Path) -> Dataset:
    """A user's own collection, named by its absolute path."""
    return collection(name, "a user's own", str(folder), tuple(map(SourceFile, beir_files(folder))))


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
    docs = read_texts(plain_or_gz(folder / CORPUS), titled=True)
    queries = read_texts(plain_or_gz(folder / QUERIES), titled=False)
    return read_judgements(docs, queries, folder, files, _rows)


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
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
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


def _rows(file: Path, part: str) -> Iterator[Row]:
    expected = f"{', '.join(_HEADER)} between tabs"
    for number, line in lines(file):
        cells = line.split("\t")
        if number == 1:
            if tuple(cells) != _HEADER:
                raise line_error("the header differs", file, number, line, expected)
            continue
        try:
            query, doc, grade = cells
            yield Row(query, doc, grade_of(re.sub(r"\.0*$", "", grade)), part, file, number)
        except ValueError:
            raise line_error(
                "the line holds no judgement", file, number, line, f"{expected}, the score an integer"
            ) from None
