"""Lifelong first-stage retrieval: documents arrive in sessions, and the index is only ever appended to (L2R)."""
