"""Search spaces of the recommender. Ranges around the published settings; sources stand beside them.

The presets of a loss or a sampler search the optimiser and what the loss or the sampler reads; hold the rest as you
like (``backbone=lightgcn``, ``sampler=dns``). "thesis" is Liu Bin's dissertation, E-x the project's errata.
"""

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


def sgd(trial: optuna.Trial) -> dict[str, Any]:
    """Sequential SGD of matrix factorisation, compiled: a trial takes a second (thesis 4.5.1.2: .01 and .01)."""
    return {
        "optimizer": "sgd",
        "lr": trial.suggest_float("lr", 3e-3, 1e-1, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-3, 1e-1, log=True),
    }


def sgd_bns(trial: optuna.Trial) -> dict[str, Any]:
    """Sequential SGD with Bayesian negative sampling, the thesis' algorithm 2."""
    return {**sgd(trial), **_bns(trial)}


def infonce(trial: optuna.Trial) -> dict[str, Any]:
    """InfoNCE (thesis table 4.4: N = 2; tables 5.2 and 6.3 do not say)."""
    return {**_adam(trial), "loss": "infonce", **_contrastive(trial)}


def decoupled(trial: optuna.Trial) -> dict[str, Any]:
    """Decoupled contrastive learning (thesis 2.2.4.3)."""
    return {**_adam(trial), "loss": "decoupled", **_contrastive(trial)}


def dcl(trial: optuna.Trial) -> dict[str, Any]:
    """The debiased contrastive loss (thesis 5.6.1.4)."""
    return {**_adam(trial), "loss": "dcl", **_contrastive(trial), "tau": _tau(trial)}


def hcl(trial: optuna.Trial) -> dict[str, Any]:
    """DCL with hardness weights (thesis 5.6.1.4; the paper: β from 0 to 2)."""
    beta = trial.suggest_float("beta", 0.0, 2.0)
    return {**_adam(trial), "loss": "hcl", **_contrastive(trial), "tau": _tau(trial), "beta": beta}


def dpl(trial: optuna.Trial) -> dict[str, Any]:
    """The debiased pairwise loss (thesis figure 5.3: M from 0, N from 1 to 15, τ+ around the density)."""
    return {
        **_adam(trial),
        "loss": "dpl",
        "negatives": trial.suggest_int("negatives", 1, 15),
        "positives": trial.suggest_int("positives", 0, 15),
        "tau": _tau(trial),
    }


def hard_dpl(trial: optuna.Trial) -> dict[str, Any]:
    """DPL on dynamically sampled negatives (thesis table 5.3: τ+ of .3 and .25)."""
    params = dpl(trial)
    return {**params, "sampler": "dns", "candidates": trial.suggest_int("candidates", 2, 15)}


def bcl(trial: optuna.Trial) -> dict[str, Any]:
    """BCL: α from the validation AUC, β of E-6.B's grid, τ+ around the density."""
    return {
        **_adam(trial),
        "loss": "bcl",
        **_contrastive(trial),
        "alpha": "auc",
        "beta": trial.suggest_categorical("beta", [0.5, 0.7, 0.9, 1.0]),
        "tau": _tau(trial),
    }


def in_batch(trial: optuna.Trial) -> dict[str, Any]:
    """InfoNCE against the items of the batch, whose size is about N (E-6.B: as large as fits)."""
    return {
        **_adam(trial),
        "loss": "infonce",
        "sampler": "in_batch",
        "batch_size": trial.suggest_categorical("batch_size", [256, 512, 1024, 2048]),
        "temperature": trial.suggest_float("temperature", 0.25, 4.0, log=True),  # E-2.2: 1
    }


def gbpr(trial: optuna.Trial) -> dict[str, Any]:
    """Group preference (its paper: ρ from .2 to 1, groups of 1 to 5)."""
    return {
        **_adam(trial),
        "loss": "gbpr",
        "rho": trial.suggest_float("rho", 0.0, 1.0),
        "group": trial.suggest_int("group", 2, 5),
    }


def mpr(trial: optuna.Trial) -> dict[str, Any]:
    """Multiple pairwise ranking (thesis 3.5.1)."""
    return {**_adam(trial), "loss": "mpr", "lam": trial.suggest_float("lam", 0.0, 1.0)}


def denoise(trial: optuna.Trial) -> dict[str, Any]:
    """DenoiseRec, truncated or reweighted (its paper: drop rates of .05 to .3, β of .05 to 1; no threshold given)."""
    loss = trial.suggest_categorical("loss", ["denoise_truncated", "denoise_reweighted", "denoise_truncated_bpr"])
    params = {**_adam(trial), "loss": loss}
    if loss == "denoise_truncated":
        return {**params, "drop_rate": trial.suggest_float("drop_rate", 0.05, 0.3)}
    if loss == "denoise_truncated_bpr":
        return {**params, "threshold": trial.suggest_float("threshold", 0.8, 4.0, log=True)}  # BPR starts at ln 2
    return {**params, "beta": trial.suggest_float("beta", 0.05, 1.0, log=True)}


def bprac(trial: optuna.Trial) -> dict[str, Any]:
    """BPRAC in its three forms of credence (thesis 3.5.1: prior variance .6, .6, .2)."""
    return {
        **_adam(trial),
        "loss": "bprac",
        "credence": trial.suggest_categorical("credence", ["mean1", "thesis", "bayes"]),
        "prior_var": trial.suggest_float("prior_var", 0.1, 1.0, log=True),
    }


def samplers(trial: optuna.Trial) -> dict[str, Any]:
    """Which negative sampler, with the loss held (thesis table 4.2)."""
    sampler = trial.suggest_categorical("sampler", ["uniform", "popularity", "aobpr", "dns", "srns", "bns"])
    own = {"aobpr": aobpr, "dns": dns, "srns": srns, "bns": bns}.get(sampler, _adam)
    return {"sampler": sampler, **own(trial)}


def aobpr(trial: optuna.Trial) -> dict[str, Any]:
    """Adaptive oversampling by rank (the thesis does not say λ)."""
    scale = trial.suggest_float("aobpr_lambda", 10.0, 1000.0, log=True)
    return {**_adam(trial), "sampler": "aobpr", "aobpr_lambda": scale}


def dns(trial: optuna.Trial) -> dict[str, Any]:
    """Dynamic negative sampling; candidates as for BNS (thesis figure 4.5)."""
    return {**_adam(trial), "sampler": "dns", "candidates": trial.suggest_int("candidates", 2, 15)}


def srns(trial: optuna.Trial) -> dict[str, Any]:
    """SRNS; ranges around its paper's code (memory 8 to 20, α 5, τ 10)."""
    return {
        **_adam(trial),
        "sampler": "srns",
        "srns_memory": trial.suggest_int("srns_memory", 4, 32, log=True),
        "srns_alpha": trial.suggest_float("srns_alpha", 0.1, 20.0, log=True),
        "srns_temperature": trial.suggest_float("srns_temperature", 0.5, 20.0, log=True),
    }


def bns(trial: optuna.Trial) -> dict[str, Any]:
    """Bayesian negative sampling (thesis figure 4.5: λ from .1 to 15, candidates from 1 to 15)."""
    return {**_adam(trial), **_bns(trial)}


def _adam(trial: optuna.Trial) -> dict[str, Any]:
    """Around lr 5e-4 to 1e-2 and weight decay 1e-5 of the thesis' code, at its batch of 1,024."""
    return {
        "lr": trial.suggest_float("lr", 3e-4, 3e-2, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-7, 1e-3, log=True),
    }


def _bns(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "sampler": "bns",
        "bns_lambda": trial.suggest_float("bns_lambda", 0.1, 15.0, log=True),
        "candidates": trial.suggest_int("candidates", 2, 15),
        "bns_prior": trial.suggest_categorical("bns_prior", ["popularity", "users", "uninformative"]),
    }


def _contrastive(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "negatives": trial.suggest_int("negatives", 1, 256, log=True),
        "temperature": trial.suggest_float("temperature", 0.25, 4.0, log=True),  # E-2.2: 1
    }


def _tau(trial: optuna.Trial) -> float:
    """The densities of the thesis' sets are .0008 to .063, which are too low (5.6.2.2); table 5.3: up to .3."""
    found: float = trial.suggest_float("tau", 1e-3, 0.4, log=True)
    return found
