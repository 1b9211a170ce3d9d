"""Questions over knowledge graphs as a kind of data. Imports no NumPy."""

from __future__ import annotations

from pathlib import Path

from workloads.data.questions.knowledge_graph import is_questions, own_questions
from workloads.data.questions.types import KIND
from workloads.data.source import Dataset, Kind, ReadOptions


def check(dataset: Dataset, root: Path, options: ReadOptions) -> None:
    """Read questions that have no checksums."""
    if dataset.verified:
        return
    from workloads.data.questions.load import load_questions

    load_questions(dataset.name, root)


QUESTIONS = Kind(
    KIND,
    "a folder with questions.jsonl and a TSV of triples for each graph",
    own=((is_questions, own_questions),),
    check=check,
)
