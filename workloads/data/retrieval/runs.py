"""Runs in TREC's form, ranked lists with the lines ``topic Q0 document rank score tag``, and judgements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.data.errors import DataError, line_error
from workloads.data.files import decimal, lines
from workloads.data.retrieval.bm25 import Candidates
from workloads.data.retrieval.types import Retrieval


def read_run(file: Path, data: Retrieval, depth: int, unknown: str = "refuse") -> Candidates:
    """A run as candidates: of each query the ``depth`` documents with the highest scores, ties by document number.

    As in trec_eval the score decides, not the rank. A query that the run does not name has no candidates.

    Args:
        unknown: ``refuse`` a run that names unknown topics or documents, or ``skip`` those lines.

    Raises:
        DataError: the file is missing, or a line is not that of a run, names an unknown text or repeats a document.
    """
    query_of, doc_of = (
        {name: number for number, name in enumerate(ids.to_pylist())} for ids in (data.query_ids, data.doc_ids)
    )
    listed: dict[int, dict[int, float]] = {}
    for number, line in _lines(file):
        try:
            topic, _, name, _, cell, *_ = line.split()
            score = decimal(cell)
        except ValueError:
            expected = "topic Q0 document rank score tag"
            raise line_error("the line is not that of a run", file, number, line, expected) from None
        query = query_of.get(topic)
        doc = doc_of.get(name)
        if query is None or doc is None:
            if unknown == "skip":
                continue
            got = f"topic {topic}" if query is None else f"document {name}"
            fix = "Correct the run, or set dataset_unknown=skip to leave such lines out"
            raise DataError("the run names a text that is not there", file=file, line=number, got=got, fix=fix)
        if not np.isfinite(score) or listed.setdefault(query, {}).setdefault(doc, score) != score:
            raise line_error("a score is not finite, or a document has two", file, number, line)
    ranked = Candidates(
        np.full((len(query_of), depth), -1, np.int32), np.full((len(query_of), depth), -np.inf, np.float32)
    )
    for query, scores in listed.items():
        best = sorted(scores, key=lambda doc: (-scores[doc], doc))[:depth]
        ranked.docs[query, : len(best)] = best
        ranked.scores[query, : len(best)] = [scores[doc] for doc in best]
    return ranked


def write_run(
    file: Path, data: Retrieval, queries: Sequence[int], docs: NDArray[Any], scores: NDArray[Any], tag: str
) -> None:
    """Write the lists of ``queries``: numbers of documents (Q, K), best first, -1 after the end, and their scores.

    Scores are written as float32, equal ones a last bit apart: trec_eval orders by score alone, ties by its own rule.

    Raises:
        DataError: an id has a space, which separates the columns of the form.
    """
    topics, names = (_plain_ids(ids, file) for ids in (data.query_ids, data.doc_ids))
    with file.open("w", encoding="utf-8") as stream:
        for query, row, values in zip(queries, docs.tolist(), scores.tolist()):
            last = np.float32(np.inf)
            for rank, (doc, score) in enumerate(zip(row, values), 1):
                if doc >= 0:
                    last = min(np.float32(score), np.nextafter(last, np.float32(-np.inf)))
                    stream.write(f"{topics[query]} Q0 {names[doc]} {rank} {float(last)!r} {tag}\n")


def write_qrels(file: Path, data: Retrieval, queries: Sequence[int]) -> None:
    """Write the judgements of ``queries``, with the lines ``topic 0 document grade``. Raises DataError as above."""
    topics, names = (_plain_ids(ids, file) for ids in (data.query_ids, data.doc_ids))
    with file.open("w", encoding="utf-8") as stream:
        for query in queries:
            for _, doc, grade in data.judgements[data.indptr[query] : data.indptr[query + 1]].tolist():
                stream.write(f"{topics[query]} 0 {names[doc]} {grade}\n")


def _plain_ids(ids: Any, file: Path) -> list[str]:
    names: list[str] = ids.to_pylist()
    if spaced := next((name for name in names if name.split() != [name]), None):
        raise DataError("an id has a space, which separates the columns of TREC's form", file=file, got=repr(spaced))
    return names


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    if not file.is_file():
        raise DataError(
            "the run is missing", file=file, fix="Set first_stage to the absolute path of a run in TREC's form"
        )
    try:
        yield from lines(file)
    except OSError as error:
        raise DataError("the run cannot be read", file=file, got=error.strerror or str(error)) from None
