"""Sentence embeddings from pairs with a graded similarity: one encoder reads both sentences, their cosine scores."""
