"""The global random streams of Python, NumPy and PyTorch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from workloads.seeding import derive


def seed_global(seed: int, stream: str, epoch: int = 0) -> None:
    """Seed them from (seed, stream, epoch)."""
    drawn = derive(seed, stream, epoch)
    random.seed(drawn)
    np.random.seed(drawn % 2**32)
    torch.manual_seed(drawn)


@contextmanager
def apart(device: torch.device) -> Iterator[None]:
    """Restore the global streams, and that of the device, afterwards."""
    python = random.getstate()
    numpy = np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
