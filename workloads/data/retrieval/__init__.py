"""Collections of documents, queries and judgements: formats, a generated set, BM25."""
