"""Serve a trained text ranker: a query and documents in, scores and ranks out.

This one file goes to the registry. It needs PyTorch, transformers, tokenizers, NumPy and pandas, and uses a CUDA device
where there is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModel

_PREFIX = "encoder.model."


class Predictor:
    """Ranks the documents that a query comes with."""

    def __init__(self, weights: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
        """Take the trained model.

        Args:
            weights: of the encoder, and ``head.weight`` and ``head.bias`` of a cross-encoder.
            config: ``model``, the transformer's own; ``tokenizer``, a tokenizer.json; ``max_length``; ``scoring``,
                cross or bi; ``pooling``; ``temperature``; ``bm25_weight``.
        """
        self.config = config
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = AutoModel.from_config(AutoConfig.for_model(**config["model"]))  # type: ignore[no-untyped-call]
        model.load_state_dict(
            {
                name.removeprefix(_PREFIX): torch.from_numpy(array)
                for name, array in weights.items()
                if name.startswith(_PREFIX)
            },
            strict=False,  # a pooler that nothing reads is not stored
        )
        self.model = model.to(self.device).eval()
        self.head: nn.Linear | None = None
        if config["scoring"] == "cross":
            self.head = nn.Linear(weights["head.weight"].shape[1], 1).to(self.device)
            self.head.load_state_dict({name: torch.from_numpy(weights[f"head.{name}"]) for name in ("weight", "bias")})
        self.tokenizer = Tokenizer.from_str(config["tokenizer"])
        self.tokenizer.enable_truncation(config["max_length"], strategy="longest_first")
        self.tokenizer.enable_padding()

    @torch.inference_mode()
    def predict(self, inputs: pd.DataFrame, *, batch_size: int = 32) -> pd.DataFrame:
        """Score each row's document for its query, and rank the documents of each query.

        Args:
            inputs: columns ``query`` and ``document``, a text each; rows of equal queries are ranked together. With a
                column ``bm25``, BM25's score of the row, ranks go by both, with the weight found in training. With
                scoring bi a text without tokens has score 0 with any.
            batch_size: texts that are read at once.

        Returns:
            In the order of the input: ``query``, ``document``, ``score``, the model's; with ``bm25`` also ``fused``, in
            standard deviations; and ``rank``, from 1 within the query, ties in the order of the input.

        Raises:
            ValueError: a column is missing, or holds a gap, no text or, of ``bm25``, no number.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        queries, docs = (_texts(inputs, name) for name in ("query", "document"))
        scores = self._scores(queries, docs, batch_size)
        found = pd.DataFrame({"query": queries, "document": docs, "score": scores})
        by = "score"
        if "bm25" in inputs.columns:
            weight, by = self.config["bm25_weight"], "fused"
            bm25 = _standardised(_numbers(inputs, "bm25"), found["query"])
            found["fused"] = (1 - weight) * _standardised(found["score"], found["query"]) + weight * bm25
        found["rank"] = found.groupby("query")[by].rank(method="first", ascending=False).astype(np.int64)
        return found

    def _scores(self, queries: list[str], docs: list[str], batch_size: int) -> NDArray[np.float32]:
        if self.head is not None:
            vectors = self._vectors(list(zip(queries, docs)), batch_size)
            scores: NDArray[np.float32] = self.head(vectors).squeeze(1).cpu().numpy()
            return scores
        asked, query_place = np.unique(np.array(queries, object), return_inverse=True)
        read, doc_place = np.unique(np.array(docs, object), return_inverse=True)
        sides = (nn.functional.normalize(self._vectors(list(side), batch_size), eps=1e-8) for side in (asked, read))
        first, second = (
            side[torch.from_numpy(place).to(self.device)] for side, place in zip(sides, (query_place, doc_place))
        )
        cosine: NDArray[np.float32] = ((first * second).sum(1) / self.config["temperature"]).cpu().numpy()
        return cosine

    def _vectors(self, texts: list[Any], batch_size: int) -> torch.Tensor:
        """The pooled vectors of texts or pairs of texts, (n, d); texts of like length are read together.

        A text without tokens has the zero vector, as in training; a pair never does.
        """
        order = sorted(range(len(texts)), key=lambda place: sum(map(len, texts[place])))
        vectors = torch.zeros(len(texts), self.model.config.hidden_size, device=self.device)
        for first in range(0, len(order), batch_size):
            rows = self._worded(texts, order[first : first + batch_size])
            if not rows:
                continue
            read = self.tokenizer.encode_batch_fast([texts[row] for row in rows])
            ids, types, mask = (
                torch.tensor([getattr(one, side) for one in read], device=self.device)
                for side in ("ids", "type_ids", "attention_mask")
            )
            typed = {"token_type_ids": types} if getattr(self.model.config, "type_vocab_size", 0) > 1 else {}
            hidden = self.model(input_ids=ids, attention_mask=mask, **typed).last_hidden_state
            vectors[rows] = self._pooled(hidden, mask.unsqueeze(2)).float()
        return vectors

    def _worded(self, texts: list[Any], rows: list[int]) -> list[int]:
        """Those of the rows whose text has a token beside the special ones, and all that are pairs of texts."""
        if self.head is not None:
            return rows
        bare = self.tokenizer.encode_batch_fast([texts[row] for row in rows], add_special_tokens=False)
        return [row for row, one in zip(rows, bare) if any(one.attention_mask)]

    def _pooled(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.config["pooling"] == "cls":
            return hidden[:, 0]
        if self.config["pooling"] == "max":
            return hidden.masked_fill(mask == 0, -torch.inf).amax(1)
        return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)


def _texts(inputs: pd.DataFrame, name: str) -> list[str]:
    if name not in inputs.columns:
        raise ValueError(f"the input needs the columns 'query' and 'document', got {list(inputs.columns)}")
    values = inputs[name].tolist()
    for row, value in enumerate(values):
        if not isinstance(value, str):
            got = "nothing" if value is None or value != value else repr(value)
            raise ValueError(f"column {name!r} holds texts, got {got} in row {row}")
    return values


def _numbers(inputs: pd.DataFrame, name: str) -> pd.Series[float]:
    numbers = pd.to_numeric(inputs[name], errors="coerce").astype(float).reset_index(drop=True)
    if numbers.isna().any():
        row = int(numbers.isna().to_numpy().argmax())
        raise ValueError(f"column {name!r} holds numbers, got {inputs[name].iloc[row]!r} in row {row}")
    return numbers


def _standardised(scores: pd.Series[float], queries: pd.Series[str]) -> pd.Series[float]:
    """Mean 0 and deviation 1 within each query; 0 where its scores are equal."""
    of_query = scores.groupby(queries)
    deviation = of_query.transform("std", ddof=0)
    return (scores - of_query.transform("mean")) / deviation.where(deviation > 1e-6, 1.0)
