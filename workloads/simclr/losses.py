"""Tables of losses and optimisers by name. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workloads.conditional_params import ConditionalParams, Rules, out_of_bounds_error
from workloads.loss_table import Loss
from workloads.named_function import load_function

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


@dataclass(frozen=True)
class OptimizerRow:
    """An optimiser.

    Attributes:
        function: ``module:name`` of its class, of parameter groups and, by keyword, ``lr`` and ``params``.
        source: the paper or section.
        params: the parameters used with it and their defaults, in addition to ``lr`` and ``weight_decay``.
        fused: has a kernel for all parameters at once on a GPU.
    """

    function: str
    source: str
    params: Mapping[str, Any] = field(default_factory=dict)
    fused: bool = False

    def load(self) -> Callable[..., Any]:
        """The class, whose module is imported at the first call."""
        return load_function(self.function)


OPTIMIZERS: dict[str, OptimizerRow] = {
    "adam": OptimizerRow("torch.optim:Adam", "thesis 6.6.2.3", fused=True),
    "sgd": OptimizerRow("torch.optim:SGD", "SGD with momentum, SimCLR's code", {"momentum": 0.9}, fused=True),
    "lars": OptimizerRow(
        "workloads.simclr.optim:LARS", "You et al., 2017; SimCLR 2.2, for batches of thousands", {"momentum": 0.9}
    ),
}

FEATURES: Mapping[str, int] = {"tiny": 128, "resnet18": 512, "resnet34": 512, "resnet50": 2048}
"""Feature dimensions of each encoder."""

BUILT_IN_DATASET = "synthetic-images"
"""The dataset that needs no download, for the smallest encoder."""

LARGE_VIEW = 96
"""Side of views, in pixels, from which the stem reduces the resolution by default."""


def _rules() -> Rules:
    losses = {("loss", name): row.params for name, row in LOSSES.items()}
    optimizers = {("optimizer", name): row.params for name, row in OPTIMIZERS.items()}
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
    """A sentence about parameters that cannot be combined or are out of bounds; None if there are none."""
    if values["encoder"] == "tiny" and values["stem"] is not None:
        return f"stem={values['stem']} has no effect with encoder=tiny. Drop stem, or set encoder=resnet18"
    features = FEATURES[values["encoder"]]
    if values["subvector"] is not None and values["subvector"] > features:
        return (
            f"subvector={values['subvector']} is more than the {features} features of encoder={values['encoder']}. "
            f"Set it to at most {features}"
        )
    return out_of_bounds_error(values, LOSSES[values["loss"]].bounds, ("loss",))
