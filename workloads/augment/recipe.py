"""SimCLR's augmentation: random draws for each sample, and their application to a batch.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020, appendix A: random
resized crop, flip, colour jitter in random order, grayscale, Gaussian blur. The draws are made on the CPU and are a
few numbers per sample. So they are the same for every device, and the samples of each step are known without a
synchronisation with the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import torch

from workloads.augment.blur import blur
from workloads.augment.colour import IDENTITY, grayscale, jitter, jitter_turns
from workloads.augment.crop import random_boxes, resized_crop
from workloads.transfer import all_to_device

MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's channels, in [0, 1], as torchvision's encoders expect."""

STD = (0.229, 0.224, 0.225)
"""Standard deviation of the same channels."""

_AT_ONCE = {"cpu": 2**20, "cuda": 2**27}
"""Number of values in a block, which goes through all steps before the next one: on a CPU, it fits into the cache."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Draws of n samples, on the CPU; index by rows.

    ``box`` (n, 4): top, left, height and width of the crop in pixels. ``flip`` (n,). ``order`` (n, 4): the order of the
    colour operations. ``factors`` (n, 4): of brightness, contrast, saturation, and the hue shift in turns;
    :data:`~workloads.augment.colour.IDENTITY` for a sample without jitter. ``gray`` (n,). ``sigma`` (n,): blur in
    pixels, 0 for none.
    """

    box: torch.Tensor
    flip: torch.Tensor
    order: torch.Tensor
    factors: torch.Tensor
    gray: torch.Tensor
    sigma: torch.Tensor

    def __len__(self) -> int:
        return len(self.box)

    def __getitem__(self, rows: slice | torch.Tensor) -> Draws:
        """The draws of the samples at ``rows``."""
        return Draws(*(getattr(self, field.name)[rows] for field in fields(self)))

    def block(self) -> Block:
        """What the steps read of these samples, on the CPU."""
        blurred = self.sigma.nonzero().squeeze(1)
        gray = self.gray.nonzero().squeeze(1)
        return [self.box, self.flip, gray, blurred, self.sigma[blurred], *jitter_turns(self.order, self.factors)]


Block: TypeAlias = list[torch.Tensor]
"""Some samples' boxes, flips, which are gray, which are blurred and by how much, and the turns of the jitter."""


@dataclass(frozen=True, slots=True)
class PlacedDraws:
    """Draws of n samples on the device of the images, in the blocks that go through all steps together."""

    size: int
    blocks: Sequence[Block]

    def __len__(self) -> int:
        return self.size


@dataclass(frozen=True, slots=True)
class Recipe:
    """Probabilities and ranges. The defaults are those of the paper for ImageNet.

    For CIFAR the paper has ``strength=0.5`` and no blur (appendix B.9), and ``scale=(0.2, 1)`` is common.

    ``size``: height and width of a view. ``source``: height and width of the images; by default ``size``. ``scale``:
    area of the crop, as a share of the image's. ``ratio``: width of the crop to its height. ``flip``, ``jitter``,
    ``gray``, ``blur``: probability of each step. ``strength``: s; factors of brightness, contrast and saturation are
    uniform in 1 ± 0.8 s (not below 0), and the hue shifts by up to 0.2 s of a circle. ``sigma``: range of the blur, in
    pixels.
    """

    size: int
    source: int | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.8
    strength: float = 1.0
    gray: float = 0.2
    blur: float = 0.5
    sigma: tuple[float, float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            ValueError: a value is out of its bounds.
        """
        for name, low, high in (
            ("flip", 0.0, 1.0), ("jitter", 0.0, 1.0), ("gray", 0.0, 1.0), ("blur", 0.0, 1.0), ("strength", 0.0, 2.5),
            ("size", 2, math.inf),
        ):  # fmt: skip
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {getattr(self, name)}")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale must be two ascending shares in (0, 1], got {self.scale}")
        if not 0 < self.ratio[0] <= 1 <= self.ratio[1]:
            raise ValueError(f"ratio must be two positive numbers around 1, got {self.ratio}")
        if not 0 < self.sigma[0] <= self.sigma[1]:
            raise ValueError(f"sigma must be two ascending positive numbers, got {self.sigma}")

    def draw(self, count: int, generator: torch.Generator) -> Draws:
        """Independent draws for ``count`` samples, from a generator on the CPU."""

        def uniform(low: float, high: float, *shape: int) -> torch.Tensor:
            return low + (high - low) * torch.rand(count, *shape, generator=generator, dtype=torch.float64)

        def happens(probability: float) -> torch.Tensor:
            return uniform(0, 1) < probability

        box = random_boxes(count, self.source or self.size, self.scale, self.ratio, generator)
        flip = happens(self.flip)
        order = uniform(0, 1, 4).argsort(1)
        spread = 0.8 * self.strength
        factors = torch.cat(
            [uniform(max(0.0, 1 - spread), 1 + spread, 3), uniform(-0.2 * self.strength, 0.2 * self.strength, 1)], 1
        )
        factors = torch.where(happens(self.jitter).unsqueeze(1), factors, torch.tensor(IDENTITY, dtype=torch.float64))
        gray = happens(self.gray)
        sigma = uniform(*self.sigma) * happens(self.blur)
        return Draws(box.float(), flip, order, factors.float(), gray, sigma.float())

    def place(
        self, draws: Sequence[Draws], device: torch.device, further: Sequence[torch.Tensor] = ()
    ) -> tuple[list[PlacedDraws], list[torch.Tensor]]:
        """Copy several draws to the device, and ``further`` tensors, all of them in one copy."""
        rows = self._rows(device)
        blocks = [[each[first : first + rows].block() for first in range(0, len(each), rows)] for each in draws]
        tensors = [tensor for own in blocks for block in own for tensor in block]
        there = iter(all_to_device([*tensors, *further], device))
        placed = [
            PlacedDraws(len(each), [[next(there) for _ in block] for block in own]) for each, own in zip(draws, blocks)
        ]
        return placed, list(there)

    def _rows(self, device: torch.device) -> int:
        """Samples in a block."""
        return max(1, _AT_ONCE.get(device.type, 2**27) // (3 * (self.source or self.size) ** 2))

    @torch.no_grad()
    def apply(
        self,
        images: torch.Tensor,
        draws: Draws | PlacedDraws,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> torch.Tensor:
        """The views of a batch. The view of a sample does not depend on the other samples.

        Args:
            images: uint8 (n, 3, source, source), on any device.
            draws: draws of the n samples, on that device or not.

        Returns:
            float32 (n, 3, size, size) on the images' device, normalised by :data:`MEAN` and :data:`STD`.

        Raises:
            ValueError: images and draws differ in number, or the images have another size.
        """
        source = self.source or self.size
        if images.shape != (len(draws), 3, source, source):
            raise ValueError(f"expected images of shape {(len(draws), 3, source, source)}, got {tuple(images.shape)}")
        views = torch.empty((len(draws), 3, self.size, self.size), device=images.device, memory_format=memory_format)
        if isinstance(draws, Draws):
            (draws,), _ = self.place([draws], images.device)
        rows = self._rows(images.device)
        for pixels, block, view in zip(torch.split(images, rows), draws.blocks, torch.split(views, rows)):
            _normalise(self._steps(pixels, block), out=view.transpose(0, 1))
        return views

    def _steps(self, images: torch.Tensor, block: Block) -> torch.Tensor:
        """One block of :meth:`apply`: (3, n, size, size) in [0, 1]."""
        box, flip, gray, blurred, sigma, *turns = block
        planes = resized_crop(images, box, flip, self.size)
        jitter(planes, turns)
        grayscale(planes, gray)
        blur(planes, blurred, sigma)
        return planes


def normalise(images: torch.Tensor) -> torch.Tensor:
    """Normalise uint8 (n, 3, H, W) by :data:`MEAN` and :data:`STD`, to float32, without augmentation."""
    views = torch.empty(images.shape, dtype=torch.float32, device=images.device)
    _normalise(images.transpose(0, 1) / 255, out=views.transpose(0, 1))
    return views


def _normalise(planes: torch.Tensor, out: torch.Tensor) -> None:
    """Compute (planes - mean) / std of the channels, the first dimension."""
    for plane, mean, std, target in zip(planes, MEAN, STD, out):
        torch.add(plane.new_full((), -mean / std), plane, alpha=1 / std, out=target)
