"""The scores and losses of the text ranker's abstention part, for the registered model."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.abstention.calibration import Exported, Ranking, exported, side_of, temperatures_of
from workloads.abstention.scores import TEMPERATURE
from workloads.contract import Runtime
from workloads.metrics.retrieval import first, ndcg, ranked_grades
from workloads.text_ranker.dataset import Lists
from workloads.text_ranker.evaluation import interpolated

KS = (1, 3, 5, 10)
"""Successes: a relevant document among the first k."""


class Systems(NamedTuple):
    """Rankings of some queries by the prefix of their successes, and BM25's scores (Q, C), padded with -inf."""

    rankings: dict[str, Ranking]
    bm25: NDArray[np.float32]

    @classmethod
    def of(cls, lists: Lists, scores: torch.Tensor, weight: float) -> Self:
        """The ranking by the model's scores (Q, C), and by those interpolated with BM25's (``fused_``)."""
        bm25, grades, judged = (torch.from_numpy(np.array(side)) for side in (lists.bm25, lists.grades, lists.judged))

        def ranking(system: torch.Tensor) -> Ranking:
            gains = ndcg(first(ranked_grades(system, grades), 10), judged)
            return Ranking(system.numpy(), lists.grades > 0, gains.numpy())

        return cls({"": ranking(scores), "fused_": ranking(interpolated(scores, bm25, weight))}, lists.bm25)


def abstention_table(part: Systems, validation: Systems, runtime: Runtime) -> Exported:
    """What the registered model abstains by. In a refit the validation part only places the thresholds."""
    temperatures = temperatures_of(validation.rankings, KS)
    sides = (side_of(one.rankings, KS, temperatures, bm25=one.bm25) for one in (part, validation))
    share = runtime.abstention_part
    default = (TEMPERATURE, "top_1")
    return exported(*sides, share=share, default=default, temperatures=temperatures, trusted=runtime.holdout)
