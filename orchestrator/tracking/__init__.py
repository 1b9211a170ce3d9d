"""Logging to MLflow: the journal, its sender, datasets, system metrics."""
