"""A split dataset of images, on the device if it fits, shared by the trials of a process."""

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

_DEVICE_SHARE = 0.5  # of the free device memory, for one dataset


@dataclass(frozen=True)
class Part:
    """A part of a dataset: train, validation or test.

    ``images`` (N, 3, S, S) uint8: all images of the source, on the device, or memory-mapped on the host. ``rows`` (n,)
    int64, on the host: the images of the part. ``labels`` (n,) int64, on the device: their classes, -1 if unknown.
    """

    images: torch.Tensor
    rows: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def resident(self) -> bool:
        """Whether the images are on the device of the labels."""
        return self.images.device == self.labels.device

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Images at positions ``index`` of the part, (B,) int64 on the host: (B, 3, S, S) uint8 on the device."""
        rows = self.rows[index]
        if self.resident:
            return self.images[to_device(rows, self.images.device)]
        return self.images[rows].pin_memory().to(self.labels.device, non_blocking=True)

    def stream(self, batches: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """:meth:`take` for each batch; from the host, the next batch is gathered while one is used."""
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

    ``train`` alone may have images without labels. ``size``: height and width. ``skipped``: names of the images that
    cannot be decoded.
    """

    train: Part
    validation: Part
    test: Part
    classes: tuple[str, ...]
    size: int
    skipped: tuple[str, ...]


@bounded_cache
def prepare(data: Images, split_seed: int, holdout: bool, device: torch.device) -> ImageData:
    """Split, and move to the device what fits. All splits of a dataset share its images.

    Args:
        data: the source's images.
        split_seed: of the validation part, a stratified tenth of the labelled training images.
        holdout: False keeps the validation images in train; the validation part is then empty.
        device: device of the batches, and of all images if they fit.

    Raises:
        workloads.data.DataError: no image can be held out for validation.
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
    """The images of both parts, on the device if they fit; on a CPU they stay in the cache's files."""
    images = torch.from_numpy(data.train.images), torch.from_numpy(data.test.images)
    if device.type != "cuda":
        return images
    if sum(part.nbytes for part in images) > _DEVICE_SHARE * available_bytes(device):
        return images
    return images[0].to(device), images[1].to(device)
