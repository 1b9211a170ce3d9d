"""Retrieval collections (documents, queries, judgements): formats, a generated set, BM25."""
