"""A dataset prepared for VERA, on the device and cached per process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.abstention.part import hold_out
from workloads.contract import Precision, Runtime
from workloads.data import dataset, fingerprint
from workloads.data.questions.load import load_questions
from workloads.data.questions.neighbourhoods import neighbourhoods
from workloads.data.questions.types import PARTS
from workloads.data.retrieval.bm25 import candidates
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.types import Queries, split_queries
from workloads.encoders.packing import pack
from workloads.encoders.pooling import normalised
from workloads.encoders.sharded import sharded_encode
from workloads.encoders.text import TextEncoder
from workloads.encoders.tokens import Tokenizer, Tokens, spans
from workloads.memory import BoundedCache
from workloads.seeding import derive
from workloads.transfer import all_to_device
from workloads.vera.features import Pool, collection_pool, graph_pool
from workloads.vera.params import Params
from workloads.vera.vectors import embed_texts, load_frozen


@dataclass(frozen=True, eq=False)
class CandidateBlock:
    """A batch of B queries with P candidates in total, on the device.

    ``lengths``, on the host: number of candidates of each query. ``queries`` (B,): indices of the queries. ``texts``
    (U,): indices of the distinct candidate texts. For each candidate, (P,): ``text_row``, its index in ``texts``;
    ``row`` and ``column``, its position in a block (B, C); ``pool_row``, its row in the pool. ``grades`` (B, C): 0 if
    not relevant. ``listed`` (B, C): False for padding. ``nodes`` (2, P): the subject and the object of each candidate
    among the ``node_count`` entities of all queries, each query with its own; None if they are not needed. ``on_host``:
    ``queries`` and ``texts``.
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
    nodes: torch.Tensor | None = field(default=None, kw_only=True)
    node_count: int = field(default=0, kw_only=True)
    on_host: tuple[NDArray[np.int64], NDArray[np.int64]] = field(kw_only=True)

    @property
    def positive(self) -> torch.Tensor:
        """Which candidates are relevant, (B, C), bool."""
        return self.grades > 0

    def spread(self, values: torch.Tensor, fill: float) -> torch.Tensor:
        """Arrange values of the candidates (P,) in a block (B, C), padded with ``fill``."""
        return values.new_full(self.listed.shape, fill).index_put((self.row, self.column), values)


@dataclass(frozen=True, eq=False)
class VeraData:
    """The pool, its split into parts, and the tensors that batches are gathered from.

    Training queries have candidates; queries of the other parts may have none. ``queries`` (Q, d) and ``texts`` (T, d)
    are unit vectors; ``codes`` and ``numbers`` are those of the pool. All four are on the device. ``graph``: batches
    have the entities that candidates share. ``abstention``: the queries of the abstention part that have candidates.
    ``tokens``: those of queries and texts, for an encoder that is trained.
    """

    pool: Pool
    parts: Queries
    tokenizer: Tokenizer
    encoder: TextEncoder
    queries: torch.Tensor
    texts: torch.Tensor
    codes: torch.Tensor
    numbers: torch.Tensor
    graph: bool = field(default=False, kw_only=True)
    abstention: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), kw_only=True)
    tokens: tuple[Tokens, Tokens] | None = field(default=None, kw_only=True)

    def tokenised(self) -> VeraData:
        """With the tokens of queries and texts."""
        return replace(self, tokens=(self.tokenizer(list(self.pool.queries)), self.tokenizer(list(self.pool.texts))))

    def embedded(self, encoder: TextEncoder, runtime: Runtime) -> VeraData:
        """With the vectors that ``encoder`` gives to the tokens now, without its dropout. A collective operation."""
        assert self.tokens is not None
        queries, texts = (normalised(sharded_encode(encoder, side, runtime)) for side in self.tokens)
        return replace(self, queries=queries, texts=texts)

    def in_fp32(self, name: str, trained: TextEncoder | None, runtime: Runtime) -> VeraData:
        """With vectors in float32, which the registered model computes. ``name``: of the frozen encoder."""
        encoder = self.encoder if trained is None else trained
        if encoder.precision == "fp32":
            return self
        with encoder.in_fp32():
            if trained is not None:
                return self.embedded(trained, runtime)
            queries, texts = _vectors(name, self.tokenizer, encoder, self.pool, self.queries.device)
            return replace(self, queries=queries, texts=texts)

    def vectors(self, block: CandidateBlock, encoder: TextEncoder | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors of a block's queries (B, d) and texts (U, d): those kept here, or new ones by ``encoder``."""
        if encoder is None:
            return self.queries[block.queries], self.texts[block.texts]
        assert self.tokens is not None
        device = self.queries.device
        queries, texts = (
            normalised(encoder(pack(side.take(rows), device))) for side, rows in zip(self.tokens, block.on_host)
        )
        return queries, texts

    def block(self, queries: NDArray[np.int64]) -> CandidateBlock:
        """A batch of some queries with all their candidates."""
        pool = self.pool
        device = self.queries.device
        lengths = pool.lengths[queries]
        row = np.repeat(np.arange(len(queries)), lengths)
        column = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        pool_row = pool.indptr[pool.list_of[queries]][row] + column
        shape = (len(queries), max(1, int(lengths.max(initial=0))))
        listed = np.zeros(shape, np.bool_)
        listed[row, column] = True
        relevant_rows, relevant_columns, relevant_grades = self.relevant(queries)
        grades = np.zeros(shape, np.float32)
        grades[relevant_rows, relevant_columns] = relevant_grades
        texts, text_row = np.unique(pool.text[pool_row], return_inverse=True)
        sides = [queries, texts, text_row, row, column, pool_row, grades, listed]
        count = 0
        if self.graph:
            assert pool.ends is not None
            own = row[:, None] * len(pool.entities) + pool.ends[pool_row]
            distinct, nodes = np.unique(own, return_inverse=True)
            count = len(distinct)
            sides.append(nodes.reshape(own.shape).T)
        tensors = [torch.from_numpy(np.ascontiguousarray(side)) for side in sides]
        placed = all_to_device(tensors, device)
        nodes_there = placed.pop() if self.graph else None
        return CandidateBlock(lengths.tolist(), *placed, nodes=nodes_there, node_count=count, on_host=(queries, texts))

    def relevant(self, queries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """The relevant candidates of some queries: row in ``queries``, column in the list, and grade, (m,) each."""
        rows, columns, positions = _of_queries(self.pool.relevant, queries)
        return rows, columns, self.pool.grades[positions]

    def odds(self, queries: NDArray[np.int64], width: int) -> NDArray[np.float64] | None:
        """The true probability that each candidate is the answer, (n, width); None if the data does not have it."""
        if self.pool.odds is None:
            return None
        rows, columns, positions = _of_queries(self.pool.odds[0], queries)
        odds = np.zeros((len(queries), width))
        odds[rows, columns] = self.pool.odds[1][positions]
        return odds

    def answerable(self, queries: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of some queries have a relevant candidate, (n,)."""
        return np.isin(queries, self.pool.relevant[:, 0])


def _of_queries(
    table: NDArray[np.int64], queries: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Select the rows [query, column] of some queries from a table that is sorted by query.

    Returns the row in ``queries``, the column, and the row in the table, (m,) each.
    """
    starts, stops = (np.searchsorted(table[:, 0], queries, side=side) for side in ("left", "right"))
    rows = np.repeat(np.arange(len(queries)), stops - starts)
    positions, _ = spans(starts, stops - starts)
    return rows, table[positions, 1], positions


def prepare(params: Params, runtime: Runtime) -> VeraData:
    """Load, split and embed a dataset. The result is cached in the process.

    Raises:
        workloads.data.DataError: the dataset or encoder is unknown, missing, damaged or of another kind.
        ValueError: there are too few queries.
    """
    kind = dataset(params.dataset).kind
    data_params = (
        "dataset", "dataset_unknown", "split_seed", "split_validation", "split_test", "eval_candidates",
        "eval_candidates_seed", "encoder", "pooling", "max_length",
    )  # fmt: skip
    key = Params(**{name: getattr(params, name) for name in data_params})
    identity = fingerprint(params.dataset, runtime.data)
    seed = runtime.seed if params.encoder == "tiny" else 0
    return _prepare(key, runtime.data, identity, kind, seed, runtime.device, runtime.precision, runtime.abstention_part)


@BoundedCache
def _prepare(
    params: Params, root: Path, _: str, kind: str, seed: int, device: torch.device, precision: Precision, share: float
) -> VeraData:
    pool, parts = _graph(params, root) if kind == "graph_questions" else _collection(params, root)
    train, validation, abstention = hold_out(parts.train, parts.validation, share, params.split_seed, pool.family)
    parts = parts._replace(train=train, validation=validation)
    parts = parts._replace(train=parts.train[pool.lengths[parts.train] > 0])
    for name, numbers in parts._asdict().items():
        if not len(numbers):
            raise ValueError(f"dataset {params.dataset!r} has no query for the {name} part")
    vocabulary = [*pool.texts, *(pool.queries[query] for query in parts.train.tolist())]
    tokenizer, encoder = load_frozen(params.encoder, params.max_length, params.pooling, vocabulary, seed, precision)
    rest = (torch.from_numpy(np.ascontiguousarray(side)).to(device) for side in (pool.codes, pool.numbers))
    sides = (*_vectors(params.encoder, tokenizer, encoder, pool, device), *rest)
    return VeraData(pool, parts, tokenizer, encoder, *sides, abstention=abstention[pool.lengths[abstention] > 0])


def _vectors(
    name: str, tokenizer: Tokenizer, encoder: TextEncoder, pool: Pool, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors of all queries and texts by a frozen encoder, on ``device``."""
    queries, texts = (embed_texts(name, tokenizer, encoder, side, device) for side in (pool.queries, pool.texts))
    return normalised(queries).to(device), normalised(texts).to(device)


def _graph(params: Params, root: Path) -> tuple[Pool, Queries]:
    data = load_questions(params.dataset, root)
    around = neighbourhoods(data, params.eval_candidates, params.eval_candidates_seed)
    parts = Queries(*(np.flatnonzero(data.part == part) for part in range(len(PARTS))))
    return graph_pool(data, around), parts


def _collection(params: Params, root: Path) -> tuple[Pool, Queries]:
    data = load_retrieval(params.dataset, root, params.dataset_unknown)
    retrieved = candidates(params.dataset, root, data, params.eval_candidates)
    queries = split_queries(data, seed=params.split_seed, validation=params.split_validation, test=params.split_test)
    return collection_pool(data, retrieved, params.eval_candidates), queries


def split_training(data: VeraData, params: Params, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The queries to train the ranking with, and those to calibrate with.

    The calibration queries are the validation part, or are held back from the training part.

    Raises:
        ValueError: there are no calibration queries.
    """
    if params.calibration_part == "validation":
        validation = data.parts.validation
        if not (data.pool.lengths[validation] > 0).any():
            raise ValueError(
                f"calibration_part=validation needs candidates, but no validation query of dataset {params.dataset!r} "
                "has any. Set calibration_part=train"
            )
        return data.parts.train, validation[data.pool.lengths[validation] > 0]
    return hold_back(data.pool, data.parts.train, params.calibration_share or 0.0, seed)


def hold_back(
    pool: Pool, queries: NDArray[np.int64], share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide queries into those for the ranking and the ``share`` for calibration, without splitting a family.

    Each side gets at least one family. With a share of 0 both sides get all queries.
    """
    if share == 0:
        return queries, queries
    families = np.unique(pool.family[queries])
    if len(families) < 2:
        raise ValueError(
            f"calibration_share={share} cannot be held back: all {len(queries)} training queries ask the same. "
            "Set calibration_share=0"
        )
    count = min(len(families) - 1, max(1, round(share * len(families))))
    bits = np.random.Generator(np.random.PCG64(derive(seed, "calibration")))
    drawn = np.isin(pool.family[queries], bits.permutation(families)[:count])
    return queries[~drawn], queries[drawn]
