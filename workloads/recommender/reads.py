"""Which parameters each loss and each sampler reads, and the values that these have where none is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CONTRASTIVE = {"negatives": 64, "temperature": 1.0}
_DEBIASED = {**_CONTRASTIVE, "positives": 1, "tau": "density"}
_ECDF = {"ecdf": "exact"}

LOSSES: Mapping[str, Mapping[str, Any]] = {
    "bpr": {},
    "bce": {},
    "infonce": _CONTRASTIVE,
    "decoupled": _CONTRASTIVE,
    "dcl": _DEBIASED,
    "hcl": {**_DEBIASED, "beta": 0.5},
    "dpl": {"negatives": 10, "positives": 10, "tau": "density"},
    "bcl": {**_CONTRASTIVE, "tau": "density", "alpha": "auc", "beta": 0.7},
    "gbpr": {"group": 3, "rho": 0.4},
    "mpr": {"lam": 0.5},
    "denoise_truncated": {"drop_rate": 0.2, "drop_steps": 30_000},
    "denoise_reweighted": {"beta": 0.2},
    "bprac": {"credence": "mean1", "prior_var": 0.6},
}
"""By loss."""

SAMPLERS: Mapping[str, Mapping[str, Any]] = {
    "uniform": {},
    "popularity": {},
    "aobpr": {"aobpr_lambda": 100.0},
    "dns": {"candidates": 5},
    "srns": {"candidates": 64, "srns_memory": 8, "srns_alpha": 5.0, "srns_warmup": 50, "srns_temperature": 10.0},
    "bns": {"candidates": 5, "bns_lambda": 5.0, "bns_prior": "popularity", "bns_uniform_epochs": 0, **_ECDF},
    "bns_posterior": {"candidates": 5, "bns_prior": "popularity", **_ECDF},
    "bns_oracle": {"candidates": 5, "bns_lambda": 5.0, "truth": "validation", **_ECDF},
}
"""By sampler."""

_SWITCHES: Mapping[tuple[str, Any], Mapping[str, Any]] = {
    ("ecdf", "sampled"): {"ecdf_items": 128},
    ("quality", True): {"truth": "validation"},
    ("optimizer", "sgd"): {"threads": 1},
}
"""By another parameter's value."""

SEQUENTIAL = {"bpr", "bce", "gbpr", "mpr", "denoise_reweighted", "bprac"}
"""Losses of the compiled sequential path."""

_ALL = {name for reads in (*LOSSES.values(), *SAMPLERS.values(), *_SWITCHES.values()) for name in reads}


def resolved(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given``, with what its loss and sampler read and it leaves open."""
    values = dict(given)
    for table, choice in ((LOSSES, "loss"), (SAMPLERS, "sampler")):
        default = next(iter(table))
        _fill(values, table.get(str(values.get(choice, default)), {}))
    for (name, value), reads in _SWITCHES.items():
        if _is(values.get(name), value):
            _fill(values, reads)
    return values


def _is(given: Any, value: Any) -> bool:
    """Whether what is given becomes ``value``, as pydantic reads a switch."""
    if isinstance(value, bool):
        return (str(given).lower() in ("1", "true", "yes", "on", "y", "t")) is value
    return str(given) == str(value)


def _fill(values: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    for name, value in defaults.items():
        if values.get(name) is None:
            values[name] = value


def idle(values: Mapping[str, Any]) -> str | None:
    """A sentence about a parameter that is set and that nothing reads, or None."""
    read = {*LOSSES[values["loss"]], *SAMPLERS[values["sampler"]]}
    read |= {name for (switch, on), reads in _SWITCHES.items() if values[switch] == on for name in reads}
    for name in sorted(_ALL - read):
        if values[name] is not None:
            return (
                f"{name}={values[name]} has no effect with {_described(name, values)}. "
                f"Drop {name}, or set {' or '.join(_readers(name))}"
            )
    return None


def not_sequential(values: Mapping[str, Any]) -> str | None:
    """What of the parameters the sequential path does not have, as ``name=value``, or None."""
    for name, has in (
        ("backbone", {"mf"}),
        ("loss", SEQUENTIAL),
        ("sampler", set(SAMPLERS) - {"srns"}),
        ("ecdf", {None, "exact"}),
    ):
        if values[name] not in has:
            return f"{name}={values[name]}"
    return None


def _described(name: str, values: Mapping[str, Any]) -> str:
    """The choices on which it depends whether the parameter is read."""
    switches = [key for (key, _), reads in _SWITCHES.items() if name in reads]
    choices = ["loss"] * any(name in reads for reads in LOSSES.values())
    choices += ["sampler"] * any(name in reads for reads in SAMPLERS.values())
    return ", ".join(f"{choice}={_plain(values[choice])}" for choice in (*choices, *switches))


def _readers(name: str) -> list[str]:
    found = [f"loss={loss}" for loss, reads in LOSSES.items() if name in reads]
    found += [f"sampler={sampler}" for sampler, reads in SAMPLERS.items() if name in reads]
    return found + [f"{switch}={_plain(on)}" for (switch, on), reads in _SWITCHES.items() if name in reads]


def _plain(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
