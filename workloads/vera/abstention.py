"""The scores and losses of VERA's abstention part, for the registered model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads.abstention.calibration import Exported, Ranking, Side, Systems, exported, side_of, temperatures_of
from workloads.abstention.scores import BM25, TEMPERATURE
from workloads.vera.confidence import Ranked, confidence
from workloads.vera.dataset import VeraData
from workloads.vera.evaluation import DEPTHS
from workloads.vera.params import Params

CONFIDENCE = "c"
"""The score c^(k), from the evidence, without a map: a map that increases changes no decision."""


class Scored(NamedTuple):
    """Q ranked queries: the model's output, its ranking, and BM25's scores if any, (Q, C), padded with -inf."""

    ranked: Ranked
    ranking: Ranking
    bm25: NDArray[np.float64] | None


def scored(ranked: Ranked, data: VeraData, queries: NDArray[np.int64]) -> Scored:
    """The judgements and BM25's scores of ranked queries."""
    pool = data.pool
    scores = ranked.scores.cpu().numpy()
    rows, columns, grades = data.relevant(queries)
    relevant = np.zeros(scores.shape, np.bool_)
    relevant[rows, columns] = grades > 0
    bm25 = None
    if BM25 in pool.number_names:
        bm25 = np.full(scores.shape, -np.inf)
        row, column = np.nonzero(np.isfinite(scores))
        starts = pool.indptr[pool.list_of[queries]]
        bm25[row, column] = pool.numbers[starts[row] + column, pool.number_names.index(BM25)]
    return Scored(ranked, Ranking(scores, relevant), bm25)


def abstention_table(part: Scored, validation: Scored, params: Params, k: int, share: float) -> Exported:
    """What the registered model abstains by. Success is an answer among the first k, for several k; ``k`` is its own.

    Args:
        part: of the abstention part.
        validation: of the validation part.
        params: their ``confidence`` and ``temperature`` are used.
        k: chosen on validation.
        share: ``abstention_part``.
    """
    ks = sorted({*DEPTHS, k})
    temperatures = temperatures_of({"": validation.ranking}, ks)
    own = CONFIDENCE if params.confidence == "evidence" else TEMPERATURE
    sides = (abstention_side(one, ks, params, temperatures) for one in (part, validation))
    plain = params.temperature or 1.0
    return exported(*sides, share=share, default=(own, f"top_{k}"), temperatures=temperatures, plain=plain)


def abstention_side(one: Scored, ks: Sequence[int], params: Params, temperatures: Mapping[str, float]) -> Side:
    """The scores of all kinds and the losses of some queries, for each of the successes "among the first k"."""
    side = side_of(Systems({"": one.ranking}, one.bm25), ks, temperatures, params.temperature or 1.0)
    if params.confidence != "evidence":
        return side
    own = {each.name: confidence(one.ranked, each.k, params).cpu().numpy() for each in side.successes}
    return Side({CONFIDENCE: own, **side.scores}, side.successes)
