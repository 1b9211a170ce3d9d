"""Clusters of documents by their words. They serve as topics of a collection that names none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WORDS = 2000
_ROUNDS = 20
_FIT = 20_000  # documents that the centres are fitted on
_BLOCK = 8192
_WORD = re.compile(r"[^\W_]{3,}")


def clusters(texts: Sequence[str], count: int, seed: int) -> NDArray[np.int16]:
    """Spherical k-means of TF-IDF vectors (Dhillon and Modha, 2001).

    The vectors are over the 2,000 most frequent words that occur in at most a fifth of the documents.

    Args:
        texts: the documents.
        count: number of clusters, at most the number of documents.
        seed: seed of the initial centres.

    Returns:
        Each document's cluster, (n,). A document without any of the words is in cluster 0.
    """
    words = [Counter(_WORD.findall(text.lower())) for text in texts]
    frequency: Counter[str] = Counter()
    for counts in words:
        frequency.update(counts.keys())
    rare = [word for word in frequency if frequency[word] <= max(1, len(texts) / 5)]
    vocabulary = sorted(rare, key=lambda word: (-frequency[word], word))[:_WORDS]
    column = {word: number for number, word in enumerate(vocabulary)}
    weight = np.log(len(texts) / np.array([frequency[word] for word in vocabulary], np.float64))

    def vectors(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        block = np.zeros((len(rows), len(vocabulary)), np.float32)
        for block_row, row in enumerate(rows.tolist()):
            for word, times in words[row].items():
                if word in column:
                    block[block_row, column[word]] = (1 + np.log(times)) * weight[column[word]]
        return _unit(block)

    bits = np.random.Generator(np.random.PCG64(seed))
    sample = vectors(np.sort(bits.permutation(len(texts))[:_FIT]))
    centres = _begin(sample, count, bits)
    for _ in range(_ROUNDS):
        nearest = (sample @ centres.T).argmax(1)
        sums = np.stack([sample[nearest == cluster].sum(0) for cluster in range(count)])
        empty = ~sums.any(1)
        sums[empty] = centres[empty]
        centres = _unit(sums)
    blocks = np.array_split(np.arange(len(texts)), -(-len(texts) // _BLOCK))
    return np.concatenate([(vectors(rows) @ centres.T).argmax(1) for rows in blocks]).astype(np.int16)


def _begin(sample: NDArray[np.float32], count: int, bits: np.random.Generator) -> NDArray[np.float32]:
    """Initial centres by k-means++: each is drawn with probability proportional to its distance from those before."""
    chosen = [int(bits.integers(len(sample)))]
    for _ in range(count - 1):
        distance = np.clip(1 - (sample @ sample[chosen].T).max(1), 1e-9, None).astype(np.float64)
        chosen.append(int(bits.choice(len(sample), p=distance / distance.sum())))
    return sample[chosen]


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, np.where(norms > 0, norms, 1), dtype=np.float32)
