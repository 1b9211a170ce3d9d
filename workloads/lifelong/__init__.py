"""First-stage retrieval with documents arriving in sessions and an append-only index (L2R)."""
