"""Promotion of model versions: gates, check in a clean process, audit log, rollback."""
