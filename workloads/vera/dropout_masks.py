"""The dropout masks of MC dropout, the same in evaluation and in a served model. Exported with ``predictor.py``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

PASSES = 20
"""Number of dropout masks of ``confidence=mc_dropout`` (Gal and Ghahramani, ICML 2016)."""


def masked(z: torch.Tensor, position: torch.Tensor, dropout: float, seed: int) -> Iterator[torch.Tensor]:
    """The candidates' z (n, h) under each mask. Dropout is the backbone's last step, so z is computed once.

    A mask has a row for each position in a list, ``position`` (n,) from 0: it depends neither on the device nor on the
    queries computed with it.
    """
    longest = int(position.max()) + 1 if len(position) else 0
    for number in range(PASSES):
        uniform = np.random.default_rng([seed, number]).random((longest, z.shape[1]), np.float32)
        mask = torch.from_numpy((uniform >= dropout) / np.float32(1 - dropout))
        yield z * mask.to(z.device)[position]
