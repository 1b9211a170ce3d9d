"""The dropout masks of MC dropout, the same in evaluation and in a served model. Exported with ``predictor.py``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

PASSES = 20
"""Number of dropout masks of ``confidence=mc_dropout`` (Gal and Ghahramani, ICML 2016)."""


def masks(longest: int, width: int, dropout: float, seed: int) -> torch.Tensor:
    """Whether each of h components is kept for each position in a list, by mask: (M, longest, h), bool, on the host.

    They depend neither on the device nor on the queries, and a shorter list has the beginning of a longer one's.
    """
    kept = np.empty((PASSES, longest, width), np.bool_)
    for number in range(PASSES):
        kept[number] = np.random.default_rng([seed, number]).random((longest, width), np.float32) >= dropout
    return torch.from_numpy(kept)


def masked(z: torch.Tensor, position: torch.Tensor, kept: torch.Tensor, dropout: float) -> Iterator[torch.Tensor]:
    """The candidates' z (n, h) under each mask. Dropout is the backbone's last step, so z is computed once.

    ``position`` (n,): of each candidate in its list, from 0. ``kept``: the masks, on the device of z.
    """
    scaled = z / (1 - dropout)
    for mask in kept:
        yield scaled * mask[position]
