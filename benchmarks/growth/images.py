"""Images: convert, fingerprint, and stream."""

from __future__ import annotations

import time
from pathlib import Path

from growth import Cost, Item, measured


def images(size: int, folder: Path) -> Cost:
    """Convert PNG images of 64 pixels to 32, from a folder of ten classes."""
    from workloads.data.images.load import load_images

    files = _files(size, folder)
    with measured(folder, private=True) as cost:
        load_images(str(files), folder, 32)
    return cost


def fingerprint(size: int, folder: Path) -> Cost:
    """The fingerprint of such a folder that was read before, the first in a process."""
    from workloads.data import fingerprint

    files = _files(size, folder)
    time.sleep(2.5)  # files that are newer are read again
    fingerprint(str(files), folder)
    with measured(folder) as cost:
        fingerprint(str(files), folder)
    return cost


def _files(size: int, folder: Path) -> Path:
    import numpy as np
    from PIL import Image

    source = np.random.default_rng(0)
    files = folder / "files"
    for order in range(size):
        file = files / str(order % 10) / f"{order}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(source.integers(0, 255, (64, 64, 3), np.uint8)).save(file)
    return files


def image_stream(size: int, folder: Path) -> Cost:
    """Read images of 32 pixels from a file for a pass, of which 20,480 are in memory at a time."""
    from image_stream import one_pass, write

    import workloads.simclr.batches  # noqa: F401  # imports PyTorch

    file = folder / "images.npy"
    write(file, size, 32)
    with measured(folder) as cost:
        one_pass(file, 20_480)
    return cost


ITEMS = {
    "images": Item("convert PNG images", "image", (2_000, 4_000, 8_000), images),
    "fingerprint": Item("fingerprint of images, again", "image", (2_000, 4_000, 8_000), fingerprint),
    "image-stream": Item("stream images in a pass", "image", (100_000, 200_000, 400_000), image_stream),
}
