"""Reranking of BM25's candidates by a cross-encoder or a bi-encoder."""
