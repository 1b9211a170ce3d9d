"""Search spaces of the text ranker. Ranges around usual values; comments name the sources.

The presets search the optimiser and the loss's parameters; fix other parameters with ``key=value``
(``encoder=minilm``).
"note" is the source document on pairwise text ranking, E-x the project's errata, "BERT" Devlin et al., NAACL 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna


def space(trial: optuna.Trial) -> dict[str, Any]:
    """The default: optimiser, number and hardness of negatives, and loss, each loss with its parameters."""
    losses = ["ranknet", "adaptive_ranknet", "margin", "adaptive_margin", "listwise", "lambdarank"]
    if "learnable" in _fixed(trial):
        losses.remove("listwise")  # which has nothing to learn
    loss = trial.suggest_categorical("loss", losses)
    own = {
        "ranknet": ranknet, "adaptive_ranknet": adaptive_ranknet, "margin": margin,
        "adaptive_margin": adaptive_margin, "listwise": listwise, "lambdarank": lambdarank,
    }[loss]  # fmt: skip
    return own(trial)


def ranknet(trial: optuna.Trial) -> dict[str, Any]:
    """RankNet (note: σ = 1 and others; E-R1)."""
    return {**_training(trial), "loss": "ranknet", "sigma": _sigma(trial), "ties": _ties(trial)}


def adaptive_ranknet(trial: optuna.Trial) -> dict[str, Any]:
    """RankNet with σ by the gap of grades (E-R5); for more than two grades."""
    return {**ranknet(trial), "loss": "adaptive_ranknet"}


def margin(trial: optuna.Trial) -> dict[str, Any]:
    """Margin ranking with a fixed or learned margin (E-R3: 1; E-R4: between 0.1 and 2)."""
    return {
        **_training(trial),
        "loss": "margin",
        "margin": trial.suggest_float("margin", 0.2, 1.9, log=True),
        "learnable": trial.suggest_categorical("learnable", [False, True]),
    }


def adaptive_margin(trial: optuna.Trial) -> dict[str, Any]:
    """Margin ranking by the gap of grades (E-R4); for more than two grades."""
    return {**margin(trial), "loss": "adaptive_margin"}


def listwise(trial: optuna.Trial) -> dict[str, Any]:
    """Softmax cross entropy of the list."""
    return {**_training(trial), "loss": "listwise"}


def lambdarank(trial: optuna.Trial) -> dict[str, Any]:
    """LambdaRank (Burges 2010: σ scales the scores)."""
    return {**_training(trial), "loss": "lambdarank", "sigma": _sigma(trial)}


def _training(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "lr": trial.suggest_float("lr", 1e-5, 2e-4, log=True),  # BERT: 2e-5 to 5e-5; small encoders take more
        "batch_size": trial.suggest_categorical("batch_size", [4, 8, 16, 32]),  # BERT: 16, 32 sequences
        "negatives": trial.suggest_int("negatives", 1, 15, log=True),  # note: 1; lists of up to 16
        "pool": trial.suggest_categorical("pool", [10, 20, 50, 100]),  # hardest to easier
        "hard": _hard(trial),
    }


def _hard(trial: optuna.Trial) -> float:
    """All negatives if the user sets ``hard_margin``, which needs at least one hard negative; else searched."""
    if _fixed(trial).get("hard_margin") is not None:
        return 1.0
    return float(trial.suggest_categorical("hard", [0.5, 1.0]))


def _sigma(trial: optuna.Trial) -> float:
    """Around the note's 1; a σ that is learned starts below its bound of 2."""
    learned = _fixed(trial).get("learnable", False)
    return float(trial.suggest_float("sigma", 0.3, 1.9 if learned else 5.0, log=True))


def _fixed(trial: optuna.Trial) -> Mapping[str, Any]:
    """The parameters that the user has set."""
    return getattr(trial, "fixed", {})


def _ties(trial: optuna.Trial) -> str:
    return str(trial.suggest_categorical("ties", ["none", "judged", "all"]))
