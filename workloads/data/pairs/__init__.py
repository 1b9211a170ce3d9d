"""Sentence pairs with similarity scores: formats, a generated set, splits."""
