"""Gaussian blur with a separate width for each sample, as matrix products."""

from __future__ import annotations

from functools import lru_cache

import torch


def blur(planes: torch.Tensor, rows: torch.Tensor, sigma: torch.Tensor) -> None:
    """Blur some samples in place.

    The kernel spans a tenth of the image, and at least three pixels, as in SimCLR's appendix A. The image is reflected
    at its edges, as in torchvision's GaussianBlur.

    Args:
        planes: (3, n, S, S).
        rows: (m,), int64, which samples.
        sigma: (m,), their widths in pixels.
    """
    if not len(rows):
        return
    matrices = _matrices(sigma, planes.shape[2])
    for plane in planes:
        plane[rows] = torch.bmm(torch.bmm(matrices, plane[rows]), matrices.transpose(1, 2))


def _matrices(sigma: torch.Tensor, size: int) -> torch.Tensor:
    """Blur of one line for each sample, (n, size, size); rows sum to one."""
    radius = kernel_radius(size)
    offsets = torch.arange(-radius, radius + 1, device=sigma.device)
    kernel = (-0.5 * (offsets / sigma.unsqueeze(1)) ** 2).softmax(1)
    return (kernel @ _reflected(size, radius, sigma.device)).view(len(sigma), size, size)


def kernel_radius(size: int) -> int:
    """Radius of the kernel in pixels: it spans a tenth of the image, at least three pixels."""
    return max(1, size // 20)


@lru_cache(maxsize=8)
def _reflected(size: int, radius: int, device: torch.device) -> torch.Tensor:
    """The pixel at each offset of each pixel, one-hot: (2 radius + 1, size * size)."""
    last = size - 1
    at = torch.arange(size) + torch.arange(-radius, radius + 1).unsqueeze(1)
    at = last - (last - at.abs()).abs()
    return torch.nn.functional.one_hot(at, size).flatten(1).to(device, torch.float32)
