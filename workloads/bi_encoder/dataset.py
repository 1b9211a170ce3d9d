"""The pairs of a dataset as token ids, tokenised once per process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.data.pairs.types import HIGHEST, Pairs, SentencePairs
from workloads.encoders.tokens import Tokenizer, Tokens
from workloads.memory import BoundedCache


@dataclass(frozen=True, eq=False)
class TokenisedPairs:
    """n pairs over m distinct texts.

    ``tokens``: the tokens of the texts. ``pairs`` (n, 2) int64: the two texts of each pair; of a cross-encoder (n, 1),
    the pair's own sequence. ``grades`` (n,) float32,
    from 0 to 5. Pairs and grades stay on the host; each step copies its batch to the device.
    """

    tokens: Tokens
    pairs: NDArray[np.int64]
    grades: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.grades)


@dataclass(frozen=True, eq=False)
class BiEncoderData:
    """Train, validation and test parts, tokenised by one tokenizer."""

    train: TokenisedPairs
    validation: TokenisedPairs
    test: TokenisedPairs


def training_texts(pairs: SentencePairs, holdout: bool) -> Pairs:
    """The training pairs; without ``holdout`` they include the validation part."""
    return pairs.train if holdout or pairs.validation is None else pairs.train + pairs.validation


def sentences(part: TokenisedPairs) -> TokenisedPairs:
    """The distinct sentences of a part as pairs of a sentence and itself, all of the highest score (SimCSE)."""
    own = np.arange(len(part.tokens))
    return TokenisedPairs(part.tokens, np.stack([own, own], 1), np.full(len(own), HIGHEST, np.float32))


@BoundedCache
def prepare(pairs: SentencePairs, holdout: bool, tokenizer: Tokenizer, joined: bool = False) -> BiEncoderData:
    """Tokenise the dataset, each text or, ``joined``, each pair as one sequence. Cached in the process."""
    parts = (training_texts(pairs, holdout), pairs.validation, pairs.test)
    return BiEncoderData(*((_joined if joined else _part)(part, tokenizer) for part in parts if part is not None))


def _joined(pairs: Pairs, tokenizer: Tokenizer) -> TokenisedPairs:
    tokens = tokenizer.pairs(tokenizer.bare(pairs.first), tokenizer.bare(pairs.second))
    return TokenisedPairs(tokens, np.arange(len(tokens))[:, None], pairs.scores)


def _part(pairs: Pairs, tokenizer: Tokenizer) -> TokenisedPairs:
    numbers: dict[str, int] = {}
    both = [[numbers.setdefault(text, len(numbers)) for text in texts] for texts in zip(pairs.first, pairs.second)]
    return TokenisedPairs(tokenizer(list(numbers)), np.array(both, np.int64).reshape(-1, 2), pairs.scores)
