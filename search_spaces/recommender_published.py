"""Search space for the rows of published tables: around the source's settings, small enough for eight trials."""

from __future__ import annotations

from typing import Any

import optuna


def around(trial: optuna.Trial) -> dict[str, Any]:
    """All parameters that a published row may search; each row fixes the others.

    The author's later code trains matrix factorisation at lr 5e-4 to 1e-3 and weight decay 1e-5; the text has lr .01
    and weight decay 1e-5 for LightGCN (4.5.1.2). On validation, MF is better here with a higher lr, and decay up to
    1e-4. A step decays every user, but draws one of MovieLens-1M's a sixth as often as one of MovieLens-100K's: the
    range of its decay is a sixth.
    """
    backbone = trial.suggest_categorical("backbone", ["mf", "lightgcn"])
    low, high = (1e-3, 5e-3) if backbone == "mf" else (1e-3, 1e-2)
    times_users = 6.4 if getattr(trial, "fixed", {}).get("dataset") == "ml-1m" else 1.0
    return {
        "backbone": backbone,
        "lr": trial.suggest_float("lr", low, high, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 3e-6 / times_users, 1e-4 / times_users, log=True),
        "negatives": trial.suggest_categorical("negatives", [16, 64, 128]),  # E-6.B: as many as fit
        "tau": trial.suggest_categorical("tau", ["density", 0.1, 0.2]),  # 5.6.2.2: density is too low
        "beta": trial.suggest_categorical("beta", [0.5, 0.7, 0.9, 1.0]),  # E-6.B; HCL: 0.5 to 2 in its paper
        "aobpr_lambda": trial.suggest_float("aobpr_lambda", 30.0, 500.0, log=True),  # the paper: a parameter
        "srns_alpha": trial.suggest_categorical("srns_alpha", [0.0, 1.0, 5.0, 20.0]),  # its code: 5
        "rho": trial.suggest_categorical("rho", [0.2, 0.4, 0.6, 0.8, 1.0]),  # the paper: these
        "lam": trial.suggest_categorical("lam", [0.1, 0.3, 0.5, 0.7, 0.9]),
        "drop_rate": trial.suggest_categorical("drop_rate", [0.05, 0.1, 0.2, 0.3]),  # the paper: .05 to .3
    }
