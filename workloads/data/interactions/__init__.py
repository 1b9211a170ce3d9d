"""Interactions of users with items: formats, generated sets, splits, variants."""
