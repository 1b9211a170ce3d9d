"""All ranking metrics of a block of users at once, by the parts that the recommender's evaluation calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workloads.metrics.ranking import auc, looked_up, of_lists, ranked


def per_user(
    scores: torch.Tensor, relevant: torch.Tensor, excluded: torch.Tensor, ks: Sequence[int]
) -> dict[str, torch.Tensor]:
    """Every metric of ``of_lists`` at every k, (U,) each, from (U, I) scores and masks."""
    masked, lists = ranked(scores, excluded, max(ks))
    wanted = relevant & ~excluded
    return of_lists(*looked_up(masked, lists, wanted), auc(masked, wanted), ks)
