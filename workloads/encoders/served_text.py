"""Text encoder of a served model: built from arrays and settings, returns vectors of texts.

Every predictor of texts is exported with this file, so it imports nothing else of the package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import tokenizers
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModel

REQUIREMENTS = ("numpy", "pandas", "tokenizers", "torch", "transformers")
"""Packages that this file imports."""


class Embedded(NamedTuple):
    """Vectors of n texts, (n, d) float32; masks (n,) of texts without tokens and of truncated texts."""

    vectors: torch.Tensor
    empty: NDArray[np.bool_]
    cut: NDArray[np.bool_]


class ServedTextEncoder:
    """A transformer with its tokenizer and pooling, on CUDA if available."""

    def __init__(
        self,
        weights: Mapping[str, NDArray[Any]],
        prefix: str,
        settings: Mapping[str, Any],
        tokenizer: str,
        max_length: int,
        pooling: str = "mean",
    ) -> None:
        """Rebuild the encoder.

        Args:
            weights: arrays of a model. Those whose names begin with ``prefix`` are the transformer's.
            prefix: prefix of the names of the transformer's state.
            settings: the transformer's configuration, with ``model_type``.
            tokenizer: the text of a ``tokenizer.json``.
            max_length: maximal number of tokens of a text, with special tokens.
            pooling: mean, cls or max.
        """
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.pooling = pooling
        self.tokenizer = tokenizers.Tokenizer.from_str(tokenizer)
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(max_length)
        self.model = AutoModel.from_config(AutoConfig.for_model(**settings))  # type: ignore[no-untyped-call]
        if hasattr(self.model, "pooler"):
            self.model.pooler = None  # unused, and not stored
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        self.model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in own.items()})
        self.model.to(self.device).eval()
        self.typed = getattr(self.model.config, "type_vocab_size", 0) > 1

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return int(self.model.config.hidden_size)

    def __call__(self, texts: Sequence[str | tuple[str, str]], batch_size: int) -> Embedded:
        """Embed texts, or pairs of texts as one sequence each.

        Equal texts are encoded once, texts of similar length together. A text without tokens of its own has
        the zero vector; so has a pair, where the tokenizer adds no special tokens.

        Raises:
            ValueError: ``batch_size`` is below 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        encodings = self.tokenizer.encode_batch_fast(list(rows))
        special = self.tokenizer.num_special_tokens_to_add(is_pair=False)
        empty = np.array([len(one.ids) <= special for one in encodings], np.bool_)
        cut = np.array([bool(one.overflowing) for one in encodings], np.bool_)
        vectors = torch.zeros(len(rows), self.dim, device=self.device)
        order = sorted(np.flatnonzero(~empty).tolist(), key=lambda row: len(encodings[row].ids))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            vectors[batch] = self._read([encodings[row] for row in batch])
        of_text = np.array([rows[text] for text in texts], np.int64)
        return Embedded(vectors[torch.from_numpy(of_text).to(self.device)], empty[of_text], cut[of_text])

    def _read(self, encodings: Sequence[tokenizers.Encoding]) -> torch.Tensor:
        """Vectors of a batch, (b, d)."""
        ids, types, mask = (self._padded(encodings, side) for side in ("ids", "type_ids", "attention_mask"))
        typed = {"token_type_ids": types} if self.typed else {}
        hidden: torch.Tensor = self.model(input_ids=ids, attention_mask=mask, **typed).last_hidden_state.float()
        if self.pooling == "cls":
            return hidden[:, 0]
        real = mask.bool().unsqueeze(2)
        if self.pooling == "max":
            return hidden.masked_fill(~real, -torch.inf).amax(1)
        return hidden.masked_fill(~real, 0).sum(1) / real.sum(1)

    def _padded(self, encodings: Sequence[tokenizers.Encoding], side: str) -> torch.Tensor:
        values = [torch.tensor(getattr(one, side)) for one in encodings]
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True).to(self.device)


def passages(text: str, words: int, stride: int, most: int) -> list[str]:
    """Overlapping passages of a text, ``words`` words each, every ``stride`` words, ``most`` of them at most.

    Dai and Callan, SIGIR 2019. A text that is not longer than a passage stays as it is.
    """
    every = text.split()
    if len(every) <= words:
        return [text]
    count = min(most, 1 + -((words - len(every)) // stride))
    return [" ".join(every[first : first + words]) for first in range(0, count * stride, stride)]


def text_columns(inputs: pd.DataFrame, *names: str) -> list[list[str]]:
    """Texts of each column.

    Raises:
        ValueError: a column is missing, or a value is missing or not text; the message names the row.
    """
    if not set(names) <= set(inputs.columns):
        needed = f"column{'s' * (len(names) > 1)} {' and '.join(map(repr, names))}"
        raise ValueError(f"the input needs the {needed}, got {list(inputs.columns)}")
    columns = [inputs[name].tolist() for name in names]
    for name, values in zip(names, columns):
        for row, value in enumerate(values):
            if not isinstance(value, str):
                got = "nothing" if pd.api.types.is_scalar(value) and pd.isna(value) else repr(value)
                raise ValueError(f"column {name!r} holds texts, got {got} in row {row} of the input")
    return columns


def number_column(inputs: pd.DataFrame, name: str) -> NDArray[np.float64]:
    """Numbers of a column, within the range of float32.

    Raises:
        ValueError: a value is missing or not such a number; the message names the row.
    """
    numbers = pd.to_numeric(inputs[name], errors="coerce").to_numpy(np.float64)
    fits = np.abs(numbers) <= np.finfo(np.float32).max  # false for NaN
    if not fits.all():
        row = int((~fits).argmax())
        raise ValueError(f"column {name!r} holds numbers, got {inputs[name].tolist()[row]!r} in row {row} of the input")
    return numbers
