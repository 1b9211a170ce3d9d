"""What a session is trained on and what is remembered of it, by the names of the parameters ``new`` and ``memory``.

Documents come as numbers in blocks (Q, n), -1 for filling, a row a training query; vectors (Q, n, d) beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.lifelong import baselines
from workloads.lifelong.params import Params
from workloads.lifelong.selection import gather_docs, isd, new_scores, top_positions
from workloads.seeding import derive

_AT_ONCE = 256  # queries whose blocks are looked at together

VectorLookup = Callable[[NDArray[np.int64]], torch.Tensor]
"""The vectors of documents by number, zero for -1: (Q, n) -> (Q, n, d), on the device."""


@dataclass(frozen=True, eq=False)
class QueryVectors:
    """The training queries by the model as it is: ``query`` and ``positive``, (Q, d) each, on the device; ``scale`` is
    what a cosine is multiplied by in a score."""

    query: torch.Tensor
    positive: torch.Tensor
    scale: float

    def rows(self) -> Iterator[slice]:
        """Some queries at a time."""
        for first in range(0, len(self.query), _AT_ONCE):
            yield slice(first, first + _AT_ONCE)


def draw_new(params: Params, docs: NDArray[np.int64], seed: int, session: int, *, first: bool = False) -> torch.Tensor:
    """n_1 of a session's candidates for each query without a look at them, (Q, n_new) int64 on the host.

    Args:
        params: how many.
        docs: candidates as BM25 orders them, (Q, C).
        seed: the run's.
        session: their session.
        first: BM25's first; otherwise at random.
    """
    numbers = torch.from_numpy(docs)
    if first:
        return numbers[:, : params.n_new]
    return gather_docs(numbers, top_positions(_uniform(docs, derive(seed, "new", session)), params.n_new))


def choose_new(
    params: Params, docs: NDArray[np.int64], lookup: VectorLookup, query_vectors: QueryVectors
) -> torch.Tensor:
    """n_1 of a session's candidates for each query by alpha PSS + (1 - alpha) ISD, (Q, n_new) int64 on the host.

    Args:
        params: alpha, and how many.
        docs: candidates as BM25 orders them, (Q, C).
        look: their vectors.
        asked: the queries.
    """
    assert params.alpha is not None
    numbers, alpha = torch.from_numpy(docs), params.alpha

    def scores(part: slice) -> torch.Tensor:
        there = (numbers[part] >= 0).to(query_vectors.query.device)
        positive, query = query_vectors.positive[part], query_vectors.query[part]
        return new_scores(lookup(docs[part]), there, positive, query, alpha, bool(params.standardise))

    return _best(numbers, params.n_new, query_vectors, scores)


def draw_memory(params: Params, memory: torch.Tensor, seed: int, session: int) -> torch.Tensor:
    """n_2 of each query's memory at random (ER), (Q, capacity) -> (Q, n_memory), for the session that begins."""
    assert params.n_memory is not None
    return gather_docs(
        memory, top_positions(_uniform(memory.numpy(), derive(seed, "replay", session)), params.n_memory)
    )


def choose_memory(
    params: Params, memory: torch.Tensor, new: torch.Tensor, lookup: VectorLookup, query_vectors: QueryVectors
) -> torch.Tensor:
    """n_2 of each query's memory, (Q, n_memory): the most unlike the new ones.

    Args:
        params: how many.
        memory: (Q, capacity).
        new: what was chosen of the session, (Q, n_new).
        look: the vectors of both.
        asked: the queries.
    """
    assert params.n_memory is not None
    return _best(
        memory,
        params.n_memory,
        query_vectors,
        lambda part: _isd(memory[part], new[part], lookup, query_vectors.query[part]),
    )


def update_memory(
    params: Params,
    memory: torch.Tensor,
    new: torch.Tensor,
    lookup: VectorLookup,
    query_vectors: QueryVectors,
    seed: int,
) -> torch.Tensor:
    """The memory after a session, (Q, capacity): of what was new and what it held before.

    L2R keeps the largest ISD over the pool of both, new ones first (E-L7); ER and MIR a uniform sample of all that
    ever came; GSS and OCS what their papers prefer.
    """
    assert params.capacity is not None
    if params.memory in ("random", "mir"):
        pool = torch.cat([memory, new], 1)
        return gather_docs(pool, top_positions(_uniform(pool.numpy(), derive(seed, "reservoir")), params.capacity))
    found = []
    for part in query_vectors.rows():
        old, came = memory[part], new[part]
        pool = torch.cat([came, old] if params.memory == "isd" else [old, came], 1)
        if params.memory == "isd":
            scores = _isd(pool, pool, lookup, query_vectors.query[part])
        else:
            gradients = baselines.pair_gradients(
                lookup(pool.numpy()), query_vectors.positive[part], query_vectors.query[part] * query_vectors.scale
            )
            there = (pool >= 0).to(gradients.device)
            if params.memory == "gss":
                scores = baselines.gss(gradients, there)
            else:
                held = old.shape[1]
                scores = baselines.ocs(gradients, there, gradients[:, :held], there[:, :held])
        found.append(gather_docs(pool, top_positions(scores, params.capacity).cpu()))
    return torch.cat(found)


def _best(
    docs: torch.Tensor, count: int, query_vectors: QueryVectors, scores: Callable[[slice], torch.Tensor]
) -> torch.Tensor:
    """The ``count`` documents of the highest score of each query, (Q, count); scores are of some rows at a time."""
    return torch.cat(
        [gather_docs(docs[part], top_positions(scores(part), count).cpu()) for part in query_vectors.rows()]
    )


def _isd(docs: torch.Tensor, among: torch.Tensor, lookup: VectorLookup, query: torch.Tensor) -> torch.Tensor:
    there, set_there = ((side >= 0).to(query.device) for side in (docs, among))
    return isd(lookup(docs.numpy()), there, lookup(among.numpy()), set_there, query)


def _uniform(docs: NDArray[np.int64], seed: int) -> torch.Tensor:
    return torch.from_numpy(baselines.uniform(docs, np.arange(len(docs)), seed))
