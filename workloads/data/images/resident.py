"""A split dataset of images, on the device if it fits, shared by the trials of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.data.images.blocks import ImageFile
from workloads.data.images.splits import split
from workloads.data.images.types import Images, Pixels
from workloads.memory import CACHED_SHARE, BoundedCache, available_bytes, process_bytes
from workloads.transfer import to_device

T = TypeVar("T")
R = TypeVar("R")

_DEVICE_SHARE = 0.5  # of the free device memory, for one dataset


@dataclass(frozen=True)
class ImagePart:
    """A part of a dataset: train, validation or test.

    ``images`` (N, 3, S, S) uint8: all images of the source, on the device, or memory-mapped on the host. ``rows`` (n,)
    int64, on the host: the images of the part. ``labels`` (n,) int64, on the device: their classes, -1 if unknown.
    ``file``: None, or where images are read from when they are used; ``images`` is then not read.
    """

    images: torch.Tensor
    rows: torch.Tensor
    labels: torch.Tensor
    file: ImageFile | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def resident(self) -> bool:
        """Whether the images are on the device of the labels."""
        return self.file is None and self.images.device == self.labels.device

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Images at positions ``index`` of the part, (B,) int64 on the host: (B, 3, S, S) uint8 on the device."""
        if self.file is not None:
            return self.load(index).take(torch.arange(len(index)))
        rows = self.rows[index]
        if self.resident:
            return self.images[to_device(rows, self.images.device)]
        return self.images[rows].pin_memory().to(self.labels.device, non_blocking=True)

    def load(self, index: torch.Tensor) -> ImagePart:
        """The images at positions ``index``, (B,), as a part of their own, in the host's memory."""
        rows, order = self.rows[index].sort()
        images = self.images[rows] if self.file is None else torch.from_numpy(self.file.read(rows.numpy()))
        return ImagePart(images, order.argsort(), self.labels[to_device(index, self.labels.device)])

    def stream(self, batches: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """:meth:`take` for each batch; from the host, the next batch is gathered while one is used."""
        return map(self.take, batches) if self.resident else _one_ahead(self.take, batches)

    def stream_windows(self, windows: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """:meth:`take` for each batch of each window, (batches, B) positions; two windows at a time are in memory.

        From a file, the next window is read while one is used.
        """
        if self.file is None:
            return self.stream(batch for window in windows for batch in window)

        def stream(window: torch.Tensor) -> Iterator[torch.Tensor]:
            return self.load(window.flatten()).stream(torch.arange(window.numel()).view_as(window))

        return chain.from_iterable(_one_ahead(stream, windows))


def _one_ahead(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """The function's result for each item; the next is computed in a thread while one is used."""
    with ThreadPoolExecutor(1) as pool:
        current: Future[R] | None = None
        for item in items:
            following = pool.submit(function, item)
            if current is not None:
                yield current.result()
            current = following  # before the next begins: the memory of the last one is free
        if current is not None:
            yield current.result()


@dataclass(frozen=True)
class ImageData:
    """One dataset, split and device.

    ``train`` alone may have images without labels. ``size``: height and width. ``skipped``: names of the images that
    cannot be decoded.
    """

    train: ImagePart
    validation: ImagePart
    test: ImagePart
    classes: tuple[str, ...]
    size: int
    skipped: tuple[str, ...]


def fits_memory(data: Images, device: torch.device) -> bool:
    """Whether all images may be in memory, on the device or the host.

    Depends on their memory and not on what of it is free, so that a machine gives one answer.
    """
    size = data.train.images.nbytes + data.test.images.nbytes
    return any(size <= CACHED_SHARE * process_bytes(where) for where in (device, torch.device("cpu")))


@BoundedCache
def prepare(data: Images, split_seed: int, holdout: bool, device: torch.device, from_file: bool = False) -> ImageData:
    """Split, and move to the device what fits. All splits of a dataset share its images.

    Args:
        data: the source's images.
        split_seed: of the validation part, a stratified tenth of the labelled training images.
        holdout: False keeps the validation images in train; the validation part is then empty.
        device: device of the batches, and of all images if they fit.
        from_file: read the images that are used from the cache's files, and hold no others in memory. Images that are
            not in files, which are generated ones, stay in the host's memory.

    Raises:
        workloads.data.DataError: no image can be held out for validation.
    """
    images, test_images = _on_device(data, torch.device("cpu") if from_file else device)
    parts = split(data, split_seed, holdout)
    judged = data.test
    if parts.carved:
        judged = data.train
        test_images = images

    def part(images: torch.Tensor, pixels: Pixels, rows: NDArray[np.int64]) -> ImagePart:
        file = ImageFile.of(pixels.images) if from_file else None
        return ImagePart(images, torch.from_numpy(rows), torch.from_numpy(pixels.labels[rows]).to(device), file)

    return ImageData(
        part(images, data.train, parts.train),
        part(images, data.train, parts.validation),
        part(test_images, judged, parts.test),
        data.classes,
        data.size,
        data.skipped,
    )


@BoundedCache
def _on_device(data: Images, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The images of both parts, on the device if they fit; on a CPU they stay in the cache's files."""
    images = torch.from_numpy(data.train.images), torch.from_numpy(data.test.images)
    if device.type != "cuda":
        return images
    if sum(part.nbytes for part in images) > _DEVICE_SHARE * available_bytes(device):
        return images
    return images[0].to(device), images[1].to(device)
