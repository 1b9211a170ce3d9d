"""Small images, on disk and as tensors, that can be identified by their pixels."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image


def picture(name: str, place: int, size: int = 8) -> NDArray[np.uint8]:
    """The pixels (size, size, 3) of an image of a class; no value is 0."""
    generator = np.random.default_rng(zlib.crc32(f"{name}/{place}".encode()))
    return generator.integers(1, 256, (size, size, 3), dtype=np.uint8)


def class_folders(folder: Path, classes: Mapping[str, int]) -> None:
    """Write PNG files for each class, named by number."""
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for place in range(count):
            Image.fromarray(picture(name, place)).save(folder / name / f"{place}.png")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(count: int, size: int = 32) -> torch.Tensor:
    """Random images, smooth enough that a pixel resembles its neighbours: uint8 (count, 3, size, size)."""
    coarse = torch.rand(count, 3, size // 4, size // 4, generator=generator(9))
    return (torch.nn.functional.interpolate(coarse, scale_factor=4, mode="bilinear") * 255).byte()


def pil(image: torch.Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def from_pil(image: Image.Image) -> torch.Tensor:
    """(3, S, S) in [0, 1]."""
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 255


def planes(images: torch.Tensor) -> torch.Tensor:
    """uint8 (n, 3, S, S) in the layout of the steps: (3, n, S, S) in [0, 1]."""
    return (images / 255).transpose(0, 1).contiguous()
