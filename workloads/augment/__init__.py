"""Random image augmentation in batches, with separate draws for each image."""

from workloads.augment.recipe import MEAN, STD, Draws, PlacedDraws, Recipe, normalise

__all__ = ["MEAN", "STD", "Draws", "PlacedDraws", "Recipe", "normalise"]
