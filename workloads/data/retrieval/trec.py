"""Collections with topics and judgements in TREC's form.

A collection is a folder with ``corpus.jsonl`` as in BEIR, ``topics.tsv`` (``id TAB text``) or ``topics.trec``
(``<top>`` with ``<num>`` and ``<title>``), and ``qrels.trec`` or ``qrels/{train,dev,test}.trec``, with the lines
``topic iteration document grade``. Files may be compressed, as ``<name>.gz``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from workloads.data.errors import DataError, UnclearLayout, line_error
from workloads.data.files import lines, plain_or_gz
from workloads.data.retrieval.beir import CORPUS, read_texts
from workloads.data.retrieval.judged import Row, grade_of, judgement_files, read_judgements
from workloads.data.retrieval.types import Retrieval
from workloads.data.source import Dataset, SourceFile

TOPICS = ("topics.tsv", "topics.trec")

_TOPIC = "an id, a tab and a text, or <top> with <num> and <title>"
_NUMBER = re.compile(r"<num>\s*(?:Number:)?\s*(\S+?)\s*(?=<|$)", re.IGNORECASE | re.MULTILINE)
_TITLE = re.compile(
    r"<title>\s*(?:Topic:)?\s*(.*?)(?=\s*</?(?:desc|narr|num|title|top)\b|\s*\Z)", re.IGNORECASE | re.DOTALL
)


def is_trec(folder: Path) -> bool:
    """Whether a folder has the layout."""
    return plain_or_gz(folder / CORPUS).is_file() and bool(_topics(folder)) and bool(judgement_files(folder, ".trec"))


def own_trec(name: str, folder: Path) -> Dataset:
    """A user's own collection, named by its absolute path.

    Raises:
        UnclearLayout: there are topics in both forms.
    """
    topics = _topics(folder)
    if len(topics) > 1:
        raise UnclearLayout(
            "the topics are in two files", file=folder, got=" and ".join(topics), fix="Keep one of them"
        )
    judgements = judgement_files(folder, ".trec")
    reader = partial(read_trec, topics=topics[0], files=tuple(judgements))
    files = tuple(SourceFile(file) for file in (CORPUS, topics[0], *judgements))
    return Dataset(name, "a user's own", "retrieval", reader, files, folder=str(folder))


def read_trec(folder: Path, topics: str, files: tuple[str, ...]) -> Retrieval:
    """Read a collection; judgements are treated as those of :func:`~workloads.data.retrieval.beir.read_beir`.

    Raises:
        DataError: a line that is not a document, topic or judgement, or as for a collection in BEIR's layout.
    """
    docs = read_texts(plain_or_gz(folder / CORPUS), titled=True)
    file = plain_or_gz(folder / topics)
    queries = _table(file) if topics == TOPICS[0] else _marked(file)
    if not queries[0]:
        raise DataError("the file holds no topic", file=file, expected=_TOPIC)
    return read_judgements(docs, queries, folder, files, _rows)


def _topics(folder: Path) -> list[str]:
    return [file for file in TOPICS if plain_or_gz(folder / file).is_file()]


def _table(file: Path) -> tuple[list[str], list[str]]:
    texts: dict[str, str] = {}
    for number, line in lines(file):
        name, tab, text = line.partition("\t")
        _add(texts, name.strip() if tab else "", text, file, number)
    return list(texts), list(texts.values())


def _marked(file: Path) -> tuple[list[str], list[str]]:
    rows = dict(lines(file))
    content = "\n".join(rows.get(number, "") for number in range(1, max(rows, default=0) + 1))
    texts: dict[str, str] = {}
    before, *blocks = re.split(r"<top>", content, flags=re.IGNORECASE)
    number = before.count("\n") + 1
    for block in blocks:
        name = _NUMBER.search(block)
        title = _TITLE.search(block)
        _add(texts, name.group(1) if name else "", " ".join(title.group(1).split()) if title else "", file, number)
        number += block.count("\n")
    return list(texts), list(texts.values())


def _add(texts: dict[str, str], name: str, text: str, file: Path, line: int) -> None:
    if not name or not text.strip():
        raise line_error("the topic has no id or no text", file, line, f"{name} {text}", _TOPIC)
    if name in texts:
        raise DataError("an id occurs twice", file=file, line=line, got=repr(name))
    texts[name] = text.strip()


def _rows(file: Path, part: str) -> Iterator[Row]:
    for number, line in lines(file):
        try:
            topic, _, doc, grade = line.split()
            yield Row(topic, doc, grade_of(grade), part, file, number)
        except ValueError:
            expected = "topic iteration document grade"
            raise line_error("the line holds no judgement", file, number, line, expected) from None
