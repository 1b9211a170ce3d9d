"""Search spaces of lifelong retrieval. Ranges around the source's choices; fix other parameters with ``key=value``
(``encoder=minilm``).

"notes" is the source document on L2R, E-x the project's errata, "BERT" Devlin et al., NAACL 2019.
"""

from __future__ import annotations

from typing import Any

import optuna


def space(trial: optuna.Trial) -> dict[str, Any]:
    """The default: L2R with either alignment, its weight, and the choice of negatives."""
    compatible = trial.suggest_categorical("compatible", ["ranking", "embedding"])
    return (ranking if compatible == "ranking" else embedding)(trial)


def ranking(trial: optuna.Trial) -> dict[str, Any]:
    """L2R with the alignment of rankings (notes; E-L5)."""
    return {**_l2r(trial), "compatible": "ranking"}


def embedding(trial: optuna.Trial) -> dict[str, Any]:
    """L2R with the alignment of embeddings (notes; E-L8)."""
    return {**_l2r(trial), "compatible": "embedding"}


def replay(trial: optuna.Trial) -> dict[str, Any]:
    """Earlier methods: ER, MIR, GSS, OCS."""
    return {
        **_training(trial),
        "new": "random",
        "memory": trial.suggest_categorical("memory", ["random", "mir", "gss", "ocs"]),
        "compatible": "frozen",
    }


def _l2r(trial: optuna.Trial) -> dict[str, Any]:
    return {
        **_training(trial),
        "new": "l2r",
        "memory": "isd",
        "alpha": trial.suggest_float("alpha", 0.0, 1.0),  # notes: alpha; E-L3: 0.5
        "standardise": trial.suggest_categorical("standardise", [False, True]),  # E-L3
        "align_weight": trial.suggest_float("align_weight", 0.01, 100.0, log=True),  # notes: λ, no value printed
    }


def _training(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "lr": trial.suggest_float("lr", 5e-6, 1e-4, log=True),  # BERT: 2e-5 to 5e-5
        "n_new": trial.suggest_categorical("n_new", [4, 8, 16]),
        "temperature": trial.suggest_float("temperature", 0.02, 0.2, log=True),  # around Sentence-BERT's 0.05
    }
