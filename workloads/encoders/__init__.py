"""Encoders: a text or an image becomes a vector."""
