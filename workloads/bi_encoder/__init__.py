"""Sentence embeddings learned from pairs with a graded similarity."""
