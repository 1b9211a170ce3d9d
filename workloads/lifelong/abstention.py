"""The scores and losses of the abstention part of lifelong retrieval, for the registered model."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.abstention.calibration import Exported, Ranking, exported, side_of, temperatures_of
from workloads.abstention.scores import TEMPERATURE
from workloads.contract import Runtime
from workloads.encoders.search import exact_topk
from workloads.lifelong.dataset import DEPTH, LifelongData
from workloads.lifelong.index import Index

KS = (1, 3, 5, 10)
"""Successes: a relevant document among the first k. One that has not arrived yet is not found."""


def searched(data: LifelongData, queries: NDArray[np.int64], vectors: torch.Tensor, index: Index) -> Ranking:
    """The first documents of the index, as many as a stored ranking has, for queries with these vectors (Q, d)."""
    scores, rows = exact_topk(vectors, index.blocks(), DEPTH)
    docs = index.docs[rows.cpu().numpy()]
    return Ranking(scores.cpu().numpy(), data.data.grades(queries[:, None], docs) > 0)


def abstention_table(part: Ranking, validation: Ranking, temperature: float, runtime: Runtime) -> Exported:
    """What the registered model abstains by; ``temperature`` is that of training. In a refit the validation part only
    places the thresholds."""
    temperatures = temperatures_of({"": validation}, KS)
    sides = (side_of({"": one}, KS, temperatures, temperature) for one in (part, validation))
    return exported(
        *sides,
        share=runtime.abstention_part,
        default=(TEMPERATURE, "top_1"),
        temperatures=temperatures,
        plain=temperature,
        trusted=runtime.holdout,
    )
