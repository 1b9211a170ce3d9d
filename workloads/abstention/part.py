"""The abstention part: queries that are held out of training, validation, selection and refit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads.data.retrieval.types import Queries, Retrieval, split_queries
from workloads.seeding import derive, random_order

Indices = NDArray[np.int64]


class Parts(NamedTuple):
    """Query numbers, ascending. ``abstention`` has one query of each family that was held out."""

    train: Indices
    validation: Indices
    abstention: Indices


def hold_out(train: Indices, validation: Indices, share: float, seed: int, family: Indices | None = None) -> Parts:
    """Hold a share of the queries for training and validation out of both.

    Whole families are held out, since training on a paraphrase of a query is training on the query. One query of each
    is calibrated with: those of a family succeed or fail together, and the promise needs independent ones. The draws
    depend on the families and the seed only: every run, trial and refit holds out the same queries.

    Args:
        train: query numbers; those of a refit include the validation part.
        validation: query numbers; empty in a refit.
        share: of the families, in [0, 1); 0 holds out nothing.
        seed: of the splits; the draws have a stream of their own.
        family: (Q,), equal for paraphrases; None if every query is its own.

    Raises:
        ValueError: no query would be left for a part, or none would be held out.
    """
    if not share:
        return Parts(train, validation, np.zeros(0, np.int64))
    both = np.sort(np.concatenate([train, validation]))
    own = both if family is None else family[both]
    families = np.unique(own)
    held = families[random_order(len(families), derive(seed, "abstention part"))][: round(share * len(families))]
    left = [part[~np.isin(part if family is None else family[part], held)] for part in (train, validation)]
    if not len(held) or not len(left[0]) or (len(validation) and not len(left[1])):
        raise ValueError(
            f"abstention_part={share:g} of {len(families)} queries leaves {len(left[0])} to train on, {len(left[1])} "
            f"for validation and {len(held)} to calibrate with. Set another share, or use more queries"
        )
    return Parts(left[0], left[1], one_of_each(both[np.isin(own, held)], seed, family))


def split_collection(
    data: Retrieval, seed: int, validation: float, test: float, *, holdout: bool, share: float
) -> tuple[Queries, Indices, Indices]:
    """The queries of a run, those of its validation part, which a refit trains on, and those of the abstention part.

    Arguments as of :func:`~workloads.data.retrieval.types.split_queries` and :func:`hold_out`, which raise ValueError.
    """
    queries = split_queries(data, seed=seed, validation=validation, test=test)
    train, held, abstention = hold_out(queries.train, queries.validation, share, seed, data.family)
    if not holdout:
        train = np.sort(np.concatenate([train, held]))
    return Queries(train, held if holdout else held[:0], queries.test), held, abstention


def one_of_each(queries: Indices, seed: int, family: Indices | None) -> Indices:
    """One query of each family, drawn at random; ascending. Arguments as of :func:`hold_out`."""
    if family is None:
        return np.sort(queries)
    order = random_order(len(queries), derive(seed, "one of a family"))
    _, first = np.unique(family[queries][order], return_index=True)
    return np.sort(queries[order[first]])
