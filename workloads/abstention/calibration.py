"""What a served model holds of its abstention part: the score and the loss of each query, by kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.abstention.decision import KEY
from workloads.abstention.scores import BM25, MARGIN, SOFTMAX, TEMPERATURE, by, mass

KS = (1, 3, 5, 10)
"""Successes of :func:`abstention_table`: a relevant document among the first k."""

_LOG_TEMPERATURES = (-5.0, 5.0)
_FLOOR = 1e-7


@dataclass(frozen=True, eq=False)
class Success:
    """What counts as a success: its name, the losses in [0, 1] of some queries (n,), and whether all are 0 or 1.

    ``k``: of the softmax's mass of the first k. ``system``: the prefix of ``name`` that says which ranking it is of.
    """

    name: str
    losses: NDArray[np.float64]
    k: int = 1
    binary: bool = True
    system: str = ""


def top_k(first: NDArray[np.int64], ks: Sequence[int]) -> list[Success]:
    """Success: a relevant one is among the first k. ``first`` (n,): the rank of the first relevant one, 0 if none."""
    return [Success(f"top_{k}", ((first < 1) | (first > k)).astype(np.float64), k) for k in ks]


def first_relevant(scores: NDArray[np.floating[Any]], relevant: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The rank, from 1, of the first relevant candidate of each row, (Q, C) to (Q,); 0 if there is none.

    Ties in order of the columns. -inf is padding.
    """
    order = np.argsort(-scores, axis=1, kind="stable")
    hits = np.take_along_axis(relevant & np.isfinite(scores), order, 1)
    return np.where(hits.any(1), hits.argmax(1) + 1, 0)


def fit_temperature(scores: NDArray[np.floating[Any]], losses: NDArray[np.float64], k: int) -> float:
    """The temperature at which the mass of the first k has the lowest negative log likelihood of the successes.

    Guo et al., ICML 2017, with "the answer is among the first k" in the place of the class. (Q, C) and (Q,).
    """

    def nll(temperature: float) -> float:
        p = mass(scores, k, temperature).clip(_FLOOR, 1 - _FLOOR)
        return -float((losses * np.log1p(-p) + (1 - losses) * np.log(p)).mean())

    return best_temperature(nll)


def best_temperature(loss: Callable[[float], float]) -> float:
    """The temperature from exp(-5) to exp(5) with the lowest loss."""
    from scipy.optimize import minimize_scalar

    return math.exp(minimize_scalar(lambda log: loss(math.exp(log)), bounds=_LOG_TEMPERATURES, method="bounded").x)


@dataclass(frozen=True, eq=False)
class Side:
    """A part of n queries: ``scores`` by kind and by success, (n,) each, and the successes."""

    scores: Mapping[str, Mapping[str, NDArray[np.float64]]]
    successes: Sequence[Success]

    def table(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scores (kinds, successes, n) and losses (successes, n)."""
        scores = [[kind[one.name] for one in self.successes] for kind in self.scores.values()]
        return np.array(scores, np.float64), np.array([one.losses for one in self.successes], np.float64)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Q queries ranked by one system: ``scores`` (Q, C), -inf for padding, and which candidates are ``relevant``.

    ``ndcg`` (Q,): NDCG@10, where it is a success too.
    """

    scores: NDArray[np.floating[Any]]
    relevant: NDArray[np.bool_]
    ndcg: NDArray[np.floating[Any]] | None = None

    def successes(self, ks: Sequence[int], prefix: str) -> list[Success]:
        """A relevant candidate among the first k, for each k, and NDCG@10."""
        first = first_relevant(self.scores, self.relevant)
        every = [replace(one, name=f"{prefix}{one.name}", system=prefix) for one in top_k(first, ks)]
        if self.ndcg is not None:
            losses = 1 - self.ndcg.astype(np.float64)
            every.append(Success(f"{prefix}ndcg_at_10", losses, binary=False, system=prefix))
        return every


class Systems(NamedTuple):
    """Rankings of some queries by the prefix of their successes, and BM25's scores if any, (Q, C), padded with -inf."""

    rankings: Mapping[str, Ranking]
    bm25: NDArray[np.floating[Any]] | None = None


def temperatures_of(systems: Mapping[str, Ranking], ks: Sequence[int]) -> dict[str, float]:
    """The temperature for each success, fitted on a validation part; for NDCG that of the first k.

    ``systems``: rankings by the prefix of their successes.
    """
    fitted: dict[str, float] = {}
    for prefix, ranking in systems.items():
        every = ranking.successes(ks, prefix)
        fitted |= {one.name: fit_temperature(ranking.scores, one.losses, one.k) for one in every if one.binary}
        fitted |= {one.name: fitted[every[0].name] for one in every if not one.binary}
    return fitted


def side_of(systems: Systems, ks: Sequence[int], temperatures: Mapping[str, float], plain: float) -> Side:
    """All kinds of scores, and the losses, of some queries.

    Args:
        systems: of the queries.
        ks: of the successes "among the first k".
        temperatures: of :func:`temperatures_of`.
        plain: the temperature of the score ``softmax``.
    """
    rankings, bm25 = systems
    successes = []
    scores: dict[str, dict[str, NDArray[np.float64]]] = {name: {} for name in (SOFTMAX, TEMPERATURE, MARGIN)}
    if bm25 is not None:
        scores[BM25] = {}
    for prefix, ranking in rankings.items():
        for one in ranking.successes(ks, prefix):
            successes.append(one)
            for name, values in scores.items():
                rows = bm25 if name == BM25 and bm25 is not None else ranking.scores
                values[one.name] = by(name, rows, one.k, temperatures[one.name] if name == TEMPERATURE else plain)
    return Side(scores, successes)


@dataclass(frozen=True, eq=False)
class Exported:
    """Weights and configuration to be merged into those of a servable."""

    weights: Mapping[str, torch.Tensor]
    config: Mapping[str, Any]


def exported(
    part: Side,
    validation: Side,
    *,
    share: float,
    default: tuple[str, str],
    temperatures: Mapping[str, float],
    plain: float = 1.0,
    trusted: bool = True,
) -> Exported:
    """The part of a servable that ``decision.py`` reads.

    Args:
        part: of the queries held out.
        validation: of the validation part, by which thresholds are placed.
        share: ``abstention_part``.
        default: score and success that are used unless others are asked for.
        temperatures: by success.
        plain: the temperature of the score ``softmax``.
        trusted: the model was not trained on the validation part, so that its losses say where to start.
    """
    scores, losses = part.table()
    grid_scores, grid_losses = validation.table()
    weights = {"scores": scores, "losses": losses, "validation_scores": grid_scores}
    if trusted:
        weights["validation_losses"] = grid_losses
    config = {
        "part": share,
        "scores": list(part.scores),
        "successes": {one.name: {"k": one.k, "binary": one.binary, "system": one.system} for one in part.successes},
        "default": list(default),
        "temperatures": dict(temperatures),
        "plain": plain,
    }
    tensors = {f"{KEY}.{name}": torch.from_numpy(np.ascontiguousarray(side)) for name, side in weights.items()}
    return Exported(tensors, {KEY: config})


def abstention_table(
    part: Systems, validation: Systems, *, share: float, plain: float = 1.0, trusted: bool = True
) -> Exported:
    """What the registered model of a ranker abstains by; arguments as of :func:`exported`.

    The default is the temperature-scaled mass of the first document, and that it is relevant.
    """
    temperatures = temperatures_of(validation.rankings, KS)
    return exported(
        *(side_of(one, KS, temperatures, plain) for one in (part, validation)),
        share=share,
        default=(TEMPERATURE, "top_1"),
        temperatures=temperatures,
        plain=plain,
        trusted=trusted,
    )
