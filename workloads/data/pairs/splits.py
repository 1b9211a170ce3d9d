"""Parts of sentence pairs that are carved from train by a seed."""

from __future__ import annotations

import hashlib

from workloads.data.pairs.types import Pairs


def carve(pairs: Pairs, share: float, part: str, seed: int) -> tuple[Pairs, Pairs]:
    """The pairs that stay and those that are carved. A pair's part depends on the seed and its two texts alone."""
    import numpy as np

    texts = (f"{seed}\0{part}\0{first}\0{second}".encode() for first, second in zip(pairs.first, pairs.second))
    draws = [int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") for text in texts]
    carved = np.array(draws, np.uint64) < np.uint64(share * 2**64)
    return pairs.take(np.flatnonzero(~carved)), pairs.take(np.flatnonzero(carved))
