"""Metrics of features and embeddings: nearest neighbours, a linear probe, geometry, rank, distributions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from workloads.contract import Columns, Direction, Evaluation
from workloads.metrics import probe
from workloads.simclr.params import Params

TOP = (1, 5)
"""The k of top-k accuracies."""

DIRECTIONS: Mapping[str, Direction] = {
    "*_top*": "max", "auc": "max", "rankme": "max", "alignment": "min", "uniformity": "min",
}  # fmt: skip
"""Better direction of each metric."""

COLLAPSED = 1.5
"""Effective rank of features below which they are warned of: all images have nearly one direction."""

SHOWN = 1000
"""Maximal number of images whose features are projected for a plot."""


@dataclass(frozen=True)
class LabelledFeatures:
    """Encoder features (n, d) of labelled images, and their labels (n,)."""

    features: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class EmbeddedViews:
    """Embeddings (m, d) of the two views of some of the evaluated images, and their labels (m,)."""

    first: torch.Tensor
    second: torch.Tensor
    labels: torch.Tensor


def evenly_spaced(count: int, most: int) -> torch.Tensor:
    """At most ``most`` of ``count`` positions, evenly spaced, so that sorted classes are all included."""
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()


def evaluation(
    bank: LabelledFeatures,
    seen: LabelledFeatures,
    views: EmbeddedViews,
    classes: tuple[str, ...],
    params: Params,
    with_probe: bool,
) -> Evaluation:
    """Metrics of ``seen``, classified by the labelled ``bank``. Units: one row per image, by its position in the split.

    ``knn_top1`` and ``knn_top5``: weighted nearest neighbours of normalised features. ``probe_top1`` and
    ``probe_top5``: a linear classifier on features. ``alignment``, ``uniformity`` and ``auc``: geometry of embeddings.
    ``rankme``: effective rank of features; a warning is issued where they have collapsed.
    Tables: ``scores``, densities of the cosines of true and false negatives (thesis figure 6.8), and ``plane``, finite
    features on their first two principal components.
    """
    near, queries = (functional.normalize(frozen.features, dim=1) for frozen in (bank, seen))
    votes = probe.knn_scores(
        near, bank.labels, queries, classes=len(classes), k=params.eval_k, temperature=params.eval_temperature
    )
    units = _correct("knn", votes, seen.labels)
    if with_probe:
        weight, bias = probe.linear_probe(bank.features, bank.labels, classes=len(classes))
        units |= _correct("probe", functional.linear(seen.features, weight, bias), seen.labels)
    metrics = {name: float(column.mean(dtype=np.float64)) for name, column in units.items()}
    geometry = {
        "alignment": probe.alignment(views.first, views.second),
        "uniformity": probe.uniformity(views.first),
        "auc": probe.false_negative_auc(views.first, views.labels),
    }
    rows = evenly_spaced(len(seen.labels), params.eval_sample).to(seen.labels.device)
    geometry["rankme"] = probe.effective_rank(seen.features[rows])
    metrics |= {name: value.item() for name, value in geometry.items()}
    if metrics["rankme"] < COLLAPSED:
        warnings.warn(
            f"the features have collapsed: their effective rank is {metrics['rankme']:.2f} of "
            f"{seen.features.shape[1]}, so that all images look alike",
            stacklevel=2,
        )
    tables = {"scores": _scores(views)}
    if seen.features.isfinite().all():
        tables["plane"] = _plane(seen, classes)
    return Evaluation(metrics, {"id": np.arange(len(seen.labels)), **units}, tables)


def transfer(bank: LabelledFeatures, seen: LabelledFeatures, classes: int) -> dict[str, float]:
    """``transfer_top1`` and ``transfer_top5``, of a linear classifier fitted on ``bank`` and judged on ``seen``."""
    weight, bias = probe.linear_probe(bank.features, bank.labels, classes=classes)
    correct = _correct("transfer", functional.linear(seen.features, weight, bias), seen.labels)
    return {name: float(column.mean(dtype=np.float64)) for name, column in correct.items()}


def _correct(name: str, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, np.ndarray[Any, Any]]:
    return {f"{name}_top{k}": probe.in_top(scores, labels, k).cpu().numpy() for k in TOP}


def _scores(views: EmbeddedViews) -> Columns:
    names = ("score", "true_negatives", "false_negatives")
    return {name: column.cpu().numpy() for name, column in zip(names, probe.score_densities(views.first, views.labels))}


def _plane(seen: LabelledFeatures, classes: tuple[str, ...]) -> Columns:
    rows = evenly_spaced(len(seen.labels), SHOWN).to(seen.labels.device)
    x, y = probe.principal_plane(seen.features[rows]).T.cpu().numpy()
    return {"x": x, "y": y, "label": np.array(classes)[seen.labels[rows].cpu().numpy()]}
