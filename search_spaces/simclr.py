"""Search spaces of SimCLR. Ranges around the published settings; comments name the sources.

The presets of a loss search the optimiser and the loss's parameters; fix other parameters with ``key=value``
(``encoder=resnet50``, ``dataset=cifar-100``). "thesis" is Liu Bin's dissertation, E-x the project's errata, "SimCLR"
Chen et al., ICML 2020.
"""

from __future__ import annotations

from typing import Any

import optuna


def space(trial: optuna.Trial) -> dict[str, Any]:
    """The default: optimiser, temperature, augmentation and loss, each loss with its defaults."""
    return {
        **_training(trial),
        "loss": trial.suggest_categorical("loss", ["infonce", "decoupled", "dcl", "hcl", "bcl"]),
        "strength": trial.suggest_float("strength", 0.25, 1.0),  # SimCLR: 1, on CIFAR 0.5
        "crop": trial.suggest_float("crop", 0.08, 0.4),  # SimCLR: 0.08
    }


def infonce(trial: optuna.Trial) -> dict[str, Any]:
    """SimCLR's NT-Xent (thesis 2.2.4.1)."""
    return {**_training(trial), "loss": "infonce"}


def decoupled(trial: optuna.Trial) -> dict[str, Any]:
    """Decoupled contrastive learning (thesis 2.2.4.3)."""
    return {**_training(trial), "loss": "decoupled"}


def dcl(trial: optuna.Trial) -> dict[str, Any]:
    """The debiased contrastive loss (thesis (6.47))."""
    return {**_training(trial), "loss": "dcl", "tau": _tau(trial)}


def hcl(trial: optuna.Trial) -> dict[str, Any]:
    """DCL with hardness weights (its paper: β from 0 to 2)."""
    return {**_training(trial), "loss": "hcl", "tau": _tau(trial), "beta": trial.suggest_float("beta", 0.0, 2.0)}


def bcl(trial: optuna.Trial) -> dict[str, Any]:
    """BCL: β of table 6.6, τ+ around 1 / C, α from the validation AUC (E-6.21)."""
    return {
        **_training(trial),
        "loss": "bcl",
        "alpha": "auc",
        "beta": trial.suggest_float("beta", 0.5, 1.0),  # table 6.6: 0.5 to 1
        "tau": _tau(trial),
    }


def moco(trial: optuna.Trial) -> dict[str, Any]:
    """MoCo (thesis 2.2.4.1; its code: m 0.99 and t 0.1 for CIFAR-10, 0.999 and 0.07 for ImageNet)."""
    return {**_training(trial), "method": "moco", **_target(trial)}


def moco_bcl(trial: optuna.Trial) -> dict[str, Any]:
    """BCL on MoCo's queue, the thesis' next step (7.2)."""
    return {**bcl(trial), "method": "moco", **_target(trial)}


def byol(trial: optuna.Trial) -> dict[str, Any]:
    """BYOL (thesis 2.2.4.2; its paper's ablation: m of 0.9, 0.99 and 0.999, best 0.99; else 0.996)."""
    return {
        **_optimizer(trial),
        "method": "byol",
        **_target(trial),
        "predictor": trial.suggest_int("predictor", 128, 4096, log=True),
    }


def protonce(trial: optuna.Trial) -> dict[str, Any]:
    """ProtoNCE (thesis 2.2.4.4; its paper: 25,000 to 100,000 prototypes of 1.28 million images, t 0.1)."""
    return {
        **_training(trial),
        "method": "protonce",
        **_target(trial),
        "clusters": trial.suggest_int("clusters", 8, 128, log=True),
        "granularities": trial.suggest_int("granularities", 1, 3),
    }


def directclr(trial: optuna.Trial) -> dict[str, Any]:
    """No head, the loss on the first features (thesis 2.2.4.2; its paper: 360 of 2048) that every encoder has."""
    return {**_training(trial), "loss": "infonce", "subvector": trial.suggest_int("subvector", 16, 128, log=True)}


def published(trial: optuna.Trial) -> dict[str, Any]:
    """Around the settings of tables 6.4 to 6.7, whose rows fix everything (thesis 6.6.2.3)."""
    return {"lr": trial.suggest_float("lr", 3e-4, 3e-3, log=True)}


def _training(trial: optuna.Trial) -> dict[str, Any]:
    """With a temperature around the thesis' 0.5 (6.6.2.3; SimCLR's best on CIFAR: 0.5, ImageNet: 0.1)."""
    return {**_optimizer(trial), "temperature": trial.suggest_float("temperature", 0.1, 1.0, log=True)}


def _optimizer(trial: optuna.Trial) -> dict[str, Any]:
    """Adam around the thesis' 0.001 (6.6.2.3)."""
    return {
        "lr": trial.suggest_float("lr", 3e-4, 3e-3, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-7, 1e-4, log=True),
    }


def _target(trial: optuna.Trial) -> dict[str, Any]:
    """MoCo's ablation: 0.9 to 0.9999."""
    return {"target_momentum": trial.suggest_float("target_momentum", 0.9, 0.999)}


def _tau(trial: optuna.Trial) -> float:
    """Table 6.7: 0.001 to 0.01 for 200 classes, best at 1 / C; 0.1 for ten classes."""
    return float(trial.suggest_float("tau", 1e-3, 0.2, log=True))
