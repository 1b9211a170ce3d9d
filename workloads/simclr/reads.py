"""Which parameters each loss reads, and the values that these have where none is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOSSES: Mapping[str, Mapping[str, Any]] = {
    "infonce": {},
    "decoupled": {},
    "dcl": {"tau": "classes"},
    "hcl": {"tau": "classes", "beta": 1.0},
    "bcl": {"tau": "classes", "alpha": "auc", "beta": "classes", "ties": "le"},
}
"""By loss; all of them read ``temperature``."""

OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {"adam": {}, "sgd": {"momentum": 0.9}, "lars": {"momentum": 0.9}}
"""By optimiser; all of them read ``lr`` and ``weight_decay``."""

HEAD: Mapping[str, Any] = {"projection": 128}
"""Of the projection head, which DirectCLR (``subvector``) does not have."""

FEATURES: Mapping[str, int] = {"tiny": 128, "resnet18": 512, "resnet34": 512, "resnet50": 2048}
"""Dimensions of what an encoder gives."""

EMBEDDED = "synthetic-images"
"""The dataset that needs no download, small enough for the smallest encoder."""

BOUNDS: Mapping[str, tuple[float, float, str]] = {
    "tau": (0.0, 1 - 2**-24, "[0, 1)"),
    "alpha": (0.5, 1.0, "[0.5, 1]"),
}
"""Least, greatest and how that is written, where a word may stand in the place of the number."""


LARGE = 96
"""Side of views, in pixels, from which a stem that keeps them all is too much."""


def stem(encoder: str | None, side: int) -> str | None:
    """The first layer of an encoder for views of ``side`` pixels, where none is asked for."""
    if encoder == "tiny":
        return None
    return "imagenet" if side >= LARGE else "cifar"


def resolved(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given``, with what its loss, optimiser, encoder and head read and it leaves open."""
    values = dict(given)
    if values.get("encoder") is None:
        values["encoder"] = "tiny" if values.get("dataset", EMBEDDED) == EMBEDDED else "resnet18"
    tables = [LOSSES.get(str(values.get("loss", "infonce"))), OPTIMIZERS.get(str(values.get("optimizer", "adam")))]
    if values.get("subvector") is None:
        tables.append(HEAD)
    for table in tables:
        for name, value in (table or {}).items():
            if values.get(name) is None:
                values[name] = value
    return values


def trouble(values: Mapping[str, Any]) -> str | None:
    """A sentence about a parameter that is set and that nothing reads, or that is out of its bounds; or None."""
    for choice, table in (("loss", LOSSES), ("optimizer", OPTIMIZERS)):
        for name in sorted({name for reads in table.values() for name in reads} - set(table[values[choice]])):
            if values[name] is not None:
                readers = " or ".join(f"{choice}={one}" for one, reads in table.items() if name in reads)
                return (
                    f"{name}={values[name]} has no effect with {choice}={values[choice]}. Drop {name}, or set {readers}"
                )
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
    most = 1.0 if values["loss"] == "bcl" else 100.0
    bounds = {**BOUNDS, "beta": (0.0, most, f"[0, {most:g}]")}
    for name, (least, greatest, written) in bounds.items():
        value = values[name]
        if isinstance(value, float) and not least <= value <= greatest:
            return f"{name}={value:g} of loss={values['loss']} is not in {written}"
    return None
