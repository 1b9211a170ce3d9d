"""Search spaces of the recommender. Ranges around the published settings; sources stand beside them."""

from __future__ import annotations

from typing import Any

import optuna


def space(trial: optuna.Trial) -> dict[str, Any]:
    """The default: optimiser and batch size of the chosen backbone.

    The thesis' public code trains MF at lr 5e-4 to 1e-3 and weight decay 1e-5 with batches of 1,024;
    LightGCN's and RecBole's published settings are lr 1e-3 to 5e-3, reg 1e-5 to 1e-4, batches of 2,048.
    """
    backbone = trial.suggest_categorical("backbone", ["mf", "lightgcn"])
    params: dict[str, Any] = {
        "backbone": backbone,
        "lr": trial.suggest_float("lr", 3e-4, 3e-2, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-7, 1e-3, log=True),
        "batch_size": trial.suggest_categorical("batch_size", [512, 1024, 2048, 4096]),
    }
    if backbone == "lightgcn":
        params["layers"] = trial.suggest_int("layers", 1, 3)  # thesis 4.5.1.2: 1; LightGCN paper: up to 4
    return params


def mf(trial: optuna.Trial) -> dict[str, Any]:
    """Matrix factorisation alone: small enough for a demo."""
    return {
        "backbone": "mf",
        "lr": trial.suggest_float("lr", 1e-3, 3e-2, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-7, 1e-3, log=True),
        "dim": trial.suggest_categorical("dim", [16, 32, 64]),
    }
