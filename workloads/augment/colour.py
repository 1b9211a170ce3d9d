"""Colour jitter and grayscale, with separate factors and order for each sample.

The four operations are those of torchvision's ColorJitter on floats. Brightness, contrast and saturation are one
formula, ``clip(f x + (1 - f) base)``, where base is black, the image's mean gray, or the pixel's gray. So step k of all
samples, each in its own order, is one computation; only the hue, a different formula, is applied to the samples whose
step k it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)

IDENTITY = (1.0, 1.0, 1.0, 0.0)
"""Factors of brightness, contrast and saturation, and a hue shift, without effect."""

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as PIL's conversion to gray


def jitter_turns(order: torch.Tensor, factors: torch.Tensor) -> list[torch.Tensor]:
    """What :func:`jitter` reads: which operation each sample takes in each of its four turns.

    Args:
        order: (n, 4), a permutation of the four operations for each sample, on the CPU.
        factors: (n, 4), by operation, on the CPU; the hue shift in turns, [-0.5, 0.5].

    Returns:
        For each of the four turns (3, n), or (3, 0) where no sample changes: 1 where the base is the pixel's own gray,
        1 where it is the image's mean gray, and the factor; (m,) the samples whose hue turns, and (m,) by how much.
    """
    changed = factors != torch.tensor(IDENTITY)
    row = torch.arange(len(order))
    turns: list[torch.Tensor] = []
    for operation in order.unbind(1):
        active = changed[row, operation]
        blended = (active & (operation != HUE)).any()
        factor = torch.where(operation == HUE, 1, factors[row, operation])
        blend = torch.stack([(operation == SATURATION).float(), (operation == CONTRAST).float(), factor.float()])
        turned = (active & (operation == HUE)).nonzero().squeeze(1)
        turns += blend if blended else blend[:, :0], turned, factors[turned, HUE]
    return turns


def jitter(planes: torch.Tensor, turns: Sequence[torch.Tensor]) -> None:
    """Apply brightness, contrast, saturation and hue, in place.

    Args:
        planes: (3, n, H, W) in [0, 1].
        turns: from :func:`jitter_turns`, on the device of the planes.
    """
    for blend, turned, shift in zip(turns[::3], turns[1::3], turns[2::3]):
        if blend.numel():
            _blend(planes, *blend)
        if len(turned):
            planes[:, turned] = shift_hue(planes.index_select(1, turned), shift)


def grayscale(planes: torch.Tensor, rows: torch.Tensor) -> None:
    """Convert some samples to gray, in place. ``planes`` (3, n, H, W); ``rows`` (m,) int64, which samples."""
    if len(rows):
        planes[:, rows] = luma(planes.index_select(1, rows)).expand(3, -1, -1, -1)


def luma(planes: torch.Tensor) -> torch.Tensor:
    """Gray value of each pixel: (3, ...) to (...)."""
    red, green, blue = planes
    gray: torch.Tensor = (red * _LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])
    return gray


def shift_hue(planes: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Shift the hue at constant value and saturation.

    In HSV a channel is the minimum plus the chroma times ``clip(2 - d, 0, 1)``, where d is the distance of the hue from
    that of the channel, in sixths of the circle. So nothing is sorted, and no conversion back is needed.

    Args:
        planes: (3, n, H, W) in [0, 1].
        shift: (n,), in turns.
    """
    red, green, blue = planes
    value = torch.maximum(red, green).maximum(blue)
    least = torch.minimum(red, green).minimum(blue)
    chroma = value - least
    share = chroma.clamp_min(1e-7).reciprocal_()
    toward_green = (green - blue).mul_(share)
    # Distance from red: |g - b| where red is the maximum, 3 - |g - b| where it is the minimum, linear between.
    off = toward_green.abs()
    from_red = (value - red).mul_(share).mul_(torch.sub(3, off, alpha=2)).add_(off)
    hue = from_red.copysign_(toward_green).add_(6 * shift.view(-1, 1, 1))
    hue.sub_((hue / 6).round_(), alpha=6)
    own = torch.arange(0, 6, 2, device=planes.device).view(3, 1, 1, 1)
    nearness = (hue - own).abs_().sub_(3).abs_().clamp_(1, 2)  # less one: 1 within a sixth, 0 beyond two
    return torch.addcmul(least.sub_(chroma), chroma, nearness)


def _blend(planes: torch.Tensor, *columns: torch.Tensor) -> None:
    """One of brightness, contrast and saturation for each sample, in place; ``columns`` are of a turn, (n,) each."""
    own, mean, by = (column.view(-1, 1, 1) for column in columns)
    gray = luma(planes)
    base = torch.addcmul(gray.mean((1, 2), keepdim=True) * mean, gray, own)
    torch.lerp(base, planes, by, out=planes).clamp_(0, 1)
