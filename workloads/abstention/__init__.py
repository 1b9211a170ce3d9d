"""Abstention with a guarantee: thresholds below which a served model does not answer."""
