"""Predictions of a trained text ranker: scores and ranks of the documents that come with each query.

Exported with the model together with ``served_text.py`` and the rule for abstaining; needs nothing else of the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from ..abstention.decision import rule
from ..abstention.scores import BM25
from ..encoders.served_text import ServedTextEncoder, number_column, passages, text_columns


class Predictor:
    """Ranks the documents given with a query."""

    def __init__(self, weights: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
        """Rebuild the model.

        Args:
            weights: weights of the encoder, and ``head.weight`` and ``head.bias`` of a cross-encoder.
            config: ``model``, the transformer's configuration; ``tokenizer``, the text of a tokenizer.json;
                ``max_length``; ``scoring``, cross or bi; ``pooling``; ``temperature``; ``bm25_weight``; ``passages``,
                words, stride and number of a document's passages, or null.
        """
        self.config = config
        self.table = {name: side for name, side in weights.items() if name.startswith("abstention.")}
        self.encoder = ServedTextEncoder(
            weights, "encoder.model.", config["model"], config["tokenizer"], config["max_length"], config["pooling"]
        )
        self.head: nn.Linear | None = None
        if config["scoring"] == "cross":
            self.head = nn.Linear(self.encoder.dim, 1).to(self.encoder.device)
            self.head.load_state_dict({name: torch.from_numpy(weights[f"head.{name}"]) for name in ("weight", "bias")})

    @torch.inference_mode()
    def predict(self, inputs: pd.DataFrame, *, batch_size: int = 32, **abstention: Any) -> pd.DataFrame:
        """Score each row's document for its query, and rank the documents of each query.

        Args:
            inputs: columns ``query`` and ``document`` with texts; rows with equal queries are ranked together. If there
                is a column ``bm25`` with BM25's scores, ranks use both scores, with the weight chosen in training. With
                scoring bi, a text without tokens has score 0.
            batch_size: number of texts encoded at once.
            abstention: of a model with an abstention part, ``risk`` and what it is promised by; see ``PARAMS`` and
                ``rule`` in ``decision.py``. The documents of a query are then all of its first-stage candidates.

        Returns:
            In the order of the input: ``query``, ``document``, ``score`` of the model; with ``bm25`` also ``fused``,
            the interpolated score in standard deviations; and ``rank``, from 1 within the query, ties in input order.
            With ``risk`` also ``abstain`` and its ``reason``.

        Raises:
            ValueError: a column is missing, or has missing values, non-texts, or non-numbers in ``bm25``, or the risk
                cannot be promised.
        """
        fused = "bm25" in inputs.columns
        promised = rule(self.table, self.config, system="fused_" if fused else "", **abstention)
        queries, docs = text_columns(inputs, "query", "document")
        scores = self._scores(queries, docs, batch_size).cpu().numpy()
        output = pd.DataFrame({"query": queries, "document": docs, "score": scores})
        by = "score"
        if fused:
            weight = self.config["bm25_weight"]
            by = "fused"
            bm25 = _standardised(pd.Series(number_column(inputs, "bm25")), output["query"])
            output["fused"] = (1 - weight) * _standardised(output["score"], output["query"]) + weight * bm25
        output["rank"] = output.groupby("query")[by].rank(method="first", ascending=False).astype(np.int64)
        if promised is not None and queries:
            values = output[by].to_numpy()
            if promised.score == BM25:
                if not fused:
                    raise ValueError("abstain_by=bm25 needs the column bm25")
                values = number_column(inputs, "bm25")
            promised.mark(output, values)
        return output

    def _scores(self, queries: list[str], docs: list[str], batch_size: int) -> torch.Tensor:
        """The model's score of each row, (n,); of several passages of a document the best one's."""
        split = self.config.get("passages")
        if split is not None:
            parts = [passages(text, *split) for text in docs]
            every = self._of_sequences(
                [query for query, own in zip(queries, parts) for _ in own],
                [passage for own in parts for passage in own],
                batch_size,
            )
            sizes = [len(own) for own in parts]
            return torch.stack([own.amax() for own in torch.split(every, sizes)]) if parts else every
        return self._of_sequences(queries, docs, batch_size)

    def _of_sequences(self, queries: list[str], docs: list[str], batch_size: int) -> torch.Tensor:
        """The model's score of each query with a text, (n,)."""
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
