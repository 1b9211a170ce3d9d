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
    "bcl": {**_CONTRASTIVE, "tau": "density", "alpha": "auc", "beta": 0.7, "ties": "le"},
    "gbpr": {"group": 3, "rho": 0.4},
    "mpr": {"lam": 0.5},
    "denoise_truncated": {"drop_rate": 0.2, "drop_steps": 30_000},
    "denoise_reweighted": {"beta": 0.2},
    "denoise_truncated_bpr": {"threshold": 2.0},
    "bprac": {"credence": "mean1", "prior_var": 0.6},
}
"""By loss."""

SAMPLERS: Mapping[str, Mapping[str, Any]] = {
    "uniform": {},
    "in_batch": {},
    "popularity": {},
    "aobpr": {"aobpr_lambda": 100.0},
    "dns": {"candidates": 5},
    "srns": {"candidates": 64, "srns_memory": 8, "srns_alpha": 5.0, "srns_warmup": 50, "srns_temperature": 10.0},
    "bns": {"candidates": 5, "bns_lambda": 5.0, "bns_prior": "popularity", "bns_uniform_epochs": 0, **_ECDF},
    "bns_posterior": {"candidates": 5, "bns_prior": "popularity", **_ECDF},
    "bns_oracle": {"candidates": 5, "bns_lambda": 5.0, "bns_prior": "label", "truth": "planted", **_ECDF},
}
"""By sampler."""

_SWITCHES: Mapping[tuple[str, Any], Mapping[str, Any]] = {
    ("ecdf", "sampled"): {"ecdf_items": 128},
    ("quality", True): {"truth": "validation"},
    ("optimizer", "sgd"): {"threads": 1},
}
"""By another parameter's value."""

SEQUENTIAL = {"bpr", "bce", "gbpr", "mpr", "denoise_reweighted", "denoise_truncated_bpr", "bprac"}
"""Losses of the compiled sequential path."""

PLANTED = "synthetic"
"""The dataset of which it is known what users truly like."""

MASKING = ("infonce", "decoupled", "dcl", "hcl", "bcl")
"""Losses that leave masked negatives out, as the user's own items in a batch have to be (E-6.N)."""

_ALL = {name for reads in (*LOSSES.values(), *SAMPLERS.values(), *_SWITCHES.values()) for name in reads}


def of_loss(loss: str, sampler: str) -> Mapping[str, Any]:
    """What the loss reads beside the sampler; in the batch it takes as many negatives as there are."""
    return {name: value for name, value in LOSSES[loss].items() if (name, sampler) != ("negatives", "in_batch")}


def resolved(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given``, with what its loss and sampler read and it leaves open."""
    values = dict(given)
    loss, sampler = str(values.get("loss", next(iter(LOSSES)))), str(values.get("sampler", next(iter(SAMPLERS))))
    _fill(values, of_loss(loss, sampler) if loss in LOSSES else {})
    _fill(values, SAMPLERS.get(sampler, {}))
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


def fault(values: Mapping[str, Any]) -> str | None:
    """A sentence about parameters that do not go together, or None."""
    return _idle(values) or _unmasked(values) or _blind(values)


def _idle(values: Mapping[str, Any]) -> str | None:
    """About a parameter that is set and that nothing reads."""
    if values["sampler"] == "in_batch" and values["negatives"] is not None:
        return (
            f"negatives={values['negatives']} has no effect with sampler=in_batch, which takes the items of the batch. "
            "Drop negatives, or set another sampler"
        )
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
        ("sampler", set(SAMPLERS) - {"srns", "in_batch"}),
        ("ecdf", {None, "exact"}),
    ):
        if values[name] not in has:
            return f"{name}={values[name]}"
    return None


def _unmasked(values: Mapping[str, Any]) -> str | None:
    """About a loss that can not take the batch's items for negatives."""
    if values["sampler"] != "in_batch" or values["loss"] in MASKING:
        return None
    return (
        f"sampler=in_batch does not go with loss={values['loss']}, which can not leave out the items that a user has. "
        f"Set loss={' or '.join(MASKING)}, or another sampler"
    )


def _blind(values: Mapping[str, Any]) -> str | None:
    """About a truth that nobody could tell when it is asked for."""
    if values["bns_prior"] == "label" and values["sampler"] != "bns_oracle":
        return (
            f"bns_prior=label is for sampler=bns_oracle, which knows labels; got sampler={values['sampler']}. "
            "Set bns_prior=popularity"
        )
    oracle, seen = values["sampler"] == "bns_oracle", "truth=test, which training then has seen"
    if oracle and values["truth"] == "validation":
        return (
            "sampler=bns_oracle can not know truth=validation, since a refit trains on it. "
            f"Set {seen}, or truth=planted with dataset={PLANTED}"
        )
    if values["truth"] == "planted" and values["dataset"] != PLANTED:
        return (
            f"truth=planted is known of dataset={PLANTED} alone, not of dataset={values['dataset']}. "
            f"Set {seen if oracle else 'truth=validation or truth=test'}"
        )
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
