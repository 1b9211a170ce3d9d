"""Serve a trained sentence encoder: sentences in, vectors out; or pairs of sentences in, similarities out.

This one file goes to the registry. It needs NumPy, pandas, PyTorch, tokenizers and transformers, and uses CUDA where
it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import tokenizers
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers import AutoConfig, AutoModel

_SINGLE, _PAIR = "sentence", ("sentence1", "sentence2")
_FLOOR = 1e-8  # of a norm, so that an empty sentence has similarity 0


class Predictor:
    """Vectors of sentences, and the cosine of two."""

    def __init__(self, weights: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
        """Rebuild the encoder.

        Args:
            weights: ``model.*`` by the names of the transformer's state; ``tokenizer``, the bytes of its
                ``tokenizer.json``.
            config: ``model``, the transformer's configuration; ``pooling``: mean, cls or max; ``max_length`` in tokens.
        """
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = tokenizers.Tokenizer.from_str(bytes(weights["tokenizer"].tobytes()).decode())
        self.pooling, self.max_length = config["pooling"], int(config["max_length"])
        self.model = AutoModel.from_config(AutoConfig.for_model(**config["model"]))  # type: ignore[no-untyped-call]
        if hasattr(self.model, "pooler"):
            self.model.pooler = None
        own = {name.removeprefix("model."): value for name, value in weights.items() if name.startswith("model.")}
        self.model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in own.items()})
        self.model.to(self.device).eval()

    @torch.inference_mode()
    def predict(self, inputs: pd.DataFrame, *, unit_length: bool = False, batch_size: int = 64) -> pd.DataFrame:
        """Embed each ``sentence``, and compare each ``sentence1`` with its ``sentence2``, in the order of the input.

        Args:
            inputs: column ``sentence``, or ``sentence1`` and ``sentence2``; or all three, a row having either the one
                or the other two. An empty text has the zero vector, and similarity 0 with any.
            unit_length: divide each vector by its length, so that inner products are cosines.
            batch_size: texts that are read at once.

        Returns:
            ``vector``, d numbers, of a sentence; ``similarity``, a cosine from -1 to 1, of a pair; and ``truncated``:
            whether a text of the row is longer than the encoder takes and was cut.

        Raises:
            ValueError: the columns are missing, a row is neither a sentence nor a pair (its number is named), or
                ``batch_size`` is below 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        texts, first, second = _rows(inputs)
        vectors, cut = self._vectors(texts, batch_size)
        paired = second >= 0
        found: dict[str, Any] = {}
        if _SINGLE in inputs.columns:
            shown = functional.normalize(vectors, eps=_FLOOR) if unit_length else vectors
            each = shown[torch.from_numpy(first).to(self.device)].cpu().numpy()
            found["vector"] = [None if pair else vector for pair, vector in zip(paired, each)]
        if _PAIR[0] in inputs.columns:
            one, other = (vectors[torch.from_numpy(side[paired]).to(self.device)] for side in (first, second))
            similarity = np.full(len(inputs), np.nan, np.float32)
            similarity[paired] = functional.cosine_similarity(one, other, eps=_FLOOR).clamp(-1, 1).cpu().numpy()
            found["similarity"] = similarity
        return pd.DataFrame({**found, "truncated": cut[first] | (paired & cut[second])}, index=inputs.index)

    def _vectors(self, texts: list[str], batch_size: int) -> tuple[torch.Tensor, NDArray[np.bool_]]:
        """Vectors (n, d), and which texts were cut. Texts of like length are read together, equal ones once."""
        different = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        bare = self.tokenizer.encode_batch_fast(list(different), add_special_tokens=False)
        lengths = np.array([len(encoding.ids) for encoding in bare], np.int64)
        limit = self.max_length - self.tokenizer.num_special_tokens_to_add(is_pair=False)
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_length)
        framed = self.tokenizer.encode_batch_fast(list(different))
        vectors = torch.zeros(len(different), self.model.config.hidden_size, device=self.device)
        order = np.argsort(lengths, kind="stable")
        order = order[lengths[order] > 0]
        for rows in np.split(order, range(batch_size, len(order), batch_size)):
            if len(rows):
                ids = [torch.tensor(framed[row].ids) for row in rows]
                vectors[torch.from_numpy(rows).to(self.device)] = self._read(ids)
        places = np.array([different[text] for text in texts], np.int64)
        return vectors[torch.from_numpy(places).to(self.device)], (lengths > limit)[places]

    def _read(self, ids: list[torch.Tensor]) -> torch.Tensor:
        """Vectors of a batch, (b, d)."""
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).to(self.device)
        lengths = torch.tensor([len(one) for one in ids], device=self.device).unsqueeze(1)
        mask = torch.arange(padded.shape[1], device=self.device) < lengths
        hidden = self.model(input_ids=padded, attention_mask=mask.long()).last_hidden_state
        if self.pooling == "cls":
            return torch.as_tensor(hidden[:, 0])
        real = mask.unsqueeze(-1)
        if self.pooling == "max":
            return torch.as_tensor(hidden.masked_fill(~real, -torch.inf).amax(1))
        return torch.as_tensor(hidden.masked_fill(~real, 0).sum(1) / lengths)


def _rows(inputs: pd.DataFrame) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """All texts, and of each row the places of its first and second one; -1 where it is a sentence alone."""
    columns = [name for name in (_SINGLE, *_PAIR) if name in inputs.columns]
    if _SINGLE not in columns and columns != list(_PAIR):
        raise ValueError(
            f"the input needs a column 'sentence', or 'sentence1' and 'sentence2', got {list(inputs.columns)}"
        )
    texts: list[str] = []
    places = np.full((2, len(inputs)), -1, np.int64)
    for row, values in enumerate(zip(*(inputs[name].tolist() for name in columns))):
        given = {name: value for name, value in zip(columns, values) if not _missing(value)}
        if set(given) not in ({_SINGLE}, set(_PAIR)):
            raise ValueError(
                f"row {row} of the input is neither a sentence nor a pair: it has {list(given) or 'no text'}"
            )
        for place, (name, text) in enumerate(given.items()):
            if not isinstance(text, str):
                raise ValueError(f"column {name} holds texts, got {text!r} in row {row} of the input")
            places[place, row] = len(texts)
            texts.append(text)
    return texts, places[0], places[1]


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value))
