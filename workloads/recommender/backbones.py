"""The backbones by name, and the parameters that each uses. Imports no PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.loss_table import Row


@dataclass(frozen=True)
class Backbone(Row):
    """A model of users' preferences.

    Attributes:
        function: ``module:name`` of its class.
        learnt: trained on sampled negatives with a loss; otherwise fitted in closed form.
    """

    learnt: bool = False


LEARNT: Mapping[str, Any] = {
    "loss": "bpr", "sampler": "uniform", "dim": 32, "optimizer": "adam", "lr": 2e-3, "lr_decay": 1.0,
    "lr_decay_every": 20, "weight_decay": "users", "batch_size": 1024,
}  # fmt: skip
"""Parameters of every backbone that is trained on sampled negatives, with their defaults."""

ROW_DECAY = 0.01
"""Regularisation of each row of a triple, thesis 4.5.1.2."""


def weight_decay(value: float | str, optimizer: str, n_users: int) -> float:
    """The factor of the optimizer's L2 term, of the parameter's ``value``.

    ``users`` is :data:`ROW_DECAY`. Adam decays the whole table at each step, and its loss is a mean over triples, of
    which a user has 1 / users on average: the factor is divided by the number of users (E-4.W).
    """
    if value != "users":
        return float(value)
    return ROW_DECAY / n_users if optimizer == "adam" else ROW_DECAY


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
        {"dim": 32, "ials_alpha": 5.0, "ials_lambda": 20.0, "ials_confidence": "equal"},
    ),
}  # fmt: skip

EASE_BYTES = 20
"""Peak memory of EASE for each pair of items: the Gram matrix and its inverse in float64, and the weights."""


def ease_memory_error(n_items: int, available: int) -> str | None:
    """A message if EASE for so many items does not fit into so many bytes, or None."""
    if EASE_BYTES * n_items**2 <= available:
        return None
    return (
        f"backbone=ease needs {EASE_BYTES * n_items**2 / 2**30:.1f} GiB for dense matrices of {n_items:,}² "
        f"items; with {available / 2**30:.1f} GiB available it takes {math.isqrt(available // EASE_BYTES):,} items. "
        "Set backbone=item_knn or backbone=ials"
    )


ENTRY_BYTES: Mapping[str, int] = {"adam": 16, "sgd_batched": 8, "sgd": 4}
"""Bytes of an entry of the embedding table by optimizer: the table, its gradient, and Adam's two moments, float32."""

PROPAGATED_BYTES = 12
"""In addition with lightgcn: a layer, the next one and their sum."""

SRNS_BYTES = 24
"""In addition with sampler=srns: the tables of the last five epochs, and the next one when it is added."""


def table_memory_error(values: Mapping[str, Any], n_users: int, n_items: int, available: int) -> str | None:
    """A message if the embeddings of so many users and items do not fit into so many bytes, or None.

    Args:
        values: parameters; the backbone is learnt.
        available: of the device, which holds the whole table.
    """
    srns = values["sampler"] == "srns"
    further = PROPAGATED_BYTES * (values["backbone"] == "lightgcn") + SRNS_BYTES * srns
    each = ENTRY_BYTES[values["optimizer"]] + further
    nodes = n_users + n_items
    if each * nodes * values["dim"] <= available:
        return None
    most = available // each
    fix = f"Set dim={most // nodes}" if most >= nodes else "Use a device with more memory"
    if values["optimizer"] == "adam" and values["backbone"] == "mf":
        fix += f", or optimizer=sgd_batched, which takes {available // (ENTRY_BYTES['sgd_batched'] + further) // nodes}"
    return (
        f"embeddings of {n_users:,} users and {n_items:,} items with dim={values['dim']} need "
        f"{each * nodes * values['dim'] / 2**30:.1f} GiB with optimizer={values['optimizer']}"
        f"{' and sampler=srns' if srns else ''}; with "
        f"{available / 2**30:.1f} GiB available, (users + items) x dim may be {most:,}. {fix}"
    )
