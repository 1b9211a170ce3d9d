"""Scores and evidence of any number of queries, without gradients, and cached outputs of a frozen backbone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.contract import Runtime
from workloads.distributed import reduce_sum
from workloads.encoders.tokens import spans
from workloads.seeding import derive
from workloads.transfer import to_device
from workloads.vera.confidence import Ranked, shares
from workloads.vera.dataset import VeraData
from workloads.vera.dropout_masks import PASSES, masked, masks
from workloads.vera.model import Evidence, HeadInputs, Retriever
from workloads.vera.params import Params

MASKS = "mc_dropout"
"""Stream of the seed of the dropout masks."""

_AT_ONCE = {"cpu": 2**15, "cuda": 2**20}  # candidates
_MOST_CACHED = 2**28  # numbers: 1 GiB


@dataclass(frozen=True, eq=False)
class FrozenFeatures:
    """Cached inputs of the heads. Query q has the ``lengths[q]`` rows from ``start[q]`` on, (Q,) both."""

    inputs: HeadInputs
    start: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def of(self, queries: NDArray[np.int64]) -> HeadInputs:
        """Inputs of the heads for a block of these queries."""
        rows, _ = spans(self.start[queries], self.lengths[queries])
        index = to_device(torch.from_numpy(rows), self.inputs.z.device)
        return HeadInputs(*(side.index_select(0, index) for side in self.inputs))


@torch.no_grad()
def frozen_features(model: Retriever, data: VeraData, queries: NDArray[np.int64]) -> FrozenFeatures | None:
    """Compute the backbone's outputs for these queries, for a frozen backbone. None if they exceed the memory limit."""
    lengths = data.pool.lengths
    if lengths[queries].sum() * model.params.hidden > _MOST_CACHED:
        return None
    model.eval()
    parts = [model.backbone(data, data.block(queries[rows])) for rows in _pieces(data, queries)]
    start = np.full(len(lengths), -1, np.int64)
    start[queries] = np.cumsum(lengths[queries]) - lengths[queries]
    return FrozenFeatures(HeadInputs(*(torch.cat(side) for side in zip(*parts))), start, lengths)


@torch.no_grad()
def rank(
    model: Retriever,
    data: VeraData,
    queries: NDArray[np.int64],
    params: Params,
    runtime: Runtime,
    cached: FrozenFeatures | None = None,
) -> Ranked:
    """Rank the candidates of some queries. With several ranks a collective operation: they share the queries.

    Args:
        model: is set to evaluation mode.
        data: the data of the queries.
        queries: indices of the queries, (n,).
        params: their ``confidence`` and ``temperature`` are used.
        runtime: this process' rank.
        cached: the queries' features, if the backbone has computed them already.
    """
    lengths = data.pool.lengths[queries]
    device = runtime.device
    shape = (len(queries), max(1, int(lengths.max(initial=0))))
    sides = torch.zeros(3, *shape, device=device)  # scores, α and β; 0 for the queries of other ranks
    drawn = torch.zeros(PASSES, *shape, device=device) if params.confidence == "mc_dropout" else None
    total = reduce_sum if runtime.world_size > 1 else torch.Tensor.clone
    kept = None if drawn is None else _masks(data, params, runtime)
    own_rows = np.arange(len(queries))[runtime.rank :: runtime.world_size]
    model.eval()
    for piece in _pieces(data, queries[own_rows]):
        rows = own_rows[piece]
        own = torch.from_numpy(rows).to(device)
        block = data.block(queries[rows])
        inputs = model.backbone(data, block) if cached is None else cached.of(queries[rows])
        outputs = model(data, block, cached=inputs)
        width = slice(block.listed.shape[1])
        sides[:, own, width] = torch.stack([outputs.scores.masked_fill(~block.listed, 0), *outputs.query])
        if drawn is not None and kept is not None:
            scored = [model.ranking(z).squeeze(1) for z in masked(inputs.z, block.column, kept, params.dropout)]
            blocks = (block.spread(scores, -torch.inf) for scores in scored)
            drawn[:, own, width] = torch.stack([shares(each, params.temperature or 1.0) for each in blocks])
    listed = torch.arange(shape[1], device=device) < torch.from_numpy(lengths).to(device).unsqueeze(1)
    scores, alpha, beta = total(sides)
    evidence = Evidence(*(torch.where(listed, side, 1.0) for side in (alpha, beta)))
    ranked = scores.masked_fill(~listed, -torch.inf)
    return Ranked(ranked, evidence, None if drawn is None else total(drawn))


def _masks(data: VeraData, params: Params, runtime: Runtime) -> torch.Tensor:
    """The dropout masks for all lists of the data, on the device."""
    longest = int(data.pool.lengths.max(initial=0))
    return _on_device(longest, params.hidden, params.dropout, derive(runtime.seed, MASKS), runtime.device)


@lru_cache(maxsize=1)
def _on_device(longest: int, width: int, dropout: float, seed: int, device: torch.device) -> torch.Tensor:
    return to_device(masks(longest, width, dropout, seed), device)


def _pieces(data: VeraData, queries: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Positions of the queries, in pieces that are small enough to be computed at once."""
    limit = _AT_ONCE.get(data.queries.device.type, _AT_ONCE["cpu"])
    ends = np.flatnonzero(np.diff(np.cumsum(data.pool.lengths[queries]) // limit)) + 1
    return (piece for piece in np.split(np.arange(len(queries)), ends) if len(piece))
