"""Independent random streams derived from one seed.

Random numbers are derived from (seed, stream, epoch, rank) and no generator is carried from epoch to epoch. A
checkpoint holds no generator state, and a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray


def derive(seed: int, stream: str, epoch: int = 0, rank: int = 0) -> int:
    """A 63-bit seed for one stream, the same on every machine and in every Python process.

    Args:
        seed: the experiment's seed.
        stream: what the numbers are for, such as ``"init"``, ``"order"`` or ``"negatives"``.
        epoch: the epoch, from 1; 0 for what happens once.
        rank: only where ranks must differ; data order and negatives are the same on all ranks.
    """
    text = f"{seed}/{stream}/{epoch}/{rank}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def generator(seed: int, stream: str, epoch: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator on ``device``, seeded by :func:`derive`. Its values depend on the kind of device."""
    import torch

    return torch.Generator(device=device).manual_seed(derive(seed, stream, epoch))


def random_order(count: int, seed: int) -> NDArray[np.int64]:
    """The numbers below ``count`` in a random order, the same on every machine.

    NumPy's compatibility policy fixes the raw stream of PCG64.
    """
    import numpy as np

    return np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's global generators of the CPU and the device, and restore them afterwards."""
    import torch

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
