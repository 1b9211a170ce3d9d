"""How well the cosines of pairs agree with their scores."""

from __future__ import annotations

import warnings

import torch

from workloads.contract import Evaluation
from workloads.metrics.correlation import average_ranks, constant, influences


def evaluation(cosines: torch.Tensor, grades: torch.Tensor, rank: int = 0) -> Evaluation:
    """Spearman's and Pearson's correlation of a part's pairs, (n,) each.

    A prediction that is the same for all pairs has correlation 0 (E-S3), a warning, and ``constant`` 1. The units'
    ``spearman`` and ``pearson`` are each pair's influence: their means are the metrics, and resampling them gives the
    spread of the metrics (for ranks as if they were fixed).
    """
    pearson, spearman = influences(cosines, grades), influences(average_ranks(cosines), average_ranks(grades))
    flat = constant(cosines)
    if flat:
        warnings.warn(
            f"all {len(cosines)} pairs have the same cosine: their correlation with the scores is taken for 0",
            stacklevel=2,
        )
    metrics = {"spearman": spearman.mean().item(), "pearson": pearson.mean().item(), "constant": float(flat)}
    if rank:
        return Evaluation(metrics)
    units = {"id": torch.arange(len(grades)), "spearman": spearman, "pearson": pearson}
    units |= {"cosine": cosines, "score": grades}
    return Evaluation(metrics, {name: column.cpu().numpy() for name, column in units.items()})
