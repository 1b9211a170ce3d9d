"""Load sentence pairs by dataset name, in three parts: the source's own, or drawn from train by a seed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from workloads.data.conversion_cache import check_unchanged, checked_fingerprint
from workloads.data.datasets import read
from workloads.data.errors import DataError
from workloads.data.pairs.types import KIND, Pairs, SentencePairs
from workloads.data.source import Dataset, ReadOptions
from workloads.memory import BoundedCache

PairSplit: TypeAlias = Literal["official", "dev"]
"""The source's own parts, or its dev part as the test part and a validation part drawn from train."""

VALIDATION, TEST = 0.1, 0.2
"""Shares of parts that the source does not have."""


def load_pairs(name: str, root: Path, split: PairSplit = "official", *, seed: int = 0) -> SentencePairs:
    """Load a dataset in three parts. Parts that the source does not have are drawn from train.

    The part of a pair depends only on the seed and its two texts, so equal pairs are in the same part. Later calls in
    one process return the same object.

    Args:
        name: a name of the catalogue, or an absolute path.
        root: the data root.
        split: see :data:`PairSplit`.
        seed: seed of the drawn parts.

    Raises:
        DataError: the dataset is unknown, of another kind, missing or damaged, its test scores are hidden, a part
            would be empty, or one would be drawn from plain sentences.
    """
    return _load(name, root, checked_fingerprint(name, root, KIND, "pairs of sentences"), split, seed)


@BoundedCache
def _load(name: str, root: Path, fingerprint: str, split: PairSplit, seed: int) -> SentencePairs:
    data: SentencePairs = read(name, root)
    check_unchanged(name, root, fingerprint)
    if split == "dev":
        if data.validation is None:
            raise DataError(f"dataset {name!r} has no dev part", got="split=dev", expected="split=official")
        data = SentencePairs(data.train, test=data.validation)
    elif data.test is not None and data.test.hidden:
        raise DataError(
            f"the source of dataset {name!r} hides the scores of its test part (-1, or none)",
            fix="Set split=dev to test on its dev part and to carve a validation part from train",
        )
    if data.train.hidden and (data.test is None or data.validation is None):
        raise DataError(
            f"dataset {name!r} trains on plain sentences, from which no scored part can be drawn", got=f"split={split}",
            expected="a dev and a test part of scored pairs, with split=official",
        )  # fmt: skip
    if data.test is None:
        train, test = _carve(data.train, TEST, "test", seed)
        data = replace(data, train=train, test=test)
    if data.validation is None:
        train, validation = _carve(data.train, VALIDATION, "validation", seed)
        data = replace(data, train=train, validation=validation)
    for part, pairs in (("train", data.train), ("validation", data.validation), ("test", data.test)):
        if not pairs:
            raise DataError(f"the {part} part of dataset {name!r} has no pair")
    return data


def _carve(pairs: Pairs, share: float, part: str, seed: int) -> tuple[Pairs, Pairs]:
    """The remaining pairs and the drawn ones. A pair's part depends on the seed and its two texts.

    A pair that is there in both orders is in one part: similarity is symmetric.
    """
    import numpy as np

    there = set(zip(pairs.first, pairs.second))
    both = ((b, a) if b < a and (b, a) in there else (a, b) for a, b in zip(pairs.first, pairs.second))
    texts = (f"{seed}\0{part}\0{first}\0{second}".encode() for first, second in both)
    draws = [int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") for text in texts]
    carved = np.array(draws, np.uint64) < np.uint64(share * 2**64)
    return pairs.take(np.flatnonzero(~carved)), pairs.take(np.flatnonzero(carved))


def check(dataset: Dataset, root: Path, options: ReadOptions) -> None:
    """Check that test scores are not hidden and that the dataset has the parts that the split needs."""
    load_pairs(dataset.name, root, "dev" if options.split == "dev" else "official")
