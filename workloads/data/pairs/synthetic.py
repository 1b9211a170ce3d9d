"""Generated sentence pairs with a planted similarity: the share of concepts that two sentences have in common.

A sentence names some concepts, each by one of several synonyms, among filler words. The score of a pair is 5 times the
share of concepts that are in both, by any synonym. So counting common words gives wrong scores, and a model that learns
the synonyms gives right ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workloads.data.draws import below, distinct
from workloads.data.pairs.types import HIGHEST, KIND, Pairs, SentencePairs
from workloads.data.source import Dataset

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Planted:
    """Parameters of the generator.

    There are ``concepts`` with ``words`` synonyms each. A sentence names ``named`` of them and has up to ``filler`` of
    ``common`` filler words.
    """

    train: int = 640
    validation: int = 160
    test: int = 160
    concepts: int = 24
    words: int = 2
    named: int = 4
    filler: int = 5
    common: int = 12
    seed: int = 20


def generate(planted: Planted) -> SentencePairs:
    """Draw the parts. All draws come from the raw stream of PCG64: the same on every machine."""
    import numpy as np

    bits = np.random.PCG64(planted.seed)
    return SentencePairs(*(_pairs(bits, planted, count) for count in (planted.train, planted.validation, planted.test)))


def _pairs(bits: np.random.PCG64, planted: Planted, count: int) -> Pairs:
    import numpy as np

    first = []
    second = []
    scores = []
    for _ in range(count):
        shared = below(bits, planted.named + 1)
        drawn = distinct(bits, planted.concepts, planted.concepts)
        ours = drawn[: planted.named]
        others = drawn[planted.named : 2 * planted.named - shared]
        first.append(_sentence(bits, planted, ours))
        second.append(_sentence(bits, planted, ours[:shared] + others))
        scores.append(HIGHEST * shared / planted.named)
    return Pairs(first, second, np.array(scores, np.float32))


def _sentence(bits: np.random.PCG64, planted: Planted, concepts: list[int]) -> str:
    words = [f"c{concept}w{below(bits, planted.words)}" for concept in concepts]
    words += [f"the{below(bits, planted.common)}" for _ in range(below(bits, planted.filler + 1))]
    return " ".join(words[index] for index in distinct(bits, len(words), len(words)))


_DEFAULT = Planted()

SYNTHETIC_PAIRS = Dataset(
    name="synthetic-pairs",
    summary="planted similarity, 640 + 160 + 160 pairs of sentences in words of which two mean the same",
    kind=KIND,
    version=f"1 {_DEFAULT}",
    reader=lambda _folder: generate(_DEFAULT),
)
