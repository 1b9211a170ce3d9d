"""The training loop: epochs, experiments and checkpoints. No Ray, no MLflow."""
