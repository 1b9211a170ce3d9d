"""Datasets of images: where they come from, decoded once, split. Light to import; only ``prepared`` needs PyTorch."""
