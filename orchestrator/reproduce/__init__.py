"""Recorded runs again, and published tables and figures."""
