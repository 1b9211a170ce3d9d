"""Encoding and exact search whose work the ranks of a run share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from workloads.contract import Runtime
from workloads.distributed import gather, reduce_sum
from workloads.encoders.search import exact_topk
from workloads.encoders.text import TextEncoder, encode
from workloads.encoders.tokens import Tokens
from workloads.transfer import to_device

_NONE = 2**53
"""Row of places that are left over in a list."""


def sharded_encode(encoder: TextEncoder, tokens: Tokens, runtime: Runtime) -> torch.Tensor:
    """As :func:`~workloads.encoders.text.encode`; each rank encodes its share of the texts, and all get the result.

    A collective operation, with the same arguments on all ranks. With ``world_size`` 1, this rank encodes alone.
    """
    if runtime.world_size == 1:
        return encode(encoder, tokens)
    own = np.arange(len(tokens))[runtime.rank :: runtime.world_size]
    vectors = torch.zeros(len(tokens), encoder.dim, device=runtime.device)
    vectors[to_device(torch.from_numpy(own), runtime.device)] = encode(encoder, tokens.take(own))
    return reduce_sum(vectors)


def sharded_topk(
    queries: torch.Tensor, index: torch.Tensor | Iterable[torch.Tensor], k: int, runtime: Runtime
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`~workloads.encoders.search.exact_topk`, equal bit for bit; each rank searches its share of the rows.

    A collective operation, with the same arguments on all ranks; all get the result.
    """
    ranks = runtime.world_size
    if ranks == 1:
        return exact_topk(queries, index, k)
    scores, rows = exact_topk(queries, index, k, (runtime.rank, ranks))
    total = int(reduce_sum(torch.tensor(rows.shape[1], device=queries.device)))
    left = (0, k - rows.shape[1])
    scores = _side_by_side(torch.nn.functional.pad(scores, left, value=-torch.inf), ranks)
    rows = _side_by_side(torch.nn.functional.pad(rows, left, value=_NONE), ranks)
    # By score, and equal ones by row.
    rows, order = rows.sort(dim=1)
    scores, best = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
    count = min(k, total)
    return scores[:, :count], rows.gather(1, best)[:, :count]


def _side_by_side(lists: torch.Tensor, ranks: int) -> torch.Tensor:
    """The lists of all ranks, (Q, k) to (Q, ranks * k)."""
    gathered = gather(lists, [len(lists)] * ranks)
    return gathered.view(ranks, *lists.shape).transpose(0, 1).flatten(1)
