"""Questions over a graph as a retrieval collection, whose documents are the triples."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from workloads.data.questions.types import PARTS as OWN_PARTS
from workloads.data.questions.types import GraphQuestions
from workloads.data.retrieval.types import PARTS, Retrieval


def as_collection(data: GraphQuestions) -> Retrieval:
    """The collection: a document a triple, with the id ``number:subject|relation|object``, spaces as underscores.

    The answer of a question is its only relevant document.
    """
    names = [(data.entities[s], data.relations[r], data.entities[o]) for s, r, o in data.triples.tolist()]
    ids = ["_".join(f"{number}:{'|'.join(triple)}".split()) for number, triple in enumerate(names)]
    count = len(data)
    parts = np.array([PARTS.index(part) for part in OWN_PARTS], np.int8)[data.part]
    return Retrieval(
        doc_ids=pa.array(ids, pa.large_string()),
        docs=pa.array([" ".join(triple) for triple in names], pa.large_string()),
        query_ids=pa.array(list(data.ids), pa.large_string()),
        queries=pa.array(list(data.texts), pa.large_string()),
        judgements=np.column_stack([np.arange(count), data.answer, np.ones(count)]).astype(np.int32),
        parts=parts,
    )
