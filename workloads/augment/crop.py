"""Random resized crops as products of small matrices: exact, antialiased, one box per sample.

Resizing is linear and separable, so crop, resizing and flip are ``W_y X W_xᵀ``: two matrix products per channel,
deterministic on every device, with the weights of PIL's bilinear filter. If the crop is smaller than the view, this is
bilinear interpolation within the crop; if it is larger, the triangle filter is wider and avoids aliasing. Sampling from
a grid does neither: it reads pixels outside the crop, and skips pixels.
"""

from __future__ import annotations

import math

import torch

_ATTEMPTS = 10  # as in torchvision's RandomResizedCrop


def random_boxes(
    count: int, source: int, scale: tuple[float, float], ratio: tuple[float, float], generator: torch.Generator
) -> torch.Tensor:
    """Boxes (count, 4) of top, left, height and width in pixels, distributed as in torchvision's RandomResizedCrop.

    The area is uniform in ``scale`` times that of the image, the log of the aspect ratio is uniform. Uses the first of
    ten attempts that fits, or the whole image.
    """

    def uniform(*shape: int) -> torch.Tensor:
        # float64: k times a float32 below 1 may round to k.
        return torch.rand(count, *shape, generator=generator, dtype=torch.float64)

    area = source * source * (scale[0] + (scale[1] - scale[0]) * uniform(_ATTEMPTS))
    low = math.log(ratio[0])
    high = math.log(ratio[1])
    aspect = (low + (high - low) * uniform(_ATTEMPTS)).exp()
    sides = torch.stack([(area / aspect).sqrt().round(), (area * aspect).sqrt().round()], 2)  # height, width
    fits = ((sides > 0) & (sides <= source)).all(2)
    first = fits.int().argmax(1)
    chosen = sides[torch.arange(count), first].where(fits.any(1, keepdim=True), torch.tensor(float(source)).double())
    corner = (uniform(2) * (source - chosen + 1)).floor()
    return torch.cat([corner, chosen], 1)


def resized_crop(images: torch.Tensor, box: torch.Tensor, flip: torch.Tensor, size: int) -> torch.Tensor:
    """Crop, resize to (size, size), and flip where ``flip``.

    Args:
        images: uint8 (n, 3, H, W).
        box: (n, 4), top, left, height and width in pixels.
        flip: bool (n,).

    Returns:
        float32 (3, n, size, size), in [0, 1] within rounding.
    """
    count, channels, height, width = images.shape
    top, left, tall, wide = box.unbind(1)
    rows = _weights(top, tall, size, height).div_(255)
    columns = _weights(left, wide, size, width, flip).transpose(1, 2)
    pixels = images.float()
    planes = torch.empty(channels, count, size, size, device=images.device)
    for channel in range(channels):
        torch.bmm(torch.bmm(rows, pixels[:, channel]), columns, out=planes[channel])
    return planes


def _weights(
    start: torch.Tensor, length: torch.Tensor, size: int, source: int, flip: torch.Tensor | None = None
) -> torch.Tensor:
    """Interpolation weights (n, size, source); rows sum to one.

    A triangle around the position of the new pixel, as wide as an old or a new pixel, whichever is wider, cut off at
    the edge of the crop.
    """
    start = start.unsqueeze(1)
    length = length.unsqueeze(1)
    position = (torch.arange(size, device=start.device) + 0.5).expand(len(start), size)
    if flip is not None:
        position = torch.where(flip.unsqueeze(1), size - position, position)
    step = length / size
    reach = step.clamp_min(1)
    pixel = torch.arange(source, device=start.device) + 0.5 - start
    pixel = pixel.where((pixel > 0) & (pixel < length), math.inf)  # outside the triangle
    away = ((pixel / reach).unsqueeze(1) - (position * step / reach).unsqueeze(2)).abs_()
    weights = torch.sub(1, away.clamp_(max=1), out=away)
    return weights.div_(weights.sum(2, keepdim=True))
