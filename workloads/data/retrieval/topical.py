"""Collections of several topics, or of one: a folder for each, in the format of BEIR, LoTTE or Multi-CPR.

Document ``17`` of topic ``cran`` gets the id ``cran/17`` in the whole collection; the same for queries. LoTTE
(Santhanam et al., NAACL 2022) has ``collection.tsv``, ``questions.search.tsv`` and ``qas.search.jsonl``, or ``forum``
for ``search``. Multi-CPR (Long et al., SIGIR 2022) has ``corpus.tsv``, ``train.query.txt`` and ``qrels.train.tsv``, and
the same for ``dev``, which is its test part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from workloads.data.errors import DataError, UnclearLayout, line_error
from workloads.data.files import is_there, lines, plain_or_gz
from workloads.data.retrieval.beir import CORPUS, JUDGEMENTS, QUERIES, beir_files, read_beir
from workloads.data.retrieval.judged import Row, grade_of, judged
from workloads.data.retrieval.trec import is_trec
from workloads.data.retrieval.types import Retrieval
from workloads.data.source import Dataset, SourceFile

LOTTE_DOCS, CPR_DOCS = "collection.tsv", "corpus.tsv"
LOTTE_KINDS = ("search", "forum")
CPR_PARTS = {"train": "train", "dev": "test"}


@dataclass(frozen=True)
class Form:
    """A format of collections: the file of documents, the files to read of a folder, and the reader.

    ``files`` is empty if the folder has another format.
    """

    docs: str
    files: Callable[[Path], list[str]]
    read: Callable[[Path, tuple[str, ...]], Retrieval]


def is_topical(folder: Path) -> bool:
    """Whether a folder has a format that only this module reads, or contains folders in any of the formats."""
    return bool(_topics(folder))


def own_topical(name: str, folder: Path) -> Dataset:
    """A user's own collection of topics, named by its absolute path."""
    return topical(name, "a user's own", str(folder), _topics(folder))


def topical(name: str, summary: str, folder: str, topics: Mapping[str, tuple[str, ...]], obtain: str = "") -> Dataset:
    """A dataset of topics: the folder of each ("" for the dataset's own) and its files."""
    files = tuple(SourceFile(f"{topic}/{file}".lstrip("/")) for topic, names in topics.items() for file in names)
    reader = partial(read_topics, topics=topics)
    return Dataset(name, summary, "retrieval", reader, files, folder=folder, obtain=obtain)


def read_topics(folder: Path, topics: Mapping[str, tuple[str, ...]]) -> Retrieval:
    """Read and merge the topics. All ids get the topic's name as prefix.

    Raises:
        DataError: as the readers of the formats.
    """
    parts = {}
    for topic, files in topics.items():
        form = next(form for form in FORMS if form.docs in files)
        parts[topic] = form.read(folder / topic, files)
    return parts[""] if "" in parts else merge_collections(parts)


def merge_collections(parts: Mapping[str, Retrieval]) -> Retrieval:
    """Merge collections in order, with ids like ``topic/id``."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    columns: dict[str, list[Any]] = {name: [] for name in ("doc_ids", "docs", "query_ids", "queries")}
    judgements = []
    numbers = np.zeros(2, np.int32)
    for topic, part in parts.items():
        for name, arrays in columns.items():
            column = getattr(part, name)
            arrays.append(
                pc.binary_join_element_wise(pa.scalar(topic, column.type), column, pa.scalar("/", column.type))
                if name.endswith("_ids")
                else column
            )
        judgements.append(part.judgements + np.array([numbers[1], numbers[0], 0], np.int32))
        numbers = numbers + np.array([len(part.docs), len(part.queries)], np.int32)
    joined = {name: pa.concat_arrays([a.cast(pa.large_string()) for a in arrays]) for name, arrays in columns.items()}
    return Retrieval(
        **joined,
        judgements=np.concatenate(judgements),
        parts=np.concatenate([part.parts for part in parts.values()]),
        unknown=[f"{topic}: {name}" for topic, part in parts.items() for name in part.unknown],
        n_unknown=sum(part.n_unknown for part in parts.values()),
    )


def read_lotte(folder: Path, files: tuple[str, ...]) -> Retrieval:
    """Read a folder of LoTTE. All its questions are in one part.

    Raises:
        DataError: a line has another format.
    """
    docs = _pairs(plain_or_gz(folder / LOTTE_DOCS))
    queries: dict[str, str] = {}
    rows: list[Row] = []
    for kind in (kind for kind in LOTTE_KINDS if f"qas.{kind}.jsonl" in files):
        queries |= {
            f"{kind}-{name}": text for name, text in _pairs(plain_or_gz(folder / f"questions.{kind}.tsv")).items()
        }
        file = plain_or_gz(folder / f"qas.{kind}.jsonl")
        for number, line in lines(file):
            try:
                record = json.loads(line)
                if not isinstance(record["answer_pids"], list):
                    raise TypeError
                rows += [Row(f"{kind}-{record['qid']}", str(pid), 1, "", file, number) for pid in record["answer_pids"]]
            except (ValueError, KeyError, TypeError, RecursionError):
                expected = 'an object like {"qid": 0, "answer_pids": [3]}'
                raise line_error("the line holds no answers", file, number, line, expected) from None
    return judged((list(docs), list(docs.values())), (list(queries), list(queries.values())), rows, folder)


def read_cpr(folder: Path, files: tuple[str, ...]) -> Retrieval:
    """Read a domain of Multi-CPR; ``dev`` is the test part.

    Raises:
        DataError: a line has another format, or the test part has no relevant document.
    """
    docs = _pairs(plain_or_gz(folder / CPR_DOCS))
    queries: dict[str, str] = {}
    rows: list[Row] = []
    for part, ours in CPR_PARTS.items():
        if f"qrels.{part}.tsv" not in files:
            continue
        queries |= {f"{part}-{name}": text for name, text in _pairs(plain_or_gz(folder / f"{part}.query.txt")).items()}
        file = plain_or_gz(folder / f"qrels.{part}.tsv")
        for number, line in lines(file):
            try:
                query, _, doc, grade = line.split()
                rows.append(Row(f"{part}-{query}", doc, grade_of(grade), ours, file, number))
            except ValueError:
                expected = "query, 0, document, grade"
                raise line_error("the line holds no judgement", file, number, line, expected) from None
    test = plain_or_gz(folder / "qrels.dev.tsv") if "qrels.dev.tsv" in files else None
    return judged((list(docs), list(docs.values())), (list(queries), list(queries.values())), rows, folder, test)


def _topics(folder: Path) -> dict[str, tuple[str, ...]]:
    """Topics of a folder by name, with their files; empty if it is not such a collection."""
    if not folder.is_dir() or beir_files(folder) or is_trec(folder):
        return {}
    if alone := _files(folder):
        return {"": alone}
    collections = {sub.name: _files(sub) for sub in sorted(folder.iterdir()) if sub.is_dir()}
    topics = {name: files for name, files in collections.items() if files}
    for name in collections.keys() - topics.keys() if topics else ():
        if there := [file for file in _FILES if is_there(folder / name / file)]:
            raise UnclearLayout(
                "the topic is not complete", file=folder / name, got=", ".join(there),
                expected="the files of BEIR, LoTTE or Multi-CPR", fix="Complete it, or move it to another folder",
            )  # fmt: skip
    return topics


def _files(folder: Path) -> tuple[str, ...]:
    return next((tuple(files) for form in FORMS if (files := form.files(folder))), ())


def _beir(folder: Path, files: tuple[str, ...]) -> Retrieval:
    return read_beir(folder, tuple(file for file in files if file not in (CORPUS, QUERIES)))


def _complete(folder: Path, docs: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The document file and all pairs of files; empty if there is none.

    Raises:
        UnclearLayout: another pair has one of its files.
    """
    there = [[file for file in pair if is_there(folder / file)] for pair in pairs]
    if not is_there(folder / docs) or not any(len(files) == 2 for files in there):
        return []
    for pair, files in zip(pairs, there):
        if len(files) == 1:
            (missing,) = set(pair) - set(files)
            fix = f"Add it, or move {files[0]} to another folder"
            raise UnclearLayout("a file is missing", file=folder / missing, got=f"{files[0]} without it", fix=fix)
    return [docs, *chain(*there)]


def _pairs(file: Path) -> dict[str, str]:
    """Ids and texts of a file with two tab-separated columns."""
    documents: dict[str, str] = {}
    for number, line in lines(file):
        name, tab, text = line.partition("\t")
        if not tab:
            raise line_error("the line holds no text", file, number, line, "an id and a text between a tab")
        if name in documents:
            raise DataError("an id occurs twice", file=file, line=number, got=repr(name))
        documents[name] = text
    if not documents:
        raise DataError("the file is empty", file=file, got="no line", expected="an id and a text a line")
    return documents


_LOTTE_PAIRS = [(f"questions.{kind}.tsv", f"qas.{kind}.jsonl") for kind in LOTTE_KINDS]
_CPR_PAIRS = [(f"{part}.query.txt", f"qrels.{part}.tsv") for part in CPR_PARTS]

FORMS = (
    Form(CORPUS, beir_files, _beir),
    Form(LOTTE_DOCS, partial(_complete, docs=LOTTE_DOCS, pairs=_LOTTE_PAIRS), read_lotte),
    Form(CPR_DOCS, partial(_complete, docs=CPR_DOCS, pairs=_CPR_PAIRS), read_cpr),
)

_FILES = (CORPUS, QUERIES, LOTTE_DOCS, CPR_DOCS, *(file for pair in (*_LOTTE_PAIRS, *_CPR_PAIRS) for file in pair))

_CLASSIC = ("cran", "cisi", "cacm", "med", "time")

CLASSIC_IR = topical(
    "classic-ir",
    "Cranfield, CISI, CACM, MEDLINE and TIME as five topics of one collection, 7,520 documents, 465 judged queries",
    "classic-ir",
    dict.fromkeys(_CLASSIC, (CORPUS, QUERIES, JUDGEMENTS)),
    obtain="Bring Glasgow's IR test collections into BEIR's form, without a split",
)
