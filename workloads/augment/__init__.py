"""Random views of images, batched on tensors: each sample its own draw, no per-image Python."""

from workloads.augment.recipe import MEAN, STD, Draws, Recipe, normalise

__all__ = ["MEAN", "STD", "Draws", "Recipe", "normalise"]
