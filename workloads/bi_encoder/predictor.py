"""Predictions of a trained sentence encoder: vectors of sentences, or similarities of pairs.

Exported with the model together with ``served_text.py``, ``search.py``, ``approximate.py`` and the rule for abstaining;
needs nothing else of the package.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ..abstention.decision import Rule, rule
from ..abstention.scores import by
from ..encoders.approximate import CollectionSearch, check
from ..encoders.served_text import ServedTextEncoder, text_columns

_QUERY = "query"
_SINGLE, _PAIR = "sentence", ("sentence1", "sentence2")
_FLOOR = 1e-8  # smallest norm, so that an empty sentence has similarity 0


class Predictor:
    """Embeds sentences and compares pairs of them."""

    def __init__(self, weights: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
        """Rebuild the encoder.

        Args:
            weights: ``model.*`` by the names of the transformer's state; ``tokenizer``, the bytes of its
                ``tokenizer.json``; ``index.vectors`` (N, d) and ``index.doc_ids`` of a collection, if it has one.
            config: ``model``, the transformer's configuration; ``pooling``: mean, cls or max; ``max_length`` in tokens;
                ``scoring``, bi or cross.
        """
        self.head: tuple[torch.Tensor, torch.Tensor] | None = None
        self.config = config
        self.table = {name: side for name, side in weights.items() if name.startswith("abstention.")}
        self.doc_ids: list[str] = []
        self._search = CollectionSearch()
        tokenizer = bytes(weights["tokenizer"].tobytes()).decode()
        self.encoder = ServedTextEncoder(
            weights, "model.", config["model"], tokenizer, int(config["max_length"]), config["pooling"]
        )
        if "index.vectors" in weights:
            self.doc_ids = json.loads(bytes(weights["index.doc_ids"].tobytes()))
            self.vectors = torch.from_numpy(np.array(weights["index.vectors"])).to(self.encoder.device)
        if config.get("scoring") == "cross":
            weight, bias = (torch.from_numpy(np.array(weights[f"head.{name}"])) for name in ("weight", "bias"))
            self.head = weight.to(self.encoder.device), bias.to(self.encoder.device)

    @torch.inference_mode()
    def predict(
        self, inputs: pd.DataFrame, *, unit_length: bool = False, batch_size: int = 64, k: int = 10,
        recall: float = 1.0, **abstention: Any,
    ) -> pd.DataFrame:  # fmt: skip
        """Embed each ``sentence``, and compare each ``sentence1`` with its ``sentence2``, in the order of the input.

        Args:
            inputs: column ``sentence``, or ``sentence1`` and ``sentence2``; or all three, where each row has either
                the first or the other two. An empty text has the zero vector, and similarity 0 with any text.
                Of a model with a collection also ``query`` alone, with texts.
            unit_length: divide each vector by its length, so that inner products are cosines.
            batch_size: number of texts encoded at once.
            k: number of documents for a query.
            recall: below 1 a large collection is searched by lists, so many that this share of the best documents is
                found; see ``approximate.py``. The first call then makes them.
            abstention: of a model with a collection, ``risk`` and what it is promised by; see ``PARAMS`` and ``rule``
                in ``decision.py``.

        Returns:
            ``vector``, d numbers, of a sentence; ``similarity``, a cosine from -1 to 1, of a pair, or a cross-encoder's
            from 0 to 1, which has pairs only; and ``truncated``:
            whether a text of the row was longer than the encoder's limit and was cut. For queries one row per query
            and document, best first: ``query``, ``rank`` from 1, ``document`` and ``score``, a cosine; with ``recall``
            below 1 also ``recall``, as it was measured against exact search; with ``risk`` also ``abstain`` and its
            ``reason``. An empty query has no rows.

        Raises:
            ValueError: columns are missing, a row is neither a sentence nor a pair (the message names its number),
                ``batch_size`` or ``k`` is below 1, ``recall`` is not valid, or the risk cannot be promised.
        """
        promised = rule(self.table, self.config, **abstention)
        if self.doc_ids and _QUERY in inputs.columns:
            check(recall, promised is not None)
            return self._searched(inputs, batch_size, k, recall, promised)
        if promised is not None:
            raise ValueError("risk= is promised for queries of the collection, in a column 'query'")
        if self.head is not None:
            return self._compared(inputs, self.head, batch_size)
        texts, first, second = _rows(inputs)
        vectors, _, cut = self.encoder(texts, batch_size)
        paired = second >= 0
        output: dict[str, Any] = {}
        if _SINGLE in inputs.columns:
            scaled = functional.normalize(vectors, eps=_FLOOR) if unit_length else vectors
            each = scaled[first].cpu().numpy()
            output["vector"] = [None if pair else vector for pair, vector in zip(paired, each)]
        if _PAIR[0] in inputs.columns:
            similarity = np.full(len(inputs), np.nan, np.float32)
            cosine = functional.cosine_similarity(vectors[first[paired]], vectors[second[paired]], eps=_FLOOR)
            similarity[paired] = cosine.clamp(-1, 1).cpu().numpy()
            output["similarity"] = similarity
        return pd.DataFrame({**output, "truncated": cut[first] | (paired & cut[second])}, index=inputs.index)

    def _searched(
        self, inputs: pd.DataFrame, batch_size: int, k: int, recall: float, promised: Rule | None
    ) -> pd.DataFrame:
        """The best documents of the collection for each query."""
        (queries,) = text_columns(inputs, _QUERY)
        vectors, empty, _ = self.encoder(queries, batch_size)
        own = np.flatnonzero(~empty)
        unit = functional.normalize(vectors, eps=_FLOOR)[torch.from_numpy(own).to(vectors.device)]
        depth = self.config["depth"] if promised is not None else 0
        most = max(k, depth) if k > 0 else k
        *searched, measured = self._search(unit, self.vectors, len(self.vectors), most, recall)
        scores, docs = (side.cpu().numpy() for side in searched)
        number = scores[:, :k].shape[1]
        output = pd.DataFrame(
            {
                "query": [queries[row] for row in own.tolist() for _ in range(number)],
                "rank": np.tile(np.arange(1, number + 1), len(own)),
                "document": [self.doc_ids[doc] for doc in docs[:, :k].ravel().tolist()],
                "score": scores[:, :k].ravel().astype(np.float32),
            }
        )
        if recall < 1:
            output = output.assign(recall=measured)[docs.ravel() >= 0]
        if promised is not None:
            decisive = by(promised.score, scores[:, :depth], promised.k, promised.temperature)
            promised.spread(output, decisive, np.repeat(np.arange(len(own)), number))
        return output

    def _compared(self, inputs: pd.DataFrame, head: tuple[torch.Tensor, torch.Tensor], batch_size: int) -> pd.DataFrame:
        """Similarities of pairs by a cross-encoder."""
        if _SINGLE in inputs.columns:
            raise ValueError("a cross-encoder compares pairs and has no vectors: drop the column 'sentence'")
        texts, first, second = _rows(inputs)
        pairs = [(texts[one], texts[other]) for one, other in zip(first, second)]
        vectors, _, cut = self.encoder(pairs, batch_size)
        similarity = functional.linear(vectors, *head).squeeze(1).sigmoid().cpu().numpy()
        return pd.DataFrame({"similarity": similarity, "truncated": cut}, index=inputs.index)


def _rows(inputs: pd.DataFrame) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """All texts, and for each row the positions of its first and second text; -1 where it has no second one."""
    columns = [name for name in (_SINGLE, *_PAIR) if name in inputs.columns]
    if _SINGLE not in columns and columns != list(_PAIR):
        raise ValueError(
            f"the input needs a column 'sentence', or 'sentence1' and 'sentence2', got {list(inputs.columns)}"
        )
    texts: list[str] = []
    positions = np.full((2, len(inputs)), -1, np.int64)
    for row, values in enumerate(zip(*(inputs[name].tolist() for name in columns))):
        given = {name: value for name, value in zip(columns, values) if not _missing(value)}
        if set(given) not in ({_SINGLE}, set(_PAIR)):
            raise ValueError(
                f"row {row} of the input is neither a sentence nor a pair: it has {list(given) or 'no text'}"
            )
        for side, (name, text) in enumerate(given.items()):
            if not isinstance(text, str):
                raise ValueError(f"column {name} holds texts, got {text!r} in row {row} of the input")
            positions[side, row] = len(texts)
            texts.append(text)
    return texts, positions[0], positions[1]


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value))
