"""Hard negatives by a model's own scores, with a margin below the positive one, which is likely no false negative.

TopK-MarginPos of NV-Retriever (Moreira et al., 2024, arXiv:2407.15831, section 3).
"""

from __future__ import annotations

import torch

from workloads.encoders.search import best


def hardest(
    scores: torch.Tensor, positive: torch.Tensor, count: int, margin: float, excluded: torch.Tensor
) -> torch.Tensor:
    """The candidates with the highest scores of at most ``positive - margin``, ties by column.

    Args:
        scores: of the candidates, (Q, C).
        positive: the score of each query's positive, (Q,); -inf without one, which then has no negatives.
        count: candidates of a query.
        margin: in the unit of the scores, from 0.
        excluded: candidates that are not negatives, boolean, (Q, C).

    Returns:
        Columns (Q, count), int64, padded with -1.
    """
    unfit = excluded | (scores > (positive - margin).unsqueeze(1))
    _, order = best(scores.masked_fill(unfit, -torch.inf), count)  # sorting all columns may take longer than training
    chosen = torch.where(unfit.gather(1, order), -1, order)
    return torch.nn.functional.pad(chosen, (0, count - chosen.shape[1]), value=-1)
