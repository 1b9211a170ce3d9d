"""The candidates of questions over a graph, as in training, and the served model's inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from workloads.data.questions.load import load_questions
from workloads.data.questions.neighbourhoods import neighbourhoods
from workloads.vera.features import NONE, graph_pool
from workloads.vera.input_columns import input_columns
from workloads.vera.params import Params

READ = ("dataset", "eval_candidates", "eval_candidates_seed")
"""The parameters that say which triples a question has."""

Inputs: TypeAlias = Callable[[int], dict[str, Any]]


def graph_candidates(
    name: str, root: Path, queries: NDArray[np.int64], parameters: Mapping[str, Any], code_names: Collection[str]
) -> tuple[NDArray[np.int64], Inputs]:
    """The triples around the topic of each of Q questions, (Q, K), -1 after the end, and a function of the inputs.

    Args:
        name: dataset of questions.
        root: data root.
        queries: numbers of the questions, (Q,).
        parameters: of the model.
        code_names: the columns of codes that the model knows; those that this dataset has not are empty.

    Returns:
        Numbers of the triples' texts, and the columns of the inputs of a row of them.
    """
    params = Params(**{key: parameters[key] for key in READ if key in parameters})
    questions = load_questions(name, root)
    pool = graph_pool(questions, neighbourhoods(questions, params.eval_candidates, params.eval_candidates_seed))
    lengths = pool.lengths[queries]
    starts = pool.indptr[pool.list_of[queries]]
    docs = np.full((len(queries), int(lengths.max(initial=1))), -1, np.int64)
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist())):
        docs[row, :length] = pool.text[start : start + length]
    # The paths of another dataset may be shorter than those that the model knows.
    missing = dict.fromkeys(set(code_names) - {*pool.code_names}, NONE)
    return docs, lambda row: {**input_columns(pool, int(queries[row])), **missing}
