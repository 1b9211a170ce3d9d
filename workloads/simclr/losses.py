"""Tables of methods, losses and optimisers by name. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.conditional_params import ConditionalParams, out_of_bounds_error, rules_of
from workloads.loss_table import Loss, Row


@dataclass(frozen=True)
class SimCLRLoss(Loss):
    """A loss of an anchor's positive and its negatives.

    Attributes:
        labelled: takes true negatives only, by the training images' labels.
    """

    labelled: bool = False


_TAU = {"tau": (0.0, 1 - 2**-24)}

LOSSES: dict[str, SimCLRLoss] = {
    "infonce": SimCLRLoss(
        "workloads.losses.contrastive:infonce_loss",
        "NT-Xent of SimCLR: Chen et al., ICML 2020, eq. 1; thesis 2.2.4.1, (6.2); SimCLR of table 6.4"
    ),
    "supervised": SimCLRLoss(
        "workloads.losses.contrastive:infonce_loss", "thesis (6.1), L_SUP, an oracle", labelled=True
    ),
    "decoupled": SimCLRLoss("workloads.losses.contrastive:decoupled_loss", "thesis 2.2.4.3; Yeh et al., ECCV 2022"),
    "dcl": SimCLRLoss(
        "workloads.losses.contrastive:cosine_dcl_loss",
        "thesis (6.47); DCL of table 6.4; Chuang et al., NeurIPS 2020", params={"tau": "classes"}, bounds=_TAU
    ),
    "hcl": SimCLRLoss(
        "workloads.losses.contrastive:cosine_hcl_loss",
        "thesis (5.52), E-5.52; HCL of table 6.4; Robinson et al., ICLR 2021", params={"tau": "classes", "beta": 1.0},
        bounds={**_TAU, "beta": (0.0, 100.0)},
    ),
    "bcl": SimCLRLoss(
        "workloads.losses.contrastive:bcl_loss", "thesis (6.31), algorithm 5; BCL of table 6.4",
        params={"tau": "classes", "alpha": "auc", "beta": "classes", "ties": "le"},
        bounds={**_TAU, "alpha": (0.5, 1.0), "beta": (0.0, 1.0)},
    ),
}  # fmt: skip
"""Losses from the positive's score (A,) and the negatives' (A, N), one per anchor. All use ``temperature`` too."""


@dataclass(frozen=True)
class MethodRow(Row):
    """A method of learning without labels: what an image is compared with.

    Attributes:
        function: ``module:name`` of its class.
        negatives: where the negatives of an anchor come from; empty for none.
    """

    negatives: str = ""


_METHODS = "workloads.simclr.methods"
_QUEUE = {"loss": "infonce", "temperature": 0.1, "queue": 4096, "target_momentum": 0.99}

METHODS: dict[str, MethodRow] = {
    "simclr": MethodRow(
        f"{_METHODS}:InBatch", "Chen et al., ICML 2020, 2.1; thesis 2.2.4.1", {"loss": "infonce", "temperature": 0.5},
        negatives="both views of the batch's other images",
    ),
    "moco": MethodRow(
        f"{_METHODS}:Queue", "thesis 2.2.4.1; He et al., CVPR 2020", _QUEUE, negatives="a queue of earlier keys"
    ),
    "byol": MethodRow(
        f"{_METHODS}:Bootstrap", "thesis 2.2.4.2; Grill et al., NeurIPS 2020",
        {"predictor": 512, "target_momentum": 0.996},
    ),
    "protonce": MethodRow(
        f"{_METHODS}:Prototypes", "thesis 2.2.4.4; Li et al., ICLR 2021 (PCL)",
        {
            **_QUEUE, "clusters": 64, "granularities": 3, "concentration": "estimated", "prototype_warmup": 0.1,
            "instance_weight": 1.0,
        },
        negatives="a queue of earlier keys, and the other prototypes",
    ),
}  # fmt: skip
"""``target_momentum`` and ``queue`` of moco are those of its CIFAR-10 demo, of byol its paper's."""


@dataclass(frozen=True)
class OptimizerRow(Row):
    """An optimiser.

    Attributes:
        function: ``module:name`` of its class, of parameter groups and, by keyword, ``lr`` and ``params``.
        params: the parameters used with it and their defaults, in addition to ``lr`` and ``weight_decay``.
        fused: has a kernel for all parameters at once on a GPU.
    """

    fused: bool = False


OPTIMIZERS: dict[str, OptimizerRow] = {
    "adam": OptimizerRow("torch.optim:Adam", "thesis 6.6.2.3", fused=True),
    "sgd": OptimizerRow("torch.optim:SGD", "SGD with momentum, SimCLR's code", {"momentum": 0.9}, fused=True),
    "lars": OptimizerRow(
        "workloads.simclr.optim:LARS", "You et al., 2017; SimCLR 2.2, for batches of thousands", {"momentum": 0.9}
    ),
}

FEATURES: Mapping[str, int] = {"tiny": 128, "resnet18": 512, "resnet34": 512, "resnet50": 2048}
"""Feature dimensions of each encoder."""

TIMM = "timm/"
"""Prefix of the name of an encoder of the package timm."""

BUILT_IN_DATASET = "synthetic-images"
"""The dataset that needs no download, for the smallest encoder."""

LARGE_VIEW = 96
"""Side of views, in pixels, from which the stem reduces the resolution by default."""


TABLES: Mapping[str, Mapping[str, Any]] = {"method": METHODS, "loss": LOSSES, "optimizer": OPTIMIZERS}
"""The tables by the parameter that names a row."""

CONDITIONAL = ConditionalParams(
    lambda: {**rules_of(TABLES), ("subvector", None): {"projection": 128}},  # DirectCLR has no projection head
    {"method": "simclr", "optimizer": "adam"},
    {"encoder": lambda values: "tiny" if values.get("dataset", BUILT_IN_DATASET) == BUILT_IN_DATASET else "resnet18"},
)


def default_stem(encoder: str | None, side: int) -> str | None:
    """Default stem of an encoder for views of ``side`` pixels; None for one that has no choice."""
    if encoder not in FEATURES or encoder == "tiny":
        return None
    return "imagenet" if side >= LARGE_VIEW else "cifar"


def too_long_subvector(subvector: int, features: int, encoder: str) -> str:
    """The sentence about a subvector that is longer than the encoder's features."""
    most = f"the {features} features of encoder={encoder}"
    return f"subvector={subvector} is more than {most}. Set it to at most {features}"


def combination_error(values: Mapping[str, Any]) -> str | None:
    """A sentence about parameters that cannot be combined or are out of bounds; None if there are none."""
    encoder = values["encoder"]
    if values["stem"] is not None and (encoder not in FEATURES or encoder == "tiny"):
        return f"stem={values['stem']} has no effect with encoder={encoder}. Drop stem, or set encoder=resnet18"
    features = FEATURES.get(encoder)
    if values["subvector"] is not None and features is not None and values["subvector"] > features:
        return too_long_subvector(values["subvector"], features, encoder)
    if values["probe_dataset"] is not None and values["eval_probe"] == "never":
        return (
            f"probe_dataset={values['probe_dataset']} has no effect with eval_probe=never. Drop probe_dataset, or set "
            "eval_probe=test"
        )
    if values["queue"] is not None and values["queue"] < values["batch_size"]:
        return (
            f"queue={values['queue']} is shorter than batch_size={values['batch_size']}, whose keys enter it at each "
            f"step. Set queue to at least {values['batch_size']}"
        )
    if values["instance_weight"] == 0 and values["prototype_warmup"]:
        return (
            f"instance_weight=0 leaves no loss in the epochs of prototype_warmup={values['prototype_warmup']:g}, which "
            "have no prototypes. Set prototype_warmup=0"
        )
    return None if values["loss"] is None else out_of_bounds_error(values, LOSSES[values["loss"]].bounds, ("loss",))
