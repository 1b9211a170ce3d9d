"""Search spaces of the recommender. Ranges around the published settings; comments name the sources.

The presets of a loss or sampler search the optimiser and the parameters of that loss or sampler; fix other parameters
with ``key=value`` (``backbone=lightgcn``, ``sampler=dns``). ``everything`` also searches the others. "thesis" is Liu
Bin's dissertation, E-x the project's errata. Published rows are searched in ``recommender_published.py`` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
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
        **_adam(trial),
        "batch_size": trial.suggest_categorical("batch_size", [512, 1024, 2048, 4096]),
    }
    if backbone == "lightgcn":
        params["layers"] = trial.suggest_int("layers", 1, 3)  # thesis 4.5.1.2: 1; LightGCN paper: up to 4
    return params


def mf(trial: optuna.Trial) -> dict[str, Any]:
    """Matrix factorisation: small enough for a demo."""
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


def item_knn(trial: optuna.Trial) -> dict[str, Any]:
    """Item neighbours (Ferrari Dacrema et al., RecSys 2019: 5 to 1,000 neighbours, shrink 0 to 1,000)."""
    return {
        "backbone": "item_knn",
        "knn_items": trial.suggest_int("knn_items", 5, 1000, log=True),
        "knn_shrink": trial.suggest_float("knn_shrink", 0.0, 1000.0),
    }


def ease(trial: optuna.Trial) -> dict[str, Any]:
    """EASE (Steck, WWW 2019: λ of 200 to 1,000 on larger sets; small ones take less)."""
    return {"backbone": "ease", "ease_lambda": trial.suggest_float("ease_lambda", 10.0, 3000.0, log=True)}


def ials(trial: optuna.Trial) -> dict[str, Any]:
    """Implicit ALS (Hu et al., ICDM 2008: α 40; Rendle et al., RecSys 2022: dimension and both weights matter)."""
    return {
        "backbone": "ials",
        "dim": trial.suggest_categorical("dim", [16, 32, 64, 128]),
        "ials_alpha": trial.suggest_float("ials_alpha", 0.5, 50.0, log=True),
        "ials_lambda": trial.suggest_float("ials_lambda", 1.0, 300.0, log=True),
    }


def infonce(trial: optuna.Trial) -> dict[str, Any]:
    """InfoNCE (thesis table 4.4: N = 2; tables 5.2 and 6.3 do not say)."""
    return {**_adam(trial), "loss": "infonce", **_contrastive(trial)}


def decoupled(trial: optuna.Trial) -> dict[str, Any]:
    """Decoupled contrastive learning (thesis 2.2.4.3)."""
    return {**_adam(trial), "loss": "decoupled", **_contrastive(trial)}


def dcl(trial: optuna.Trial) -> dict[str, Any]:
    """The debiased contrastive loss (thesis 5.6.1.4)."""
    return {**_adam(trial), "loss": "dcl", **_debiased(trial)}


def hcl(trial: optuna.Trial) -> dict[str, Any]:
    """DCL with hardness weights (thesis 5.6.1.4; the paper: β from 0 to 2)."""
    return {**_adam(trial), "loss": "hcl", **_debiased(trial), "beta": trial.suggest_float("beta", 0.0, 2.0)}


def dpl(trial: optuna.Trial) -> dict[str, Any]:
    """The debiased pairwise loss (thesis figure 5.3: M from 0, N from 1 to 15, τ+ around the density)."""
    return {
        **_adam(trial),
        "loss": "dpl",
        "negatives": trial.suggest_int("negatives", 1, 15, log=True),
        "positives": trial.suggest_int("positives", 0, 15),
        "tau": _tau(trial),
    }


def supervised(trial: optuna.Trial) -> dict[str, Any]:
    """The supervised oracle (thesis 5.27), on the planted truth; negatives as for DPL."""
    return {**_adam(trial), "loss": "supervised", "negatives": trial.suggest_int("negatives", 1, 15, log=True)}


def hard_dpl(trial: optuna.Trial) -> dict[str, Any]:
    """DPL on dynamically sampled negatives (thesis table 5.3: τ+ of .3 and .25)."""
    return {**dpl(trial), "sampler": "dns", "candidates": _candidates(trial)}


def bcl(trial: optuna.Trial) -> dict[str, Any]:
    """BCL: α from the validation AUC or fixed (E-6.21), β from .5 to 1 (E-6.B), τ+ around the density."""
    return {
        **_adam(trial),
        "loss": "bcl",
        **_contrastive(trial),
        "alpha": trial.suggest_categorical("alpha", ["auc", "auc_literal", 0.7, 0.8, 0.9]),
        "beta": trial.suggest_float("beta", 0.5, 1.0, step=0.1),
        "tau": _tau(trial),
    }


def in_batch(trial: optuna.Trial) -> dict[str, Any]:
    """InfoNCE against the items of the batch, with N about the batch size (E-6.B: as large as fits)."""
    return {
        **_adam(trial),
        "loss": "infonce",
        "sampler": "in_batch",
        "batch_size": trial.suggest_categorical("batch_size", [256, 512, 1024, 2048]),
        "temperature": trial.suggest_float("temperature", 0.25, 4.0, log=True),  # E-2.2: 1
        "logq": trial.suggest_categorical("logq", [False, True]),
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
    loss: str = trial.suggest_categorical("loss", [f"denoise_{form}" for form in _DENOISE])
    return {**_adam(trial), "loss": loss, **_denoise(trial, loss.removeprefix("denoise_"))}


def bprac(trial: optuna.Trial) -> dict[str, Any]:
    """BPRAC in its three forms of credence (thesis 3.5.1: prior variance .6, .6, .2)."""
    return {
        **_adam(trial),
        "loss": "bprac",
        "credence": trial.suggest_categorical("credence", ["mean1", "thesis", "bayes"]),
        "prior_var": trial.suggest_float("prior_var", 0.1, 1.0, log=True),
        "e_steps": trial.suggest_categorical("e_steps", ["epoch", 10]),  # thesis algorithm 1: T = 10
    }


def sgl(trial: optuna.Trial) -> dict[str, Any]:
    """SGL on LightGCN (its paper: weights .005 to 1, t .1 to 1, ratios 0 to .5)."""
    return {
        **_contrast(trial, "sgl"),
        "augmentation": trial.suggest_categorical("augmentation", ["edge_drop", "node_drop", "random_walk"]),
        "drop_ratio": trial.suggest_float("drop_ratio", 0.05, 0.5),
    }


def simgcl(trial: optuna.Trial) -> dict[str, Any]:
    """SimGCL on LightGCN (its paper: noise .01 to 1, best .1)."""
    return {**_contrast(trial, "simgcl"), "noise": trial.suggest_float("noise", 0.01, 1.0, log=True)}


def lightgcl(trial: optuna.Trial) -> dict[str, Any]:
    """LightGCL on LightGCN (its paper: 5 singular values, 1 to 8 searched)."""
    return {**_contrast(trial, "lightgcl"), "svd_rank": trial.suggest_int("svd_rank", 1, 16, log=True)}


def ncl(trial: optuna.Trial) -> dict[str, Any]:
    """NCL on LightGCN (its code: 1,000 clusters, item weight 1.5, 20 epochs without prototypes; E-GCL: weight 2e-4)."""
    return {
        **_contrast(trial, "ncl", (1e-5, 1e-2)),
        "item_weight": trial.suggest_float("item_weight", 0.5, 2.0),
        "prototype_weight": trial.suggest_float("prototype_weight", 1e-5, 1e-2, log=True),
        "clusters": trial.suggest_int("clusters", 10, 300, log=True),
        "prototype_warmup": trial.suggest_int("prototype_warmup", 0, 40, step=10),
    }


def samplers(trial: optuna.Trial) -> dict[str, Any]:
    """The negative sampler, with a fixed loss (thesis table 4.2)."""
    sampler = trial.suggest_categorical("sampler", ["uniform", "popularity", "aobpr", "dns", "srns", "bns"])
    own = {"aobpr": aobpr, "dns": dns, "srns": srns, "bns": bns}.get(sampler, _adam)
    return {"sampler": sampler, **own(trial)}


def aobpr(trial: optuna.Trial) -> dict[str, Any]:
    """Adaptive oversampling by rank (λ is not in the thesis)."""
    scale = trial.suggest_float("aobpr_lambda", 10.0, 1000.0, log=True)
    return {**_adam(trial), "sampler": "aobpr", "aobpr_lambda": scale}


def dns(trial: optuna.Trial) -> dict[str, Any]:
    """Dynamic negative sampling; candidates as for BNS (thesis figure 4.5)."""
    return {**_adam(trial), "sampler": "dns", "candidates": _candidates(trial)}


def srns(trial: optuna.Trial) -> dict[str, Any]:
    """SRNS; ranges around its paper's code (memory 8 to 20, α 5 over 50 epochs, τ 10)."""
    return {
        **_adam(trial),
        "sampler": "srns",
        "candidates": trial.suggest_int("candidates", 16, 128),
        "srns_warmup": trial.suggest_int("srns_warmup", 10, 100),
        "srns_memory": trial.suggest_int("srns_memory", 4, 32, log=True),
        "srns_alpha": trial.suggest_float("srns_alpha", 0.1, 20.0, log=True),
        "srns_temperature": trial.suggest_float("srns_temperature", 0.5, 20.0, log=True),
    }


def bns(trial: optuna.Trial) -> dict[str, Any]:
    """Bayesian negative sampling (thesis figure 4.5: λ from .1 to 15, candidates from 1 to 15)."""
    return {**_adam(trial), **_bns(trial)}


def everything(trial: optuna.Trial) -> dict[str, Any]:
    """All parameters with Adam, conditional on loss, sampler and backbone: for hundreds of trials, or fix these three.

    Excludes ``sampler=in_batch``, which can be fixed with a loss that supports it, and parameters that use the test
    part.
    """
    backbone = trial.suggest_categorical("backbone", ["mf", "lightgcn"])
    loss = trial.suggest_categorical("loss", [*_LOSSES])
    sampler = trial.suggest_categorical("sampler", [*_SAMPLERS])
    params = {"backbone": backbone, "loss": loss, "sampler": sampler, **_adam(trial), **_schedule(trial)}
    params["dim"] = trial.suggest_categorical("dim", [16, 32, 64, 128])  # thesis 4.5.1.2: 32; 3.5.1: 27
    params["batch_size"] = trial.suggest_categorical("batch_size", [128, 512, 1024, 2048, 4096])
    if backbone == "lightgcn":
        params["layers"] = trial.suggest_int("layers", 1, 4)  # thesis 4.5.1.2: 1; LightGCN paper: up to 4
        contrast = trial.suggest_categorical("contrast", [None, *_CONTRASTS])
        params |= _CONTRASTS[contrast](trial) if contrast else {"contrast": None}
    # Fixed ones that are not drawn: in_batch has no parameters here, and supervised needs a truth that is known.
    own = _SAMPLERS.get(sampler, lambda _trial: {})
    of_loss = supervised if loss == "supervised" else _LOSSES.get(loss, lambda _trial: {})
    return {**params, **of_loss(trial), **own(trial)}


def _adam(trial: optuna.Trial) -> dict[str, Any]:
    """Around lr 5e-4 to 1e-2 and weight decay 1e-5 of the thesis' code, at its batch size of 1,024."""
    return {
        "lr": trial.suggest_float("lr", 3e-4, 3e-2, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-7, 1e-3, log=True),
    }


def _contrast(trial: optuna.Trial, method: str, weights: tuple[float, float] = (3e-4, 2.0)) -> dict[str, Any]:
    """SGL, SimGCL and LightGCL: t around .2; weights from .005 (SGL) to 2 (SimGCL), on ML-100K .003 (measured)."""
    return {
        **_adam(trial),
        "backbone": "lightgcn",
        "layers": trial.suggest_int("layers", 1, 4),  # as in everything
        "contrast": method,
        "contrast_weight": trial.suggest_float("contrast_weight", *weights, log=True),
        "contrast_temperature": trial.suggest_float("contrast_temperature", 0.05, 1.0, log=True),
    }


def _bns(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "sampler": "bns",
        "bns_lambda": trial.suggest_float("bns_lambda", 0.1, 15.0, log=True),
        "candidates": _candidates(trial),
        "bns_prior": trial.suggest_categorical("bns_prior", ["popularity", "users", "uninformative"]),
    }


def _contrastive(trial: optuna.Trial) -> dict[str, Any]:
    params: dict[str, Any] = {"temperature": trial.suggest_float("temperature", 0.25, 4.0, log=True)}  # E-2.2: 1
    if _held(trial, "sampler") != "in_batch":  # N is the batch size
        params["negatives"] = trial.suggest_int("negatives", 1, 256, log=True)
    return params


def _debiased(trial: optuna.Trial) -> dict[str, Any]:
    """Positives for the estimate of g, up to ten (5.6.1.4; E-DCL: 1 is the positive itself, 0 none)."""
    return {**_contrastive(trial), "positives": trial.suggest_int("positives", 0, 10), "tau": _tau(trial)}


def _candidates(trial: optuna.Trial) -> int:
    """Thesis figure 4.5; 1 is uniform sampling."""
    return int(trial.suggest_int("candidates", 1, 15))


_DENOISE = ("truncated", "reweighted", "truncated_bpr")


def _denoise(trial: optuna.Trial, form: str) -> dict[str, Any]:
    if form == "truncated":
        return {
            "drop_rate": trial.suggest_float("drop_rate", 0.05, 0.3),
            "drop_steps": trial.suggest_int("drop_steps", 1_000, 50_000, log=True),  # the paper's code: 30,000
        }
    if form == "truncated_bpr":
        return {"threshold": trial.suggest_float("threshold", 0.8, 4.0, log=True)}  # BPR starts at ln 2
    return {"beta": trial.suggest_float("beta", 0.05, 1.0)}


def _schedule(trial: optuna.Trial) -> dict[str, Any]:
    """Thesis 4.5.1.2: x 0.1 every 20 epochs, for LightGCN; the code of its DPL: x 0.5 every 100."""
    decay = trial.suggest_categorical("lr_decay", [1.0, 0.5, 0.1])
    return {"lr_decay": decay} | (
        {"lr_decay_every": trial.suggest_int("lr_decay_every", 20, 100, step=20)} if decay < 1 else {}
    )


def _whole_bns(trial: optuna.Trial) -> dict[str, Any]:
    """Figure 4.5's λ and the warm start, the four priors of table 4.3 and E-4.16, and how exact F is (E-4.15)."""
    return {
        "bns_lambda": trial.suggest_categorical("bns_lambda", [0.1, 0.5, 1.0, 5.0, 10.0, 15.0, "warm"]),
        "bns_uniform_epochs": trial.suggest_int("bns_uniform_epochs", 0, 40, step=10),
        **_posterior(trial),
    }


def _posterior(trial: optuna.Trial) -> dict[str, Any]:
    priors = ["popularity", "users", "uninformative"]
    if str(_held(trial, "dataset")).startswith("ml-"):
        priors.append("occupation")  # only MovieLens has occupations
    params: dict[str, Any] = {
        "candidates": _candidates(trial),
        "bns_prior": trial.suggest_categorical("bns_prior", priors),
        "ecdf": trial.suggest_categorical("ecdf", ["exact", "sampled", "batch"]),
    }
    if params["ecdf"] == "sampled":
        params["ecdf_items"] = trial.suggest_int("ecdf_items", 32, 512, log=True)
    return params


def _held(trial: optuna.Trial, name: str) -> Any:
    """Value fixed on the command line, if any."""
    return getattr(trial, "fixed", {}).get(name)


_LOSSES: Mapping[str, Callable[[optuna.Trial], dict[str, Any]]] = {
    "bpr": _adam,
    "bce": _adam,
    "infonce": infonce,
    "decoupled": decoupled,
    "dcl": dcl,
    "hcl": hcl,
    "dpl": dpl,
    "bcl": lambda trial: {**bcl(trial), "ties": trial.suggest_categorical("ties", ["le", "mid"])},
    "gbpr": gbpr,
    "mpr": mpr,
    **{f"denoise_{form}": partial(_denoise, form=form) for form in _DENOISE},
    "bprac": lambda trial: {
        "credence": trial.suggest_categorical("credence", ["mean1", "thesis", "bayes", "prior"]),
        "prior_var": trial.suggest_categorical("prior_var", [0.2, 0.6, "fitted"]),
        "e_steps": trial.suggest_categorical("e_steps", ["epoch", 10]),
    },
}
_SAMPLERS: Mapping[str, Callable[[optuna.Trial], dict[str, Any]]] = {
    "uniform": _adam,
    "popularity": _adam,
    "aobpr": aobpr,
    "dns": dns,
    "srns": srns,
    "bns": _whole_bns,
    "bns_posterior": _posterior,
}
_CONTRASTS: Mapping[str, Callable[[optuna.Trial], dict[str, Any]]] = {
    "sgl": sgl,
    "simgcl": simgcl,
    "lightgcl": lightgcl,
    "ncl": ncl,
}


def _tau(trial: optuna.Trial) -> float:
    """The densities of the thesis' datasets, .0008 to .063, are too low (5.6.2.2); table 5.3: up to .3."""
    return float(trial.suggest_float("tau", 1e-3, 0.4, log=True))
