"""MLflow's model registry: log, load and serve models, predict with them."""
