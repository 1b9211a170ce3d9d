"""The scores and losses of the text ranker's abstention part, for the registered model."""

from __future__ import annotations

import numpy as np
import torch

from workloads.abstention.calibration import Ranking, Systems
from workloads.metrics.retrieval import first, ndcg, ranked_grades
from workloads.text_ranker.dataset import Lists
from workloads.text_ranker.evaluation import interpolated


def systems(lists: Lists, scores: torch.Tensor, weight: float) -> Systems:
    """The ranking by the model's scores (Q, C), and by those interpolated with BM25's (``fused_``)."""
    bm25, grades, judged = (torch.from_numpy(np.array(side)) for side in (lists.bm25, lists.grades, lists.judged))

    def ranking(system: torch.Tensor) -> Ranking:
        gains = ndcg(first(ranked_grades(system, grades), 10), judged)
        return Ranking(system.numpy(), lists.grades > 0, gains.numpy())

    return Systems({"": ranking(scores), "fused_": ranking(interpolated(scores, bm25, weight))}, lists.bm25)
