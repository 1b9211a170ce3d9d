"""Choice of a session's negatives and of the memory, by the parameters ``new`` and ``memory``.

Documents are indices in blocks (Q, n), one row per training query, padded with -1; their vectors are (Q, n, d).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from workloads.lifelong import baselines
from workloads.lifelong.params import Params
from workloads.lifelong.selection import gather_docs, isd, new_scores, top_positions
from workloads.seeding import derive
from workloads.transfer import to_device

_AT_ONCE = 256  # queries whose blocks are processed together
_DISTANCES = 2**26  # between the documents of these queries: 270 MB

VectorLookup = Callable[[NDArray[np.int64]], torch.Tensor]
"""A function from documents to their vectors, zero for -1: (Q, n) -> (Q, n, d), on the device."""


@dataclass(frozen=True, eq=False)
class QueryVectors:
    """Vectors of the training queries by the current model, on the device.

    ``query`` and ``positive``, (Q, d) each. ``scale``: a score is the cosine times this.
    """

    query: torch.Tensor
    positive: torch.Tensor
    scale: float

    def rows(self, docs: int) -> Iterator[slice]:
        """Slices of the queries, each with that many documents, that are small enough to be processed at once."""
        at_once = min(_AT_ONCE, max(1, _DISTANCES // max(1, docs) ** 2))
        for first in range(0, len(self.query), at_once):
            yield slice(first, first + at_once)


def draw_new(params: Params, docs: NDArray[np.int64], seed: int, session: int, *, first: bool = False) -> torch.Tensor:
    """Choose ``n_new`` of a session's candidates for each query without their vectors, (Q, n_new) int64, on the host.

    Args:
        params: their ``n_new`` is used.
        docs: candidates in BM25's order, (Q, C).
        seed: seed of the run.
        session: the session of the candidates.
        first: take BM25's first candidates; otherwise choose at random.
    """
    numbers = torch.from_numpy(docs)
    if first:
        return numbers[:, : params.n_new]
    return gather_docs(numbers, top_positions(_uniform(docs, derive(seed, "new", session)), params.n_new))


def choose_new(
    params: Params, docs: NDArray[np.int64], lookup: VectorLookup, query_vectors: QueryVectors
) -> torch.Tensor:
    """Choose ``n_new`` of a session's candidates for each query by alpha PSS + (1 - alpha) ISD.

    Args:
        params: their ``alpha``, ``n_new`` and ``standardise`` are used.
        docs: candidates in BM25's order, (Q, C).
        lookup: gives the candidates' vectors.
        query_vectors: vectors of the queries.

    Returns:
        (Q, n_new) int64, on the host.
    """
    assert params.alpha is not None
    numbers = torch.from_numpy(docs)
    alpha = params.alpha

    def scores(part: slice) -> torch.Tensor:
        mask = (numbers[part] >= 0).to(query_vectors.query.device)
        positive = query_vectors.positive[part]
        query = query_vectors.query[part]
        whole = params.diversity == "whole"
        return new_scores(lookup(docs[part]), mask, positive, query, alpha, bool(params.standardise), whole)

    return _best(numbers, params.n_new, query_vectors, scores)


def draw_memory(params: Params, memory: torch.Tensor, seed: int, session: int) -> torch.Tensor:
    """Choose ``n_memory`` documents of each query's memory at random (ER). (Q, capacity) -> (Q, n_memory)."""
    assert params.n_memory is not None
    return gather_docs(
        memory, top_positions(_uniform(memory.numpy(), derive(seed, "replay", session)), params.n_memory)
    )


def choose_memory(
    params: Params, memory: torch.Tensor, new: torch.Tensor, lookup: VectorLookup, query_vectors: QueryVectors
) -> torch.Tensor:
    """Choose the ``n_memory`` documents of each query's memory that differ most from the new ones, (Q, n_memory).

    Args:
        params: their ``n_memory`` is used.
        memory: (Q, capacity).
        new: the negatives chosen for the session, (Q, n_new).
        lookup: gives the vectors of both.
        query_vectors: vectors of the queries.
    """
    assert params.n_memory is not None
    whole = params.diversity == "whole"
    return _best(
        memory,
        params.n_memory,
        query_vectors,
        lambda part: _isd(memory[part], new[part], lookup, query_vectors.query[part], whole),
    )


def choose_interfered(
    params: Params,
    memory: torch.Tensor,
    module: nn.Module,
    vectors: Callable[[], tuple[VectorLookup, QueryVectors]],
    backward: Callable[[], None],
) -> torch.Tensor:
    """Choose the ``n_memory`` documents of each query's memory whose loss a virtual step raises most, (Q, n_memory).

    MIR; see :func:`~workloads.lifelong.baselines.virtual_step`.

    Args:
        params: their ``n_memory`` and ``lr`` are used.
        memory: (Q, capacity).
        module: the model, which does not change.
        vectors: gives the memory's vectors and those of the queries, by the current model.
        backward: accumulates the gradients of a step on the new documents.
    """
    assert params.n_memory is not None
    docs = memory.numpy()

    def losses() -> torch.Tensor:
        lookup, queries = vectors()
        parts = []
        for part in queries.rows(docs.shape[1]):
            query = queries.query[part] * queries.scale
            parts.append(baselines.pair_losses(lookup(docs[part]), queries.positive[part], query))
        return torch.cat(parts)

    before, after = baselines.virtual_step(module, losses, backward, params.lr)
    scores = baselines.mir(before, after, to_device(memory >= 0, before.device))
    return gather_docs(memory, top_positions(scores, params.n_memory).cpu())


def update_memory(
    params: Params,
    memory: torch.Tensor,
    new: torch.Tensor,
    lookup: VectorLookup,
    query_vectors: QueryVectors,
    seed: int,
) -> torch.Tensor:
    """The memory after a session, (Q, capacity), chosen from its previous documents and the session's new ones.

    L2R keeps the documents with the largest ISD in this pool, new ones first in ties (E-L7). ER and MIR keep a uniform
    sample of all documents so far. GSS and OCS use the scores of their papers.
    """
    assert params.capacity is not None
    if params.memory in ("random", "mir"):
        pool = torch.cat([memory, new], 1)
        return gather_docs(pool, top_positions(_uniform(pool.numpy(), derive(seed, "reservoir")), params.capacity))
    chosen = []
    for part in query_vectors.rows(memory.shape[1] + new.shape[1]):
        old = memory[part]
        added = new[part]
        pool = torch.cat([added, old] if params.memory == "isd" else [old, added], 1)
        if params.memory == "isd":
            scores = _isd(pool, pool, lookup, query_vectors.query[part], params.diversity == "whole")
        else:
            gradients = baselines.pair_gradients(
                lookup(pool.numpy()), query_vectors.positive[part], query_vectors.query[part] * query_vectors.scale
            )
            mask = (pool >= 0).to(gradients.device)
            if params.memory == "gss":
                scores = baselines.gss(gradients, mask)
            else:
                size = old.shape[1]
                scores = baselines.ocs(gradients, mask, gradients[:, :size], mask[:, :size])
        chosen.append(gather_docs(pool, top_positions(scores, params.capacity).cpu()))
    return torch.cat(chosen)


def _best(
    docs: torch.Tensor, count: int, query_vectors: QueryVectors, scores: Callable[[slice], torch.Tensor]
) -> torch.Tensor:
    """The ``count`` documents with the highest scores of each query, (Q, count). ``scores`` takes a slice of rows."""
    parts = query_vectors.rows(docs.shape[1])
    return torch.cat([gather_docs(docs[part], top_positions(scores(part), count).cpu()) for part in parts])


def _isd(
    docs: torch.Tensor, among: torch.Tensor, lookup: VectorLookup, query: torch.Tensor, whole: bool
) -> torch.Tensor:
    docs_mask, among_mask = ((side >= 0).to(query.device) for side in (docs, among))
    return isd(lookup(docs.numpy()), docs_mask, lookup(among.numpy()), among_mask, query, whole)


def _uniform(docs: NDArray[np.int64], seed: int) -> torch.Tensor:
    return torch.from_numpy(baselines.uniform(docs, np.arange(len(docs)), seed))
