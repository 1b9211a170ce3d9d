"""Questions over knowledge graphs as a kind of data. Imports no NumPy."""

from __future__ import annotations

from workloads.data.questions.knowledge_graph import is_questions, own_questions
from workloads.data.questions.types import KIND
from workloads.data.source import Kind

QUESTIONS = Kind(
    KIND,
    "a folder with questions.jsonl and a TSV of triples for each graph",
    own=((is_questions, own_questions),),
    check="workloads.data.questions.load:check",
    overlap="workloads.data.overlap:questions",
)
