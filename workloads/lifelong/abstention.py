"""The scores and losses of the abstention part of lifelong retrieval, for the registered model."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.abstention.calibration import Ranking, Systems
from workloads.encoders.search import exact_topk
from workloads.lifelong.dataset import DEPTH, LifelongData
from workloads.lifelong.index import Index


def searched(data: LifelongData, queries: NDArray[np.int64], vectors: torch.Tensor, index: Index) -> Systems:
    """The first documents of the index, as many as a stored ranking has, for queries with these vectors (Q, d).

    A document that has not arrived yet is not found.
    """
    scores, rows = exact_topk(vectors, index.blocks(), DEPTH)
    docs = index.docs[rows.cpu().numpy()]
    return Systems({"": Ranking(scores.cpu().numpy(), data.data.grades(queries[:, None], docs) > 0)})
