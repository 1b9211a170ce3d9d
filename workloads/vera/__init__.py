"""Retrieval that knows when it fails: ranking and confidence learnt apart, in stages (VERA)."""
