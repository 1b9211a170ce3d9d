"""What a model says of any number of queries, without a gradient: scores and evidence, and z where it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from workloads.contract import Runtime
from workloads.distributed import reduce_sum
from workloads.encoders.tokens import spans
from workloads.seeding import derive, seeded
from workloads.vera.confidence import Ranked, shares
from workloads.vera.dataset import VeraData
from workloads.vera.model import Evidence, HeadInputs, Retriever
from workloads.vera.params import Params

PASSES = 20
"""Masks of ``confidence=mc_dropout`` (Gal and Ghahramani, ICML 2016)."""

_AT_ONCE = {"cpu": 2**15, "cuda": 2**20}  # candidates
_MOST_KEPT = 2**28  # numbers: 1 GiB


@dataclass(frozen=True, eq=False)
class FrozenFeatures:
    """What the heads see of all n candidates of some queries, each of which has ``lengths`` rows from ``start``, (Q,)
    both."""

    seen: HeadInputs
    start: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def of(self, queries: NDArray[np.int64]) -> HeadInputs:
        """Of the candidates of a block of these queries."""
        rows, _ = spans(self.start[queries], self.lengths[queries])
        index = torch.from_numpy(rows).to(self.seen.z.device, non_blocking=True)
        return HeadInputs(*(side.index_select(0, index) for side in self.seen))


@torch.no_grad()
def frozen_features(model: Retriever, data: VeraData, queries: NDArray[np.int64]) -> FrozenFeatures | None:
    """Read the candidates of these queries once, for a backbone that stays as it is; None where they are too many."""
    lengths = data.pool.lengths
    if lengths[queries].sum() * model.params.hidden > _MOST_KEPT:
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
    known: FrozenFeatures | None = None,
) -> Ranked:
    """What the model says of some queries. A collective: each rank reads every so many of them.

    Args:
        model: in evaluation mode afterwards.
        data: with candidates.
        queries: numbers, (n,).
        params: what c is.
        runtime: the rank.
        known: these queries' features, where they have been read.
    """
    lengths, device = data.pool.lengths[queries], runtime.device
    shape = (len(queries), max(1, int(lengths.max(initial=0))))
    sides = torch.zeros(3, *shape, device=device)  # scores, α and β, 0 where another rank reads
    drawn = torch.zeros(PASSES, *shape, device=device) if params.confidence == "mc_dropout" else None
    mine = np.arange(len(queries))[runtime.rank :: runtime.world_size]
    model.eval()
    for piece in _pieces(data, queries[mine]):
        rows = mine[piece]
        block, own = data.block(queries[rows]), torch.from_numpy(rows).to(device)
        seen = model.backbone(data, block) if known is None else known.of(queries[rows])
        outputs, width = model(data, block, known=seen), slice(block.listed.shape[1])
        sides[:, own, width] = torch.stack([outputs.scores.masked_fill(~block.listed, 0), *outputs.query])
        if drawn is not None:
            masks = _masked(model, seen.z, derive(runtime.seed, "mc_dropout"))
            scores = (block.spread(scores, -torch.inf) for scores in masks)
            drawn[:, own, width] = torch.stack([shares(each, params.temperature or 1.0) for each in scores])
    listed = torch.arange(shape[1], device=device) < torch.from_numpy(lengths).to(device).unsqueeze(1)
    scores, alpha, beta = reduce_sum(sides)
    evidence = Evidence(*(torch.where(listed, side, 1.0) for side in (alpha, beta)))
    ranked = scores.masked_fill(~listed, -torch.inf)
    return Ranked(ranked, evidence, None if drawn is None else reduce_sum(drawn))


def _pieces(data: VeraData, queries: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Places of as many of the queries as are read at once."""
    limit = _AT_ONCE.get(data.queries.device.type, _AT_ONCE["cpu"])
    ends = np.flatnonzero(np.diff(np.cumsum(data.pool.lengths[queries]) // limit)) + 1
    return (piece for piece in np.split(np.arange(len(queries)), ends) if len(piece))


def _masked(model: Retriever, z: torch.Tensor, seed: int) -> Iterator[torch.Tensor]:
    """Scores (P,) under each mask: dropout is the backbone's last step, so that one reading of z serves all."""
    with seeded(seed, z.device):
        for _ in range(PASSES):
            yield model.ranking(functional.dropout(z, model.params.dropout)).squeeze(1)
