"""Image sets larger than memory: an order that needs some of the images at a time, which are read from their file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

BLOCK_BYTES = 1 << 20
"""Bytes of a block: images that are next to each other in the file, and are read at once."""

GAP_BYTES = 1 << 16
"""Largest number of bytes between two images of a block that is read, since skipping it would take longer."""

MIXED = 16
"""Smallest number of blocks whose images are shuffled with each other: blocks are shorter in small windows."""


def block_order(rows: torch.Tensor, image_bytes: int, window: int, generator: torch.Generator) -> torch.Tensor:
    """A random order in which each window's images are in a few blocks: blocks are shuffled, then windows of images.

    Args:
        rows: places of the images in the file, (n,) int64, ascending.
        image_bytes: bytes of an image.
        window: number of images in a window.
        generator: of the CPU.

    Returns:
        Positions in ``rows``, (n,) int64.
    """
    block = max(1, min(BLOCK_BYTES // image_bytes, window // MIXED))
    blocks = torch.randperm(int(rows[-1]) // block + 1, generator=generator)
    places = blocks[rows // block].argsort(stable=True)
    return torch.cat([part[torch.randperm(len(part), generator=generator)] for part in torch.split(places, window)])


@dataclass(frozen=True, slots=True)
class ImageFile:
    """Images (n, 3, S, S) uint8 in a file, from a byte on. ``shape`` is that of one image."""

    path: Path
    start: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, images: NDArray[np.uint8]) -> ImageFile | None:
        """The file of a memory-mapped array; None for an array in memory."""
        if not isinstance(images, np.memmap) or images.filename is None:
            return None
        return cls(Path(images.filename), images.offset, images.shape[1:])

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Images (m, 3, S, S) at ascending places (m,), read block by block.

        Not through a map, whose pages would count as this process' memory.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is too short.
        """
        images = np.empty((len(rows), *self.shape), np.uint8)
        size = images[:1].nbytes
        apart = np.diff(rows) > GAP_BYTES // size + 1
        ends = np.flatnonzero(apart | (np.diff(rows // max(1, BLOCK_BYTES // size)) > 0)) + 1
        with self.path.open("rb", buffering=0) as file:
            for first, end in pairwise([0, *ends, len(rows)]):
                there: Any = rows[first:end] - rows[first]
                content = os.pread(file.fileno(), (int(there[-1]) + 1) * size, self.start + int(rows[first]) * size)
                images[first:end] = np.frombuffer(content, np.uint8).reshape(-1, *self.shape)[there]
        return images
