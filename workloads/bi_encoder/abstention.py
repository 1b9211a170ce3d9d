"""Search of a collection by the registered model, and the scores of the queries that it promises a risk by."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.abstention.calibration import Exported, Ranking, Systems, abstention_table
from workloads.bi_encoder.calibration_queries import calibration_queries
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.types import Retrieval
from workloads.encoders.pooling import normalised
from workloads.encoders.search import exact_topk
from workloads.encoders.text import TextEncoder, encode
from workloads.encoders.tokens import Tokenizer
from workloads.initial_weights import bytes_of

DEPTH = 100
"""Documents whose scores decide."""


@dataclass(frozen=True, eq=False)
class Collection:
    """Vectors of the documents (N, d), of length 1, their ids as the bytes of JSON, and the table to abstain by."""

    vectors: torch.Tensor
    doc_ids: torch.Tensor
    table: Exported

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """By the names of a servable."""
        return {"index.vectors": self.vectors, "index.doc_ids": self.doc_ids, **self.table.weights}

    @property
    def config(self) -> dict[str, Any]:
        """As of a servable."""
        return {**self.table.config, "depth": DEPTH}


@torch.no_grad()
def collection(name: str, root: Path, seed: int, tokenizer: Tokenizer, encoder: TextEncoder) -> Collection:
    """Embed a collection and score its judged queries, those of its test part only if it has no others.

    Raises:
        workloads.data.DataError: as of :func:`calibration_queries`.
    """
    data = load_retrieval(name, root, "skip")
    calibrating, placing = calibration_queries(name, root, seed)
    with encoder.in_fp32():
        vectors = normalised(encode(encoder, tokenizer(data.docs.to_pylist())))
        sides = [_searched(data, own, tokenizer, encoder, vectors) for own in (calibrating, placing)]
    share = len(calibrating) / (len(calibrating) + len(placing))
    table = abstention_table(*sides, share=share, plain=_PLAIN)
    return Collection(vectors, bytes_of(json.dumps(data.doc_ids.to_pylist())), table)


_PLAIN = 0.05
"""Temperature of the score ``softmax``: sentence-transformers' scale of 20."""


def _searched(
    data: Retrieval, queries: NDArray[np.int64], tokenizer: Tokenizer, encoder: TextEncoder, vectors: torch.Tensor
) -> Systems:
    """The first documents of some queries by their cosine."""
    asked = normalised(encode(encoder, tokenizer(data.queries.take(queries).to_pylist())))
    scores, docs = exact_topk(asked, vectors, DEPTH)
    return Systems({"": Ranking(scores.cpu().numpy(), data.grades(queries[:, None], docs.cpu().numpy()) > 0)})
