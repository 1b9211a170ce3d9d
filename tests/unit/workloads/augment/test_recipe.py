"""The batched augmentation: distribution of its draws and views compared with PIL and torchvision."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import ColorJitter, RandomResizedCrop
from torchvision.transforms import functional as per_image

from tests.support.pictures import from_pil, generator, noise, pil
from workloads.augment import MEAN, STD, Draws, Recipe, normalise
from workloads.augment import recipe as recipes
from workloads.augment.colour import HUE, IDENTITY
from workloads.augment.crop import random_boxes
from workloads.data.images.synthetic import Planted, generate

LEVEL = 1e-3
"""Level of a test: with these seeds all pass, and with most others."""

NOTHING = Recipe(size=32, scale=(1, 1), ratio=(1, 1), flip=0, jitter=0, gray=0, blur=0)


def pixels(views: torch.Tensor) -> torch.Tensor:
    """Normalised views (n, 3, S, S) back in [0, 1]."""
    return views * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)


# Distributions of the draws


@cache
def drawn(**settings: float) -> Draws:
    return Recipe(size=32, **settings).draw(6000, generator(1))  # type: ignore[arg-type]


def alike(first: object, other: object) -> None:
    assert stats.ks_2samp(first, other).pvalue > LEVEL


@pytest.mark.parametrize("size", [32, 96])
def test_crop_boxes_are_distributed_as_in_torchvision(size: int) -> None:
    scale, ratio = (0.08, 1.0), (3 / 4, 4 / 3)
    found = random_boxes(6000, size, scale, ratio, generator(1)).numpy()
    torch.manual_seed(2)
    image = torch.empty(3, size, size)
    expected = np.array([RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(6000)])
    alike(found[:, 2] * found[:, 3], expected[:, 2] * expected[:, 3])
    alike(found[:, 3] / found[:, 2], expected[:, 3] / expected[:, 2])
    for column in (0, 1):
        alike(found[:, column], expected[:, column])
    assert (found[:, :2] >= 0).all()
    assert (found[:, :2] + found[:, 2:] <= size).all()


def test_jitter_factors_are_distributed_as_in_torchvision() -> None:
    torch.manual_seed(2)
    ranges = ColorJitter(0.8, 0.8, 0.8, 0.2)
    given = [ColorJitter.get_params(ranges.brightness, ranges.contrast, ranges.saturation, ranges.hue)
             for _ in range(6000)]  # fmt: skip
    factors = drawn(jitter=1.0).factors
    for operation in range(4):
        alike(factors[:, operation], [params[1 + operation] for params in given])
    assert abs(np.corrcoef(factors.numpy().T) - np.eye(4)).max() < 0.06


def test_all_orders_of_the_jitter_steps_are_equally_frequent() -> None:
    _, counts = drawn(jitter=1.0).order.unique(dim=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > LEVEL


def test_each_step_has_its_probability() -> None:
    draws = drawn()
    for happened, probability in (
        (draws.flip, 0.5),
        ((draws.factors != torch.tensor(IDENTITY)).any(1), 0.8),
        (draws.gray, 0.2),
        (draws.sigma > 0, 0.5),
    ):
        assert stats.binomtest(int(happened.sum()), len(draws), probability).pvalue > LEVEL
    alike(draws.sigma[draws.sigma > 0], np.random.default_rng(0).uniform(0.1, 2.0, 3000))


def test_strength_scales_the_range_of_the_jitter_factors() -> None:
    factors = drawn(strength=0.5, jitter=1.0).factors
    assert factors[:, :3].min() == pytest.approx(0.6, abs=0.01)
    assert factors[:, :3].max() == pytest.approx(1.4, abs=0.01)
    assert factors[:, HUE].abs().max() == pytest.approx(0.1, abs=0.001)
    assert drawn(strength=2.0, jitter=1.0).factors[:, :3].min() >= 0


def test_crop_box_that_never_fits_becomes_the_whole_image() -> None:
    """A crop of the whole area has aspect ratio 1, which the given range excludes."""
    boxes = random_boxes(200, 32, (1.0, 1.0), (0.5, 0.9), generator())
    assert (boxes == torch.tensor([0.0, 0, 32, 32])).all()


# The whole recipe


@pytest.mark.slow
def test_views_are_distributed_as_those_of_the_per_image_recipe() -> None:
    """Channel means, deviations and pixel histograms of the views are compared, at the strength for small images."""
    images = torch.from_numpy(np.stack(list(generate(Planted(train=1500, test=0)).train.contents()))).permute(
        0, 3, 1, 2
    )
    torch.manual_seed(5)
    crop, colour = RandomResizedCrop(32, (0.2, 1.0)), ColorJitter(0.4, 0.4, 0.4, 0.1)
    expected = []
    for image in images:
        view = crop(pil(image))
        view = per_image.hflip(view) if torch.rand(1) < 0.5 else view
        view = colour(view) if torch.rand(1) < 0.8 else view
        view = per_image.to_grayscale(view, 3) if torch.rand(1) < 0.2 else view
        expected.append(from_pil(view))
    reference = torch.stack(expected)
    recipe = Recipe(size=32, scale=(0.2, 1.0), strength=0.5, blur=0)
    found = pixels(recipe.apply(images, recipe.draw(len(images), generator(6))))
    for channel in range(3):
        alike(found[:, channel].mean((1, 2)), reference[:, channel].mean((1, 2)))
        alike(found[:, channel].std((1, 2)), reference[:, channel].std((1, 2)))
    alike(colourfulness(found), colourfulness(reference))
    weaker = replace(recipe, strength=0.25)
    other = pixels(weaker.apply(images, weaker.draw(len(images), generator(6))))
    assert stats.ks_2samp(colourfulness(other), colourfulness(reference)).pvalue < LEVEL, "the test has no power"
    histograms = [torch.histc(views, 32, 0, 1) / views.numel() for views in (found, reference)]
    assert (histograms[0] - histograms[1]).abs().sum() / 2 < 0.03
    correlations = [np.corrcoef(views[:, :, 1:].flatten(), views[:, :, :-1].flatten())[0, 1]
                    for views in (found, reference)]  # fmt: skip
    assert correlations[0] == pytest.approx(correlations[1], abs=0.005)


def colourfulness(views: torch.Tensor) -> torch.Tensor:
    """Mean difference between the largest and the smallest channel, (n,), in 8-bit steps."""
    return ((views.amax(1) - views.amin(1)).mean((1, 2)) * 255).round()


def test_recipe_without_steps_only_normalises_the_images() -> None:
    images = noise(5)
    torch.testing.assert_close(NOTHING.apply(images, NOTHING.draw(5, generator())), normalise(images))
    expected = per_image.normalize(images / 255, list(MEAN), list(STD))
    torch.testing.assert_close(normalise(images), expected)


def test_the_same_generator_gives_the_same_views() -> None:
    recipe, images = Recipe(size=32), noise(6)
    first, again, other = (recipe.apply(images, recipe.draw(6, generator(seed))) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_each_sample_of_a_batch_is_augmented_differently() -> None:
    recipe = Recipe(size=32)
    views = recipe.apply(noise(1).expand(8, -1, -1, -1), recipe.draw(8, generator()))
    assert len(views.flatten(1).unique(dim=0)) == 8


@pytest.mark.parametrize("rows", [slice(3, 9), torch.tensor([8, 0, 5])])
def test_views_of_some_rows_equal_those_in_the_whole_batch(rows: slice | torch.Tensor) -> None:
    """The view of an image does not depend on the rest of the batch, so workers and micro-batches may split it."""
    recipe, images = Recipe(size=32), noise(12)
    draws = recipe.draw(12, generator())
    torch.testing.assert_close(recipe.apply(images[rows], draws[rows]), recipe.apply(images, draws)[rows])


def test_views_computed_in_blocks_equal_those_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, images = Recipe(size=32), noise(12)
    draws = recipe.draw(12, generator())
    whole = recipe.apply(images, draws)
    monkeypatch.setitem(recipes._AT_ONCE, "cpu", 5 * 3 * 32 * 32)
    torch.testing.assert_close(recipe.apply(images, draws), whole)


def test_views_may_be_smaller_than_the_images_and_channels_last() -> None:
    recipe = Recipe(size=24, source=32)
    draws = recipe.draw(4, generator())
    views = recipe.apply(noise(4), draws, torch.channels_last)
    assert views.shape == (4, 3, 24, 24)
    assert views.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(views.contiguous(), recipe.apply(noise(4), draws))


@pytest.mark.parametrize("value", [0, 255])
def test_flat_images_stay_finite(value: int) -> None:
    recipe = Recipe(size=32, strength=1.25, jitter=1)
    views = recipe.apply(torch.full((64, 3, 32, 32), value, dtype=torch.uint8), recipe.draw(64, generator()))
    found = pixels(views)
    assert torch.isfinite(views).all()
    assert found.min() > -1e-5
    assert found.max() < 1 + 1e-5


def test_empty_batch_gives_an_empty_batch_of_views() -> None:
    recipe = Recipe(size=32)
    assert recipe.apply(noise(0), recipe.draw(0, generator())).shape == (0, 3, 32, 32)


def test_different_numbers_of_images_and_draws_raise_value_error() -> None:
    recipe = Recipe(size=32)
    with pytest.raises(ValueError, match=r"expected images of shape \(3, 3, 32, 32\), got \(4, 3, 32, 32\)"):
        recipe.apply(noise(4), recipe.draw(3, generator()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flip": 1.5}, r"flip must lie in \[0, 1\], got 1.5"),
        ({"blur": -0.1}, r"blur must lie in \[0, 1\]"),
        ({"strength": -1}, r"strength must lie in \[0, 2.5\]"),
        ({"size": 1}, r"size must lie in \[2, inf\]"),
        ({"scale": (0.0, 1.0)}, "scale must be two ascending shares"),
        ({"scale": (0.5, 0.2)}, "scale must be two ascending shares"),
        ({"ratio": (1.1, 1.3)}, "ratio must be two positive numbers around 1"),
        ({"sigma": (0.0, 2.0)}, "sigma must be two ascending positive numbers"),
    ],
)
def test_recipe_with_invalid_settings_raises_value_error(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(NOTHING, **change)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_views_on_a_gpu_equal_those_on_a_cpu() -> None:
    recipe, images = Recipe(size=64), noise(32, 64)
    draws = recipe.draw(32, generator())
    torch.testing.assert_close(recipe.apply(images.cuda(), draws).cpu(), recipe.apply(images, draws), atol=1e-4, rtol=0)
