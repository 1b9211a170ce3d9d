"""Workloads: plain PyTorch, no Ray, no MLflow, no Optuna. Start at ``contract.py`` and ``catalog.py``."""
