"""Aliases that move: gates, a clean process, events, rollback."""
