"""Correlation of the pairs' cosines with their scores."""

from __future__ import annotations

import warnings

import torch

from workloads.contract import Evaluation
from workloads.metrics.correlation import average_ranks, constant, influences


def evaluation(cosines: torch.Tensor, grades: torch.Tensor, rank: int = 0) -> Evaluation:
    """Spearman and Pearson correlation of a part's pairs, (n,) each.

    If all cosines are equal, except for rounding, the correlation is 0 (E-S3), ``constant`` is 1, and a warning is
    issued. The units' ``spearman`` and ``pearson`` are the influence of each pair: their means are the metrics, and
    resampling them gives the uncertainty of the metrics (of Spearman as if the ranks were fixed).
    """
    flat = constant(cosines)
    predicted = torch.zeros_like(cosines) if flat else cosines
    pearson = influences(predicted, grades)
    spearman = influences(average_ranks(predicted), average_ranks(grades))
    if flat:
        warnings.warn(
            f"all {len(cosines)} pairs have the same cosine: their correlation with the scores is set to 0",
            stacklevel=2,
        )
    metrics = {"spearman": spearman.mean().item(), "pearson": pearson.mean().item(), "constant": float(flat)}
    if rank:
        return Evaluation(metrics)
    units = {"id": torch.arange(len(grades)), "spearman": spearman, "pearson": pearson}
    units |= {"cosine": cosines, "score": grades}
    return Evaluation(metrics, {name: column.cpu().numpy() for name, column in units.items()})
