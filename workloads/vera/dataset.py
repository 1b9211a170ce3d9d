"""A dataset as VERA trains on it, resident on the device and shared by the trials of a process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.contract import Precision, Runtime
from workloads.data import dataset, fingerprint
from workloads.data.questions.load import load_questions
from workloads.data.questions.neighbourhoods import neighbourhoods
from workloads.data.questions.types import PARTS
from workloads.data.retrieval.bm25 import candidates
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.types import Queries, split_queries
from workloads.encoders.pooling import normalised
from workloads.encoders.text import TextEncoder
from workloads.encoders.tokens import Tokenizer, spans
from workloads.seeding import derive
from workloads.vera.features import Pool, collection_pool, graph_pool
from workloads.vera.params import Params
from workloads.vera.vectors import embed_texts, load_frozen

_KEPT = 4  # datasets a process keeps


@dataclass(frozen=True, eq=False)
class Block:
    """A batch of B queries with P candidates in all, on the device.

    ``lengths``, on the host, says how many each has. ``queries`` (B,) and ``texts`` (U,) are numbers, each text once.
    Of each candidate: ``text_row`` (P,), which of those texts it is; ``row`` and ``column`` (P,), where it stands in a
    block (B, C); ``place`` (P,), its row among all lists.
    ``grades`` (B, C), 0 where nothing is relevant; ``listed`` (B, C).
    """

    lengths: list[int]
    queries: torch.Tensor
    texts: torch.Tensor
    text_row: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor
    pool_row: torch.Tensor
    grades: torch.Tensor
    listed: torch.Tensor

    @property
    def positive(self) -> torch.Tensor:
        """(B, C), bool."""
        return self.grades > 0

    def spread(self, values: torch.Tensor, fill: float) -> torch.Tensor:
        """Values of the candidates (P,) as a block (B, C), ``fill`` where there is none."""
        return values.new_full(self.listed.shape, fill).index_put((self.row, self.column), values)


@dataclass(frozen=True, eq=False)
class VeraData:
    """The pool, its parts, and on the device what a step gathers from.

    Queries to train on have candidates; those of the other parts may have none. ``queries`` (Q, d) and ``texts`` (T, d)
    are vectors of length one; ``codes`` and ``numbers`` are the pool's.
    """

    pool: Pool
    parts: Queries
    tokenizer: Tokenizer
    encoder: TextEncoder
    queries: torch.Tensor
    texts: torch.Tensor
    codes: torch.Tensor
    numbers: torch.Tensor

    def block(self, queries: NDArray[np.int64]) -> Block:
        """Some queries with all their candidates."""
        pool, device = self.pool, self.queries.device
        lengths = pool.lengths[queries]
        row = np.repeat(np.arange(len(queries)), lengths)
        column = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        pool_row = pool.indptr[pool.list_of[queries]][row] + column
        shape = (len(queries), max(1, int(lengths.max(initial=0))))
        grades, listed = np.zeros(shape, np.float32), np.zeros(shape, np.bool_)
        listed[row, column] = True
        found, places, values = self.relevant(queries)
        grades[found, places] = values
        texts, text_row = np.unique(pool.text[pool_row], return_inverse=True)
        sides = (queries, texts, text_row, row, column, pool_row, grades, listed)
        there = (torch.from_numpy(np.ascontiguousarray(side)).to(device, non_blocking=True) for side in sides)
        return Block(lengths.tolist(), *there)

    def relevant(self, queries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """What answers some queries: which of them, the place in its list, and the grade, (m,) each."""
        rows, place, position = _of_queries(self.pool.relevant, queries)
        return rows, place, self.pool.grades[position]

    def odds(self, queries: NDArray[np.int64], width: int) -> NDArray[np.float64] | None:
        """The known probability of each candidate of some queries to be the answer, (n, width); None where unknown."""
        if self.pool.odds is None:
            return None
        rows, place, position = _of_queries(self.pool.odds[0], queries)
        found = np.zeros((len(queries), width))
        found[rows, place] = self.pool.odds[1][position]
        return found

    def answerable(self, queries: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of some queries have a positive among their candidates, (n,)."""
        return np.isin(queries, self.pool.relevant[:, 0])


def _of_queries(
    table: NDArray[np.int64], queries: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The rows [query, place] of a table, ordered by query, that belong to some queries: which, place, row."""
    starts, stops = (np.searchsorted(table[:, 0], queries, side=side) for side in ("left", "right"))
    which = np.repeat(np.arange(len(queries)), stops - starts)
    position, _ = spans(starts, stops - starts)
    return which, table[position, 1], position


def prepare(params: Params, runtime: Runtime) -> VeraData:
    """The dataset; from the second call of a process on, in a millisecond.

    Raises:
        workloads.data.DataError: dataset or encoder are unknown, missing or damaged, or of another kind.
        ValueError: there are too few queries.
    """
    kind = dataset(params.dataset).kind
    own = (
        "dataset", "dataset_unknown", "split_seed", "split_validation", "split_test", "eval_candidates",
        "eval_candidates_seed", "encoder", "max_length",
    )  # fmt: skip
    kept = Params(**{name: getattr(params, name) for name in own})
    identity = fingerprint(params.dataset, runtime.data)
    seed = runtime.seed if params.encoder == "tiny" else 0
    return _prepare(kept, runtime.data, identity, kind, seed, runtime.device, runtime.precision)


@lru_cache(maxsize=_KEPT)
def _prepare(
    params: Params, root: Path, _: str, kind: str, seed: int, device: torch.device, precision: Precision
) -> VeraData:
    pool, parts = _graph(params, root) if kind == "graph_questions" else _collection(params, root)
    parts = parts._replace(train=parts.train[pool.lengths[parts.train] > 0])
    for name, numbers in parts._asdict().items():
        if not len(numbers):
            raise ValueError(f"dataset {params.dataset!r} has no query for the {name} part")
    vocabulary = [*pool.texts, *(pool.queries[query] for query in parts.train.tolist())]
    tokenizer, encoder = load_frozen(params.encoder, params.max_length, vocabulary, seed, precision)
    found = [
        normalised(embed_texts(params.encoder, tokenizer, encoder, side, device)) for side in (pool.queries, pool.texts)
    ]
    rest = [torch.from_numpy(np.ascontiguousarray(side)) for side in (pool.codes, pool.numbers)]
    return VeraData(pool, parts, tokenizer, encoder, *(side.to(device) for side in (*found, *rest)))


def _graph(params: Params, root: Path) -> tuple[Pool, Queries]:
    data = load_questions(params.dataset, root)
    around = neighbourhoods(data, params.eval_candidates, params.eval_candidates_seed)
    parts = Queries(*(np.flatnonzero(data.part == part) for part in range(len(PARTS))))
    return graph_pool(data, around), parts


def _collection(params: Params, root: Path) -> tuple[Pool, Queries]:
    data = load_retrieval(params.dataset, root, params.dataset_unknown)
    found = candidates(params.dataset, root, data, params.eval_candidates)
    queries = split_queries(data, seed=params.split_seed, validation=params.split_validation, test=params.split_test)
    return collection_pool(data, found, params.eval_candidates), queries


def split_training(data: VeraData, params: Params, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The queries to rank by, and those to calibrate by: of the validation part, or kept back from training.

    Raises:
        ValueError: there are none to calibrate by.
    """
    if params.calibration_part == "validation":
        validation = data.parts.validation
        if not (data.pool.lengths[validation] > 0).any():
            raise ValueError(
                f"calibration_part=validation finds no validation query of dataset {params.dataset!r} with candidates. "
                "Set calibration_part=train"
            )
        return data.parts.train, validation[data.pool.lengths[validation] > 0]
    return hold_back(data.pool, data.parts.train, params.calibration_share or 0.0, seed)


def hold_back(
    pool: Pool, queries: NDArray[np.int64], share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Some of the queries to rank by, and the ``share`` that is kept for calibration, whole families of them.

    Of two families or more at least one comes to each side; a share of 0 gives all queries to both.
    """
    if share == 0:
        return queries, queries
    families = np.unique(pool.family[queries])
    if len(families) < 2:
        raise ValueError(
            f"calibration_share={share} cannot be kept of {len(queries)} training queries that all ask the same. "
            "Set calibration_share=0"
        )
    count = min(len(families) - 1, max(1, round(share * len(families))))
    bits = np.random.Generator(np.random.PCG64(derive(seed, "calibration")))
    drawn = np.isin(pool.family[queries], bits.permutation(families)[:count])
    return queries[~drawn], queries[drawn]
