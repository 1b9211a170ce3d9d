"""Predictions of a trained sentence encoder: vectors of sentences, or similarities of pairs.

Exported with the model together with ``served_text.py``; needs nothing else of the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ..encoders.served_text import ServedTextEncoder

_SINGLE, _PAIR = "sentence", ("sentence1", "sentence2")
_FLOOR = 1e-8  # smallest norm, so that an empty sentence has similarity 0


class Predictor:
    """Embeds sentences and compares pairs of them."""

    def __init__(self, weights: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
        """Rebuild the encoder.

        Args:
            weights: ``model.*`` by the names of the transformer's state; ``tokenizer``, the bytes of its
                ``tokenizer.json``.
            config: ``model``, the transformer's configuration; ``pooling``: mean, cls or max; ``max_length`` in tokens.
        """
        tokenizer = bytes(weights["tokenizer"].tobytes()).decode()
        self.encoder = ServedTextEncoder(
            weights, "model.", config["model"], tokenizer, int(config["max_length"]), config["pooling"]
        )

    @torch.inference_mode()
    def predict(self, inputs: pd.DataFrame, *, unit_length: bool = False, batch_size: int = 64) -> pd.DataFrame:
        """Embed each ``sentence``, and compare each ``sentence1`` with its ``sentence2``, in the order of the input.

        Args:
            inputs: column ``sentence``, or ``sentence1`` and ``sentence2``; or all three, where each row has either
                the first or the other two. An empty text has the zero vector, and similarity 0 with any text.
            unit_length: divide each vector by its length, so that inner products are cosines.
            batch_size: number of texts encoded at once.

        Returns:
            ``vector``, d numbers, of a sentence; ``similarity``, a cosine from -1 to 1, of a pair; and ``truncated``:
            whether a text of the row was longer than the encoder's limit and was cut.

        Raises:
            ValueError: columns are missing, a row is neither a sentence nor a pair (the message names its number), or
                ``batch_size`` is below 1.
        """
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
