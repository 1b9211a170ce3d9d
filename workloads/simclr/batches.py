"""Training images of each rank's steps, a function of seed and epoch for any number of ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, tee

import torch

from workloads.augment import Draws, PlacedDraws, Recipe
from workloads.contract import Runtime
from workloads.data.images.blocks import block_order
from workloads.data.images.resident import ImagePart, fits_memory
from workloads.data.images.types import Images
from workloads.schedule import passes_of
from workloads.seeding import generator

BUFFER_BYTES = 2 << 30
"""Bytes of the images that are in memory at a time if all do not fit and ``shuffle_buffer`` is unset.

The same on every machine, so that they all train in one order.
"""


@dataclass(frozen=True)
class Batch:
    """Images (b, 3, S, S), uint8, of one rank and step, and the draws of their views: first views, then second views.

    ``places``: positions of the images in the training part, (b,) int64, on the device with the draws.
    """

    images: torch.Tensor
    draws: Draws | PlacedDraws
    places: torch.Tensor

    def __len__(self) -> int:
        return len(self.images)

    def split(self, parts: int) -> list[Batch]:
        """Split into ``parts`` micro-batches of equal size, before the draws are on the device."""
        assert isinstance(self.draws, Draws)
        rows = torch.arange(2 * len(self)).view(2, parts, -1).unbind(1)
        draws = [self.draws[part.flatten()] for part in rows]
        return [Batch(*own) for own in zip(self.images.chunk(parts), draws, self.places.chunk(parts))]

    def views(self, recipe: Recipe, layout: torch.memory_format) -> torch.Tensor:
        """Both views of every image, (2b, 3, S, S) float: first views, then second views."""
        return recipe.apply(self.images.repeat(2, 1, 1, 1), self.draws, layout)


def place(parts: Sequence[Batch], recipe: Recipe) -> list[Batch]:
    """The micro-batches of a step with draws and positions on the device of the images, all of them in one copy."""
    drawn = [part.draws for part in parts if isinstance(part.draws, Draws)]
    placed, places = recipe.place(drawn, parts[0].images.device, [part.places for part in parts])
    return [Batch(part.images, draws, there) for part, draws, there in zip(parts, placed, places)]


def steps_per_pass(images: int, batch_size: int) -> int:
    """Number of steps of a pass. Images left over are skipped, so that every step has as many negatives (thesis' N)."""
    return images // batch_size


def buffer_size(given: int | None, data: Images, device: torch.device) -> int | None:
    """The number of images to shuffle from at a time; None for all, if they fit or are no more than ``given``."""
    if given is None:
        given = sys.maxsize if fits_memory(data, device) else BUFFER_BYTES // data.train.images[:1].nbytes
    return given if given < len(data.train.rows) else None


def batches(
    part: ImagePart, recipe: Recipe, batch_size: int, runtime: Runtime, epoch: int, buffer: int | None = None
) -> Iterator[Batch]:
    """Batches of this rank for the steps of an epoch, from 1.

    Together, the ranks' images are the batch that one process would have, with the same draws.

    Args:
        buffer: number of images, of all ranks, that may be in memory; None for all.
    """
    share = batch_size // runtime.world_size
    own = slice(runtime.rank * share, (runtime.rank + 1) * share)
    steps = runtime.steps_per_epoch or steps_per_pass(len(part), batch_size)
    both = torch.arange(2 * batch_size).view(2, -1)[:, own].flatten()
    places, streamed = tee(window[:, own] for window in _windows(part, batch_size, runtime, epoch, buffer))
    drawn = zip(part.stream_windows(streamed), chain.from_iterable(places))
    for step, (images, taken) in enumerate(drawn, (epoch - 1) * steps):
        draws = recipe.draw(2 * batch_size, generator(runtime.seed, "views", step + 1))
        yield Batch(images, draws[both], taken)


def _windows(
    part: ImagePart, batch_size: int, runtime: Runtime, epoch: int, buffer: int | None
) -> Iterator[torch.Tensor]:
    """Positions of images, (steps, batch_size): the global batches of the next steps, as many as half the buffer has.

    A pass' order follows from seed, number of the pass, batch size and buffer. Without a buffer a window is one batch.
    """
    window = 1 if buffer is None else max(1, buffer // 2 // batch_size)
    for number, places in passes_of(epoch, steps_per_pass(len(part), batch_size), runtime.steps_per_epoch):
        source = generator(runtime.seed, "order", number)
        if buffer is None:
            order = torch.randperm(len(part), generator=source)
        else:
            order = block_order(part.rows, part.images[:1].nbytes, window * batch_size, source)
        for start in range(places.start - places.start % window, places.stop, window):
            first, last = max(start, places.start), min(start + window, places.stop)
            yield order[first * batch_size : last * batch_size].view(-1, batch_size)
