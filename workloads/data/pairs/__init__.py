"""Pairs of sentences and how similar they are: formats, a generated set, splits."""
