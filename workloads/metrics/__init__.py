"""Metrics with written definitions, batched on the device."""
