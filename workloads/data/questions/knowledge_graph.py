"""Read questions over knowledge graphs: text, topic, and the triple with the answer.

PathQuestion (Zhou, Huang and Zhu, COLING 2018), and users' own questions in the same format: ``questions.jsonl`` with
one question per line, and a ``<kb>.tsv`` for each knowledge graph with one line ``subject relation object`` per triple,
separated by tabs. Files may be compressed, as ``<name>.gz``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from workloads.data.errors import DataError, line_error
from workloads.data.files import HALF_CHARACTER, is_encodable, lines, plain_or_gz
from workloads.data.questions.types import KIND, PARTS, Graph, GraphQuestions, Question
from workloads.data.source import Dataset, SourceFile

QUESTIONS, TABLE = "questions.jsonl", ".tsv"

_HOPS = range(1000)
_EXAMPLE = (
    '{"id": "q1", "kb": "family", "hops": 2, "question": "...", "topic_entity": "ann", '
    '"path": [["ann", "child", "bob"], ["bob", "born_in", "rome"]], "split": "train"}'
)


def is_questions(folder: Path) -> bool:
    """Whether a folder has the layout."""
    return plain_or_gz(folder / QUESTIONS).is_file() and bool(_tables(folder))


def own_questions(name: str, folder: Path) -> Dataset:
    """A user's own dataset, named by its absolute path."""
    files = (SourceFile(QUESTIONS), *(SourceFile(table) for table in _tables(folder)))
    return _of_files(name, "a user's own", str(folder), files)


def read_questions(folder: Path, tables: tuple[str, ...]) -> GraphQuestions:
    """Read questions and graphs. Repeated triples of a graph count once.

    Raises:
        DataError: a line that is not a question or triple, an unknown graph or part, a repeated id, or a topic or
            answer that is not in the graph. It names file and line.
    """
    graphs = {table.removesuffix(TABLE): list(_triples(plain_or_gz(folder / table))) for table in tables}
    file = plain_or_gz(folder / QUESTIONS)
    return numbered(list(_questions(file, graphs)), graphs, file)


def numbered(questions: Sequence[Question], graphs: Mapping[str, Graph], file: Path | None = None) -> GraphQuestions:
    """Number questions, entities and relations.

    Raises:
        DataError: a topic or answer is not in the graph, an id is repeated, or there is no question.
    """
    import numpy as np

    entities: dict[tuple[str, str], int] = {}
    relations: dict[str, int] = {}
    triples: dict[tuple[int, int, int], int] = {}
    bounds = [0]
    for kb, graph in graphs.items():
        for subject, relation, target in graph:
            ends = [entities.setdefault((kb, end), len(entities)) for end in (subject, target)]
            triples.setdefault((ends[0], relations.setdefault(relation, len(relations)), ends[1]), len(triples))
        bounds.append(len(triples))
    types = dict[str, int]()
    families = dict[Any, int]()
    ids = dict[str, int]()
    rows: list[tuple[int, ...]] = []
    for question in questions:
        where = {"file": file, "line": question.line} if file is not None else {}
        subject, relation, target = question.path[-1]
        fact = (entities.get((question.kb, subject)), relations.get(relation), entities.get((question.kb, target)))
        answer, topic = triples.get(fact), entities.get((question.kb, question.topic))  # type: ignore[arg-type]
        if topic is None or answer is None:
            what = f"the topic {question.topic!r}" if topic is None else f"the answer {list(question.path[-1])}"
            raise DataError(f"{what} is not in the graph {question.kb}", **where)  # type: ignore[arg-type]
        if ids.setdefault(question.id, len(ids)) != len(rows):
            raise DataError("an id occurs twice", got=repr(question.id), **where)  # type: ignore[arg-type]
        type_number = types.setdefault(question.type, len(types))
        family = families.setdefault((question.kb, question.topic, question.path), len(families))
        rows.append((topic, question.hops, answer, PARTS.index(question.part), type_number, family))
    if not rows:
        raise DataError("there is no question", file=file)
    topic_column, hops, answers, part, type_column, family_column = np.array(rows, np.int64).T
    return GraphQuestions(
        ids=list(ids),
        texts=[question.text for question in questions],
        entities=[name for _, name in entities],
        relations=list(relations),
        triples=np.array(list(triples), np.int32).reshape(-1, 3),
        graphs=np.array(bounds, np.int64),
        topic=topic_column,
        hops=hops,
        answer=answers,
        part=part.astype(np.int8),
        type=type_column,
        types=list(types),
        family=family_column,
    )


def _questions(file: Path, graphs: Mapping[str, Graph]) -> Iterator[Question]:
    for number, line in lines(file):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not (isinstance(row["question"], str) and float(row["hops"]) in _HOPS):
                raise TypeError
            question = Question(
                id=_name(row["id"]),
                text=row["question"],
                kb=_name(row["kb"]),
                hops=int(row["hops"]),
                topic=_name(row["topic_entity"]),
                path=tuple((_name(s), _name(r), _name(o)) for s, r, o in row["path"]),
                part=_name(row["split"]),
                type=_name(row.get("set", row["kb"])),
                line=number,
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
            raise line_error("the line holds no question", file, number, line, _EXAMPLE) from None
        names = (question.id, question.topic, question.kb, question.type, *chain.from_iterable(question.path))
        if not is_encodable(question.text + "".join(names)):
            raise line_error(HALF_CHARACTER, file, number, line)
        if not 1 <= len(question.path) <= question.hops:
            got = f"hops={question.hops} and a path of {len(question.path)}"
            raise DataError(
                "the path has no triple, or more than hops", file=file, line=number, got=got, expected=_EXAMPLE
            )
        for name, value, allowed in (("graph", question.kb, graphs), ("split", question.part, PARTS)):
            if value not in allowed:
                expected = f"one of {', '.join(allowed)}"
                raise DataError(f"unknown {name}", file=file, line=number, got=repr(value), expected=expected)
        yield question


def _name(value: Any) -> str:
    """A name, which may be written as an integer. Raises TypeError."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise TypeError(value)
    return str(value)


def _triples(file: Path) -> Iterator[tuple[str, str, str]]:
    for number, line in lines(file):
        cells = line.split("\t")
        if len(cells) != 3 or not all(cells):
            raise line_error(
                "the line holds no triple", file, number, line, "subject, relation and object between tabs"
            )
        yield cells[0], cells[1], cells[2]


def _tables(folder: Path) -> list[str]:
    """File names of the graphs, without ``.gz``."""
    if not folder.is_dir():
        return []
    names = (path.name.removesuffix(".gz") for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
    return sorted({name for name in names if name.endswith(TABLE)})


def _of_files(name: str, summary: str, folder: str, files: tuple[SourceFile, ...], obtain: str = "") -> Dataset:
    tables = tuple(file.path for file in files if file.path != QUESTIONS)
    return Dataset(name, summary, KIND, partial(read_questions, tables=tables), files, folder=folder, obtain=obtain)


PATHQUESTION = _of_files(
    "pathquestion",
    "questions of 2 and 3 hops over parts of Freebase, 9,731 questions, 4 graphs of 13,894 triples",
    "pathquestion",
    (
        SourceFile(QUESTIONS, 4_327_475, "205bbea6f1dcdb69e3e2678efdb0581ef548d6f858a8545e069fec8cbf0a5f36"),
        SourceFile("2H-kb.tsv", 55_326, "1e8d8e7f950d7d0fe949b377b065b569c5b84d87273ec1600331f5ba985145d7"),
        SourceFile("3H-kb.tsv", 139_318, "27eb687c67086eb684a43f524cc9560f76f52161e1a038b6be45ff2a24c50374"),
        SourceFile("PQL2-KB.tsv", 236_564, "33962cedf418d2e02382a88496b0fd4b3f567ce07418e6cbb7a7dc830a0fcb7a"),
        SourceFile("PQL3-KB.tsv", 313_735, "b176494c0064a87fdca16c79e1e210a70d22f5ea31d11bdf942d11c65065b775"),
    ),
    obtain="Bring PathQuestion (Zhou et al., COLING 2018) into the layout that workloads/vera/README.md describes",
)
