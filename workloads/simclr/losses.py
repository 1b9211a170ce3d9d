"""Tables of losses and optimisers by name. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workloads.conditional_params import ConditionalParams, Rules, out_of_bounds_error
from workloads.loss_table import Loss

_TAU = {"tau": (0.0, 1 - 2**-24)}

LOSSES: dict[str, Loss] = {
    "infonce": Loss(
        "workloads.losses.contrastive:infonce_loss",
        "NT-Xent of SimCLR: Chen et al., ICML 2020, eq. 1; thesis 2.2.4.1, (6.2); SimCLR of table 6.4"
    ),
    "decoupled": Loss("workloads.losses.contrastive:decoupled_loss", "thesis 2.2.4.3; Yeh et al., ECCV 2022"),
    "dcl": Loss(
        "workloads.losses.contrastive:cosine_dcl_loss",
        "thesis (6.47); DCL of table 6.4; Chuang et al., NeurIPS 2020", params={"tau": "classes"}, bounds=_TAU
    ),
    "hcl": Loss(
        "workloads.losses.contrastive:cosine_hcl_loss",
        "thesis (5.52), E-5.52; HCL of table 6.4; Robinson et al., ICLR 2021", params={"tau": "classes", "beta": 1.0},
        bounds={**_TAU, "beta": (0.0, 100.0)},
    ),
    "bcl": Loss(
        "workloads.losses.contrastive:bcl_loss", "thesis (6.31), algorithm 5; BCL of table 6.4",
        params={"tau": "classes", "alpha": "auc", "beta": "classes", "ties": "le"},
        bounds={**_TAU, "alpha": (0.5, 1.0), "beta": (0.0, 1.0)},
    ),
}  # fmt: skip
"""Losses from the positive's score (A,) and the negatives' (A, N), one per anchor. All use ``temperature`` too."""

OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {"adam": {}, "sgd": {"momentum": 0.9}, "lars": {"momentum": 0.9}}
"""Parameters of each optimiser and their defaults. All use ``lr`` and ``weight_decay`` too."""

FEATURES: Mapping[str, int] = {"tiny": 128, "resnet18": 512, "resnet34": 512, "resnet50": 2048}
"""Feature dimensions of each encoder."""

BUILT_IN_DATASET = "synthetic-images"
"""The dataset that needs no download, for the smallest encoder."""

LARGE_VIEW = 96
"""Side of views, in pixels, from which the stem reduces the resolution by default."""


def _rules() -> Rules:
    losses = {("loss", name): row.params for name, row in LOSSES.items()}
    optimizers = {("optimizer", name): params for name, params in OPTIMIZERS.items()}
    # DirectCLR (subvector) has no projection head.
    return {**losses, **optimizers, ("subvector", None): {"projection": 128}}


CONDITIONAL = ConditionalParams(
    _rules,
    {"loss": "infonce", "optimizer": "adam"},
    {"encoder": lambda values: "tiny" if values.get("dataset", BUILT_IN_DATASET) == BUILT_IN_DATASET else "resnet18"},
)


def default_stem(encoder: str | None, side: int) -> str | None:
    """Default stem of an encoder for views of ``side`` pixels."""
    if encoder == "tiny":
        return None
    return "imagenet" if side >= LARGE_VIEW else "cifar"


def combination_error(values: Mapping[str, Any]) -> str | None:
    """A sentence about a parameter that is set but unused, or out of bounds; None if there is none."""
    if values["encoder"] == "tiny" and values["stem"] is not None:
        return f"stem={values['stem']} has no effect with encoder=tiny. Drop stem, or set encoder=resnet18"
    if values["subvector"] is not None and values["projection"] is not None:
        return (
            f"projection={values['projection']} has no effect with subvector={values['subvector']}, which has no "
            "projection head. Drop one of them"
        )
    features = FEATURES[values["encoder"]]
    if values["subvector"] is not None and values["subvector"] > features:
        return (
            f"subvector={values['subvector']} is more than the {features} features of encoder={values['encoder']}. "
            f"Set it to at most {features}"
        )
    unused = CONDITIONAL.unused_parameter_error(values)
    return unused or out_of_bounds_error(values, LOSSES[values["loss"]].bounds, ("loss",))
