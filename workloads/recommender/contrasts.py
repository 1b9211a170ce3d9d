"""Graph contrastive learning by name: the auxiliary InfoNCE terms of ``contrast=``. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.loss_table import Row


@dataclass(frozen=True)
class Contrast(Row):
    """An auxiliary term, added to any loss.

    Attributes:
        function: ``module:name`` of the function that builds its views, of parameters, data and model.
        views: the two views of a node that are contrasted.
    """

    views: str = ""


_VIEWS = "workloads.recommender.graph_views"

CONTRASTS: dict[str, Contrast] = {
    "sgl": Contrast(
        f"{_VIEWS}:sgl", "thesis 2.1.1.1; Wu et al., SIGIR 2021",
        {"contrast_weight": 0.003, "contrast_temperature": 0.2, "augmentation": "edge_drop", "drop_ratio": 0.1},
        views="two random subgraphs an epoch",
    ),
    "simgcl": Contrast(
        f"{_VIEWS}:simgcl", "Yu et al., SIGIR 2022",
        {"contrast_weight": 0.003, "contrast_temperature": 0.2, "noise": 0.1},
        views="two draws of noise on each layer",
    ),
    "lightgcl": Contrast(
        f"{_VIEWS}:lightgcl", "thesis 2.2.1; Cai et al., ICLR 2023",
        {"contrast_weight": 0.003, "contrast_temperature": 0.2, "svd_rank": 5},
        views="the graph, its truncated SVD",
    ),
    "ncl": Contrast(
        f"{_VIEWS}:ncl", "thesis 2.1.1.1, 2.2.4.4; Lin et al., WWW 2022",
        {
            "contrast_weight": 0.0002, "contrast_temperature": 0.2, "item_weight": 1.0, "prototype_weight": 0.0002,
            "clusters": 64, "prototype_warmup": 20,
        },
        views="a node's second propagation, the node; the node, its k-means prototype",
    ),
}  # fmt: skip


def size_error(values: Mapping[str, Any], n_users: int, n_items: int) -> str | None:
    """A message about more clusters or a larger rank than there are users or items, or None."""
    for name in ("clusters", "svd_rank"):
        if values[name] is not None and values[name] > min(n_users, n_items):
            return (
                f"{name}={values[name]} is more than the {n_users} users or {n_items} items of dataset "
                f"{values['dataset']!r}. Set fewer"
            )
    return None


def contrast_error(values: Mapping[str, Any]) -> str | None:
    """A message about a term that the backbone cannot be trained with, or None."""
    if values["contrast"] is None or values["backbone"] == "lightgcn":
        return None
    return (
        f"contrast={values['contrast']} needs the graph of backbone=lightgcn, not backbone={values['backbone']}. "
        "Set backbone=lightgcn, or drop contrast"
    )
