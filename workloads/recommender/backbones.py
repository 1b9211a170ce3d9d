"""The backbones by name, and the parameters that each uses. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workloads.named_function import load_function


@dataclass(frozen=True)
class Backbone:
    """A model of users' preferences.

    Attributes:
        function: ``module:name`` of its class.
        source: the papers.
        params: the parameters used with it and their defaults.
        learnt: trained on sampled negatives with a loss; otherwise fitted in closed form, an epoch being the whole fit.
    """

    function: str
    source: str
    params: Mapping[str, Any] = field(default_factory=dict)
    learnt: bool = False

    def load(self) -> Callable[..., Any]:
        """The class, whose module is imported at the first call."""
        return load_function(self.function)


LEARNT: Mapping[str, Any] = {
    "loss": "bpr", "sampler": "uniform", "dim": 32, "optimizer": "adam", "lr": 2e-3, "lr_decay": 1.0,
    "lr_decay_every": 20, "weight_decay": 1e-5, "batch_size": 1024,
}  # fmt: skip
"""Parameters of every backbone that is trained on sampled negatives, with their defaults."""

_MODELS = "workloads.recommender.model"
_BASELINES = "workloads.recommender.baselines"

BACKBONES: dict[str, Backbone] = {
    "mf": Backbone(f"{_MODELS}:MatrixFactorisation", "thesis algorithm 1", LEARNT, learnt=True),
    "lightgcn": Backbone(f"{_MODELS}:LightGCN", "He et al., SIGIR 2020; thesis 4.5.1.2", LEARNT, learnt=True),
    "popularity": Backbone(f"{_BASELINES}:Popularity", "number of training interactions"),
    "item_knn": Backbone(
        f"{_BASELINES}:ItemKNN", "Sarwar et al., WWW 2001; Deshpande and Karypis, TOIS 2004",
        {"knn_items": 100, "knn_shrink": 20.0},
    ),
    "ease": Backbone(f"{_BASELINES}:EASE", "Steck, WWW 2019, algorithm 1", {"ease_lambda": 200.0}),
    "ials": Backbone(
        f"{_BASELINES}:IALS", "Hu, Koren and Volinsky, ICDM 2008; Rendle et al., RecSys 2022",
        {"dim": 32, "ials_alpha": 5.0, "ials_lambda": 20.0},
    ),
}  # fmt: skip
