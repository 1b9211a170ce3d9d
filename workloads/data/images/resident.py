"""A dataset of images split and, where it fits, on its device, shared by the trials of a process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.data.images.splits import split
from workloads.data.images.types import Images, Pixels
from workloads.memory import available_bytes, bounded_cache
from workloads.transfer import to_device

_DEVICE_SHARE = 0.5  # of what this process may still allocate on the device, for one dataset


@dataclass(frozen=True)
class Part:
    """Some images of a dataset.

    ``images`` (N, 3, S, S) uint8: those of the source, on the device, or memory-mapped on the host. ``rows`` (n,)
    int64, on the host: which of them make up the part. ``labels`` (n,) int64, on the device: their classes, -1 where
    none is known.
    """

    images: torch.Tensor
    rows: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def resident(self) -> bool:
        """Whether the images lie where the labels do."""
        return self.images.device == self.labels.device

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, S, S) uint8 on the device, by their places in the part, (B,) int64 on the host."""
        rows = self.rows[index]
        if self.resident:
            return self.images[to_device(rows, self.images.device)]
        return self.images[rows].pin_memory().to(self.labels.device, non_blocking=True)

    def stream(self, batches: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """:meth:`take` of one batch after the other; from the host the next is gathered while one is used."""
        if self.resident:
            yield from map(self.take, batches)
            return
        with ThreadPoolExecutor(1) as pool:
            ahead = None
            for index in batches:
                ahead, ready = pool.submit(self.take, index), ahead
                if ready is not None:
                    yield ready.result()
            if ahead is not None:
                yield ahead.result()


@dataclass(frozen=True)
class ImageData:
    """One dataset, split and device.

    ``train``: what is learnt from; images without a label are nowhere else. ``size``: height and width of the images.
    ``skipped``: those left out because they cannot be decoded, by name.
    """

    train: Part
    validation: Part
    test: Part
    classes: tuple[str, ...]
    size: int
    skipped: tuple[str, ...]


@bounded_cache
def prepare(data: Images, split_seed: int, holdout: bool, device: torch.device) -> ImageData:
    """Split, and move to the device what fits there; all splits of a dataset share its images.

    Args:
        data: the source's images.
        split_seed: of the validation part, a stratified tenth of the labelled training images.
        holdout: False leaves the validation part in train; it is then empty by itself.
        device: where the images are kept if they fit, and handed to.

    Raises:
        workloads.data.DataError: nothing can be held out for validation.
    """
    images, test_images = _on_device(data, device)
    parts = split(data, split_seed, holdout)
    judged = data.test
    if parts.carved:
        judged = data.train
        test_images = images

    def part(images: torch.Tensor, pixels: Pixels, rows: NDArray[np.int64]) -> Part:
        return Part(images, torch.from_numpy(rows), torch.from_numpy(pixels.labels[rows]).to(device))

    return ImageData(
        part(images, data.train, parts.train),
        part(images, data.train, parts.validation),
        part(test_images, judged, parts.test),
        data.classes,
        data.size,
        data.skipped,
    )


@bounded_cache
def _on_device(data: Images, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The images of both parts, where they fit on the device; a CPU's are those in the cache's files."""
    images = torch.from_numpy(data.train.images), torch.from_numpy(data.test.images)
    if device.type != "cuda":
        return images
    if sum(part.nbytes for part in images) > _DEVICE_SHARE * available_bytes(device):
        return images
    return images[0].to(device), images[1].to(device)
