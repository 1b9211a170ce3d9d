"""A model's scores and evidence for any number of queries, without a gradient, shared out over the ranks."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.contract import Runtime
from workloads.distributed import reduce_sum
from workloads.seeding import derive
from workloads.vera.confidence import Ranked, shares
from workloads.vera.model import Evidence, Retriever
from workloads.vera.params import Params
from workloads.vera.prepared import Block, Prepared

PASSES = 20
"""Masks of ``confidence=mc_dropout`` (Gal and Ghahramani, ICML 2016)."""

_AT_ONCE = {"cpu": 2**15, "cuda": 2**20}  # candidates


@torch.no_grad()
def rank(model: Retriever, data: Prepared, queries: NDArray[np.int64], params: Params, runtime: Runtime) -> Ranked:
    """What the model says of some queries. A collective: each rank reads every so many of them."""
    lengths, device = data.pool.lengths[queries], runtime.device
    shape = (len(queries), max(1, int(lengths.max(initial=0))))
    sides = torch.zeros(3, *shape, device=device)  # scores, α and β, 0 where another rank reads
    drawn = torch.zeros(PASSES, *shape, device=device) if params.confidence == "mc_dropout" else None
    mine = np.arange(len(queries))[runtime.rank :: runtime.world_size]
    limit = _AT_ONCE.get(device.type, _AT_ONCE["cpu"])
    model.eval()
    for rows in np.split(mine, np.flatnonzero(np.diff(np.cumsum(lengths[mine]) // limit)) + 1):
        if not len(rows):
            continue
        block, own = data.block(queries[rows]), torch.from_numpy(rows).to(device)
        outputs, width = model(data, block), slice(block.listed.shape[1])
        scores = outputs.scores.masked_fill(~block.listed, 0)
        sides[:, own, width] = torch.stack([scores, *outputs.query])
        if drawn is not None:
            drawn[:, own, width] = _drawn(model, data, block, params, runtime.seed)
    listed = torch.arange(shape[1], device=device) < torch.from_numpy(lengths).to(device).unsqueeze(1)
    scores, alpha, beta = reduce_sum(sides)
    evidence = Evidence(*(torch.where(listed, side, 1.0) for side in (alpha, beta)))
    ranked = scores.masked_fill(~listed, -torch.inf)
    return Ranked(ranked, evidence, None if drawn is None else reduce_sum(drawn))


def _drawn(model: Retriever, data: Prepared, block: Block, params: Params, seed: int) -> torch.Tensor:
    """Shares of the softmax under each mask, (M, B, C)."""
    device = block.queries.device
    model.backbone.train()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive(seed, "mc_dropout"))
        found = [shares(model(data, block).scores, params.temperature or 1.0) for _ in range(PASSES)]
    model.eval()
    return torch.stack(found)
