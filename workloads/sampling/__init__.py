"""Sampling of negatives, batched on the device."""
