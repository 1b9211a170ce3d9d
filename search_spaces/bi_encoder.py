"""Search spaces of the bi-encoder. Ranges around the design note's settings; comments name the sources.

The presets of a loss search the optimiser and the loss's parameters; fix other parameters with ``key=value``
(``encoder=minilm``, ``dataset=stsb``). "note" is the design of STS-B with a bi-encoder, E-x the project's errata.
"""

from __future__ import annotations

from typing import Any

import optuna


def space(trial: optuna.Trial) -> dict[str, Any]:
    """The default: optimiser, batch size and loss, each loss with its defaults."""
    return {
        **_training(trial),
        "loss": trial.suggest_categorical("loss", ["mse", "cosent", "cosine_embedding", "infonce"]),
        "batch_size": trial.suggest_categorical("batch_size", [16, 32, 64]),  # BERT: 16, 32; note: 32
    }


def tiny(trial: optuna.Trial) -> dict[str, Any]:
    """An encoder from scratch on generated pairs: small enough for a demo."""
    return {
        "encoder": "tiny",
        "lr": trial.suggest_float("lr", 2e-4, 5e-3, log=True),
        "loss": trial.suggest_categorical("loss", ["mse", "cosent", "infonce"]),
    }


def bert_base(trial: optuna.Trial) -> dict[str, Any]:
    """The note's settings (6.6); fix ``encoder=bert-base``. Learning rates of BERT's authors."""
    return {
        "loss": "mse",
        "lr": trial.suggest_categorical("lr", [2e-5, 3e-5, 5e-5]),  # Devlin et al., 2019, A.3; note: 2e-5
        "batch_size": 32,
        "warmup": 0.1,
        "weight_decay": 0.01,
        "max_length": 128,
    }


def mse(trial: optuna.Trial) -> dict[str, Any]:
    """Regression on the cosine, with the cosine for a score of 0 (note: 0 or -1; docs/results/bi-encoder.md: 0.1)."""
    lowest = trial.suggest_categorical("lowest_cosine", [-1.0, -0.5, 0.0, 0.1])
    return {**_training(trial), "loss": "mse", "lowest_cosine": lowest}


def cosent(trial: optuna.Trial) -> dict[str, Any]:
    """The order of the scores (CoSENT's author: a scale of 20, a temperature of .05)."""
    return {**_training(trial), "loss": "cosent", "temperature": _temperature(trial)}


def cosine_embedding(trial: optuna.Trial) -> dict[str, Any]:
    """Two classes, separated at a score (PyTorch: a margin from 0 to .5)."""
    return {
        **_training(trial),
        "loss": "cosine_embedding",
        "positive_from": trial.suggest_categorical("positive_from", [3.0, 4.0]),
        "margin": trial.suggest_float("margin", 0.0, 0.5),
    }


def infonce(trial: optuna.Trial) -> dict[str, Any]:
    """The batch's other sentences as negatives (sentence-transformers: a scale of 20, larger batches are better)."""
    return {**_in_batch(trial), "loss": "infonce"}


def dcl(trial: optuna.Trial) -> dict[str, Any]:
    """The debiased contrastive loss (thesis 5.6.1.4)."""
    return {**_in_batch(trial), "loss": "dcl", "tau": _tau(trial)}


def hcl(trial: optuna.Trial) -> dict[str, Any]:
    """DCL with hardness weights (its paper: β from 0 to 2)."""
    beta = trial.suggest_float("beta", 0.0, 2.0)
    return {**_in_batch(trial), "loss": "hcl", "tau": _tau(trial), "beta": beta}


def bcl(trial: optuna.Trial) -> dict[str, Any]:
    """BCL (E-6.21: α from the separation of scores; E-6.B: the grid of β)."""
    return {
        **_in_batch(trial),
        "loss": "bcl",
        "tau": _tau(trial),
        "alpha": trial.suggest_float("alpha", 0.5, 1.0),
        "beta": trial.suggest_categorical("beta", [0.5, 0.7, 0.9, 1.0]),
    }


def _training(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "lr": trial.suggest_float("lr", 1e-5, 1e-4, log=True),  # BERT: 2e-5 to 5e-5; smaller encoders need more
        "warmup": trial.suggest_categorical("warmup", [0.0, 0.1]),  # note: 0.1
    }


def _in_batch(trial: optuna.Trial) -> dict[str, Any]:
    return {
        **_training(trial),
        "temperature": _temperature(trial),
        "batch_size": trial.suggest_categorical("batch_size", [32, 64, 128]),
    }


def _temperature(trial: optuna.Trial) -> float:
    """Around .05, as in SimCSE (Gao et al., EMNLP 2021), where .01 and .1 are worse."""
    return float(trial.suggest_float("temperature", 0.02, 0.2, log=True))


def _tau(trial: optuna.Trial) -> float:
    """From 0 to 0.1: sentences of a batch rarely have the same meaning."""
    return float(trial.suggest_float("tau", 1e-3, 0.1, log=True))
