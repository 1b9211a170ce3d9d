"""Search spaces of VERA. The losses' weights have the note's ranges; comments name the sources.

"note" is the source document on calibrated retrieval, E-x the project's errata. Fix other parameters
with ``key=value`` (``encoder=minilm``).
"""

from __future__ import annotations

from typing import Any

import optuna


def space(trial: optuna.Trial) -> dict[str, Any]:
    """The default: optimiser, the weights of note 6, the priors of E-V8, and the lengths of the stages.

    Calibrates by held-out queries; with a fixed ``calibration_part=validation`` there is no share to choose.
    """
    part = trial.suggest_categorical("calibration_part", ["train"])
    share = {"calibration_share": trial.suggest_float("calibration_share", 0.05, 0.3)} if part == "train" else {}
    return {
        **_training(trial),
        "method": "vera",
        "temperature": _temperature(trial),
        "cand_weight": trial.suggest_float("cand_weight", 0.1, 0.3),  # note 6
        "query_weight": trial.suggest_float("query_weight", 0.5, 1.0),  # note 6
        "cons_weight": trial.suggest_float("cons_weight", 0.1, 0.3),  # note 6
        "negative_weight": trial.suggest_float("negative_weight", 0.01, 0.1, log=True),  # note 6
        "query_alpha": trial.suggest_float("query_alpha", 0.5, 1.0),  # note 6: 0.7
        "query_beta": trial.suggest_float("query_beta", 0.0, 2.0),  # note 6: 1
        "prior_positive": trial.suggest_float("prior_positive", 0.01, 0.1, log=True),  # E-V8
        "calibration_part": part,
        **share,
        "stage_share": _shares(trial),
    }


def evidential(trial: optuna.Trial) -> dict[str, Any]:
    """The evidential baseline."""
    prior = trial.suggest_float("prior_positive", 0.01, 0.1, log=True)  # E-V8
    return {**_training(trial), "method": "edl", "prior_positive": prior}


def softmax(trial: optuna.Trial) -> dict[str, Any]:
    """The ranking alone, also for temperature scaling, isotonic regression and MC dropout."""
    return {**_training(trial), "method": "softmax", "temperature": _temperature(trial)}


def _training(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "lr": trial.suggest_float("lr", 2e-4, 5e-3, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-4, 1e-1, log=True),
        "dropout": trial.suggest_float("dropout", 0.0, 0.6),
        "batch_size": trial.suggest_categorical("batch_size", [32, 64, 128]),
    }


def _temperature(trial: optuna.Trial) -> float:
    """Around 1, since the scale of scores is learned."""
    return float(trial.suggest_float("temperature", 0.3, 3.0, log=True))


def _shares(trial: optuna.Trial) -> tuple[float, float, float]:
    """Around a half and two quarters (E-V11)."""
    rank = trial.suggest_float("rank_share", 0.3, 0.7)
    query = trial.suggest_float("query_share", 0.15, 0.4)
    return rank, 1 - min(rank + query, 0.95), query
