"""Repeat recorded runs, and published tables and figures."""
