"""Retrieval with a calibrated confidence, trained in stages (VERA)."""
