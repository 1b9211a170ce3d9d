"""The Optuna study in its journal, samplers, schedulers, search spaces."""
