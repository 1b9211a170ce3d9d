"""Search spaces: each function is one, for ``--space NAME``; ``space`` is the default."""

import optuna


def space(trial: optuna.Trial) -> dict[str, float]:
    """The default: the learning rate, over more than two decades."""
    return {"lr": trial.suggest_float("lr", 1e-3, 0.3, log=True)}
