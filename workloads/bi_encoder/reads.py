"""Which parameters each loss reads, and the values that these have where none is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_IN_BATCH = {"temperature": 0.05, "positive_from": 4.0}

LOSSES: Mapping[str, Mapping[str, Any]] = {
    "mse": {"lowest_cosine": 0.0},
    "cosent": {"temperature": 0.05},
    "cosine_embedding": {"positive_from": 4.0, "margin": 0.5},
    "infonce": _IN_BATCH,
    "decoupled": _IN_BATCH,
    "dcl": {**_IN_BATCH, "tau": 0.01},
    "hcl": {**_IN_BATCH, "tau": 0.01, "beta": 0.5},
    "bcl": {**_IN_BATCH, "tau": 0.01, "alpha": 0.9, "beta": 0.7},
}
"""By loss. 0.05 is the scale of 20 that sentence-transformers has, τ+ about the share of pairs that mean the same."""

OF_SCRATCH, OF_PRETRAINED = 1e-3, 5e-5
"""Learning rates of an encoder from scratch and of a pretrained one: the highest of BERT's authors (A.3), which on the
dev part of STS-B is ahead of the 2e-5 of the design note (6.6)."""

_ALL = {name for reads in LOSSES.values() for name in reads}


def resolved(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given``, with what its loss and encoder read and it leaves open."""
    values = dict(given)
    if values.get("lr") is None:
        values["lr"] = OF_SCRATCH if values.get("encoder", "tiny") == "tiny" else OF_PRETRAINED
    for name, value in LOSSES.get(str(values.get("loss", "mse")), {}).items():
        if values.get(name) is None:
            values[name] = value
    return values


def idle(values: Mapping[str, Any]) -> str | None:
    """A sentence about a parameter that is set and that the loss does not read, or None."""
    for name in sorted(_ALL - set(LOSSES[values["loss"]])):
        if values[name] is not None:
            readers = " or ".join(f"loss={loss}" for loss, reads in LOSSES.items() if name in reads)
            return f"{name}={values[name]} has no effect with loss={values['loss']}. Drop {name}, or set {readers}"
    return None
