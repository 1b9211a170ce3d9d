"""Rough times of training on one core, for the plan of all reproductions; finished runs correct them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads.recommender.losses import LOSSES

_EXAMPLE = 6.5e-7
"""Seconds of an interaction with one negative under Adam; ``benchmarks/samplers.py`` measures these."""

_FURTHER = 8e-8
"""Seconds of each further negative, positive or candidate."""

_RANKED = 4e-9
"""Seconds of an interaction for each item of the catalogue, where its sampler compares a score with all of them."""

_EDGE = 8e-9
"""Seconds of a step of LightGCN for each edge and layer."""

_COMPILED = 0.1
"""Share of the time that sequential SGD takes."""

_PAIR = 3e-8
"""Seconds of an evaluation for each user and item."""

_RANKING = ("bns", "bns_posterior", "bns_oracle", "aobpr")


def epoch_and_evaluation(params: Mapping[str, Any], root: Path) -> tuple[float, float]:
    """Seconds of a training epoch and of an evaluation, to within a small factor."""
    from workloads.data import load_interactions

    data = load_interactions(params["dataset"], root, params["split"])
    negatives, further = LOSSES[params["loss"]].counts(params)
    drawn = negatives * (params["candidates"] or 1) + further - 1
    example = _EXAMPLE + _FURTHER * drawn
    if params["optimizer"] == "sgd":
        example *= _COMPILED
    if params["sampler"] in _RANKING and params["ecdf"] != "batch":
        example += _RANKED * data.n_items * negatives
    interactions = len(data.train)
    epoch = interactions * example
    if params["backbone"] == "lightgcn":
        epoch += interactions / params["batch_size"] * 2 * interactions * params["layers"] * _EDGE
    return epoch, _PAIR * data.n_users * data.n_items
