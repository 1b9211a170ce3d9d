"""Losses, one file by the shape of what they take, one function a formula: tensors in, never a model."""
