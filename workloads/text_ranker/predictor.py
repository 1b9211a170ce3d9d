"""Predictions of a trained text ranker: scores and ranks of the documents that come with each query.

Exported with the model together with ``served_text.py``; needs nothing else of the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from ..encoders.served_text import ServedTextEncoder, number_column, text_columns


class Predictor:
    """Ranks the documents given with a query."""

    def __init__(self, weights: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
        """Rebuild the model.

        Args:
            weights: weights of the encoder, and ``head.weight`` and ``head.bias`` of a cross-encoder.
            config: ``model``, the transformer's configuration; ``tokenizer``, the text of a tokenizer.json;
                ``max_length``; ``scoring``, cross or bi; ``pooling``; ``temperature``; ``bm25_weight``.
        """
        self.config = config
        self.encoder = ServedTextEncoder(
            weights, "encoder.model.", config["model"], config["tokenizer"], config["max_length"], config["pooling"]
        )
        self.head: nn.Linear | None = None
        if config["scoring"] == "cross":
            self.head = nn.Linear(self.encoder.dim, 1).to(self.encoder.device)
            self.head.load_state_dict({name: torch.from_numpy(weights[f"head.{name}"]) for name in ("weight", "bias")})

    @torch.inference_mode()
    def predict(self, inputs: pd.DataFrame, *, batch_size: int = 32) -> pd.DataFrame:
        """Score each row's document for its query, and rank the documents of each query.

        Args:
            inputs: columns ``query`` and ``document`` with texts; rows with equal queries are ranked together. If there
                is a column ``bm25`` with BM25's scores, ranks use both scores, with the weight chosen in training. With
                scoring bi, a text without tokens has score 0.
            batch_size: number of texts encoded at once.

        Returns:
            In the order of the input: ``query``, ``document``, ``score`` of the model; with ``bm25`` also ``fused``,
            the interpolated score in standard deviations; and ``rank``, from 1 within the query, ties in input order.

        Raises:
            ValueError: a column is missing, or has missing values, non-texts, or non-numbers in ``bm25``.
        """
        queries, docs = text_columns(inputs, "query", "document")
        scores = self._scores(queries, docs, batch_size).cpu().numpy()
        output = pd.DataFrame({"query": queries, "document": docs, "score": scores})
        by = "score"
        if "bm25" in inputs.columns:
            weight = self.config["bm25_weight"]
            by = "fused"
            bm25 = _standardised(pd.Series(number_column(inputs, "bm25")), output["query"])
            output["fused"] = (1 - weight) * _standardised(output["score"], output["query"]) + weight * bm25
        output["rank"] = output.groupby("query")[by].rank(method="first", ascending=False).astype(np.int64)
        return output

    def _scores(self, queries: list[str], docs: list[str], batch_size: int) -> torch.Tensor:
        """The model's score of each row, (n,)."""
        if self.head is not None:
            scores: torch.Tensor = self.head(self.encoder(list(zip(queries, docs)), batch_size).vectors).squeeze(1)
            return scores
        sides = (self.encoder(side, batch_size).vectors for side in (queries, docs))
        query, doc = (nn.functional.normalize(side, eps=1e-8) for side in sides)
        return (query * doc).sum(1) / float(self.config["temperature"])


def _standardised(scores: pd.Series[float], queries: pd.Series[str]) -> pd.Series[float]:
    """Scores with mean 0 and standard deviation 1 within each query; 0 if they are all equal."""
    of_query = scores.groupby(queries)
    deviation = of_query.transform("std", ddof=0)
    return (scores - of_query.transform("mean")) / deviation.where(deviation > 1e-6, 1.0)
