"""What MLflow hears: a journal, one writer, datasets, system metrics."""
