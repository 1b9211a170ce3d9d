"""Each step of the batched augmentation compared with its counterpart in PIL or torchvision."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import functional as per_image

from tests.support.pictures import from_pil, generator, noise, pil, planes
from workloads.augment.blur import blur
from workloads.augment.colour import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    IDENTITY,
    SATURATION,
    grayscale,
    jitter,
    jitter_turns,
    shift_hue,
)
from workloads.augment.crop import random_boxes, resized_crop


@pytest.mark.parametrize(("source", "size"), [(32, 32), (48, 32), (64, 16)])
def test_resized_crop_matches_pil(source: int, size: int) -> None:
    """Crops are enlarged, kept, or reduced with antialiasing, also at borders. PIL rounds to 8 bits twice."""
    images = noise(40, source)
    box = random_boxes(40, source, (0.08, 1.0), (3 / 4, 4 / 3), generator())
    flip = torch.arange(40) % 2 == 0
    found = resized_crop(images, box.float(), flip, size)
    for place, (top, left, height, width) in enumerate(box.int().tolist()):
        expected = per_image.resized_crop(pil(images[place]), top, left, height, width, [size, size])
        expected = per_image.hflip(expected) if flip[place] else expected
        torch.testing.assert_close(found[:, place], from_pil(expected), atol=1.6 / 255, rtol=0)


def test_a_crop_reads_nothing_beyond_its_box() -> None:
    images = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    images[:, :, 4:12, 4:12] = 255
    found = resized_crop(images, torch.tensor([[4.0, 4, 8, 8]]), torch.tensor([False]), 16)
    torch.testing.assert_close(found, torch.ones(3, 1, 16, 16))


def test_crop_of_the_whole_image_at_its_size_is_unchanged() -> None:
    images = noise(3)
    found = resized_crop(images, torch.tensor([[0.0, 0, 32, 32]]).expand(3, 4), torch.zeros(3, dtype=torch.bool), 32)
    torch.testing.assert_close(found, planes(images))


@pytest.mark.parametrize(
    ("operation", "adjust", "factors"),
    [
        (BRIGHTNESS, per_image.adjust_brightness, (0.0, 0.4, 1.0, 1.8)),
        (CONTRAST, per_image.adjust_contrast, (0.0, 0.4, 1.0, 1.8)),
        (SATURATION, per_image.adjust_saturation, (0.0, 0.4, 1.0, 1.8)),
        (HUE, per_image.adjust_hue, (-0.5, -0.2, 0.0, 0.07, 0.5)),
    ],
)
def test_each_jitter_operation_matches_torchvision(operation: int, adjust: object, factors: tuple[float, ...]) -> None:
    images = noise(len(factors))
    values = torch.tensor(IDENTITY).repeat(len(factors), 1)
    values[:, operation] = torch.tensor(factors)
    found = planes(images)
    jitter(found, jitter_turns(torch.arange(4).repeat(len(factors), 1), values))
    for place, factor in enumerate(factors):
        expected = adjust(images[place] / 255, factor)  # type: ignore[operator]
        torch.testing.assert_close(found[:, place], expected, atol=2e-3, rtol=0)  # torchvision has 4-digit gray weights


def test_jitter_in_every_order_matches_torchvision() -> None:
    """Each of 24 samples has one of the 24 orders; the reference applies torchvision's operations one by one."""
    adjust = (
        per_image.adjust_brightness, per_image.adjust_contrast, per_image.adjust_saturation, per_image.adjust_hue,
    )  # fmt: skip
    order = torch.cartesian_prod(*[torch.arange(4)] * 4)
    order = order[order.sort(1).values.eq(torch.arange(4)).all(1)]
    assert len(order) == 24
    images = noise(24)
    factors = torch.rand(24, 4, generator=generator(3)) * torch.tensor([1.6, 1.6, 1.6, 0.4]) + torch.tensor([0.2] * 4)
    found = planes(images)
    jitter(found, jitter_turns(order, factors))
    for place in range(24):
        expected = images[place] / 255
        for operation in order[place].tolist():
            factor = factors[place, operation].item()
            expected = adjust[operation](expected, factor if operation != HUE else (factor + 0.5) % 1 - 0.5)
        torch.testing.assert_close(found[:, place], expected, atol=5e-3, rtol=0)


def test_hue_shift_leaves_gray_black_and_white_unchanged() -> None:
    flat = torch.tensor([0.0, 0.3, 1.0]).view(1, 3, 1, 1).expand(3, 3, 4, 4).contiguous()
    assert torch.equal(shift_hue(flat, torch.tensor([0.2, -0.4, 0.5])), flat)


def test_opposite_hue_shifts_cancel() -> None:
    start = planes(noise(8))
    turn = torch.linspace(-0.5, 0.5, 8)
    torch.testing.assert_close(shift_hue(shift_hue(start, turn), -turn), start, atol=1e-5, rtol=0)


def test_grayscale_matches_pil() -> None:
    images = noise(4)
    found = planes(images)
    grayscale(found, torch.tensor([0, 2]))
    for place, gray in enumerate((True, False, True, False)):
        expected = per_image.to_grayscale(pil(images[place]), 3) if gray else pil(images[place])
        torch.testing.assert_close(found[:, place], from_pil(expected), atol=0.51 / 255, rtol=0)


@pytest.mark.parametrize(("size", "kernel"), [(32, 3), (96, 9), (60, 7)])
def test_blur_matches_torchvision(size: int, kernel: int) -> None:
    """The kernel size is that of SimCLR's code: 2 * (size // 20) + 1."""
    images, sigma = noise(5, size), torch.tensor([0.1, 0.5, 0.0, 1.0, 2.0])
    found = planes(images)
    rows = sigma.nonzero().squeeze(1)
    blur(found, rows, sigma[rows])
    for place, width in enumerate(sigma.tolist()):
        image = images[place] / 255
        expected = per_image.gaussian_blur(image, [kernel, kernel], [width, width]) if width else image
        torch.testing.assert_close(found[:, place], expected, atol=1e-5, rtol=0)
