"""Losses of all candidates of a query at once, as reference points for the pairwise ones.

Scores and grades are blocks (Q, C), one row a query; a score of -inf is no candidate. A loss gives one value a query,
(Q,), 0 for one whose candidates have nothing to tell apart, and the caller reduces.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def listwise_softmax_loss(scores: torch.Tensor, grades: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the scores' softmax with the grades' shares: ``-Σ_j y_j / Σ y · ln softmax(s)_j``.

    The softmax cross entropy of ranking (Bruch et al., ICTIR 2019), ListNet's top-one loss (Cao et al., ICML 2007) with
    shares of the grades in the place of their softmax; with one relevant candidate it is InfoNCE.

    Returns:
        (Q,) in nats; 0 without a relevant candidate.
    """
    gone = scores == -torch.inf
    grades = grades.masked_fill(gone, 0)
    shares = grades / grades.sum(1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    # The lowest number and not -inf, whose softmax has no gradient where nothing else is in the row.
    log_p = scores.masked_fill(gone, torch.finfo(scores.dtype).min).log_softmax(1)
    return -(shares * log_p.masked_fill(gone, 0)).sum(1)


def lambdarank_loss(scores: torch.Tensor, grades: torch.Tensor, sigma: torch.Tensor | float = 1.0) -> torch.Tensor:
    """RankNet's loss of each pair of different grades, weighted by what exchanging the two changes in NDCG.

    ``Σ_{y_i > y_j} |ΔNDCG_ij| ln(1 + e^{-σ (s_i - s_j)})``; its gradient, with ΔNDCG constant, is that of Burges, "From
    RankNet to LambdaRank to LambdaMART", 2010. Gain is the grade, as in the metric; ties rank by place.

    Args:
        scores: (Q, C).
        grades: (Q, C), of the same kind as the scores.
        sigma: σ.

    Returns:
        (Q,); 0 where all candidates have one grade.
    """
    listed = scores != -torch.inf
    grades = grades.masked_fill(~listed, 0)
    rank = scores.detach().argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    discount = 1 / (rank + 2).to(scores.dtype).log2()
    ideal = grades.sort(dim=1, descending=True).values @ (
        1 / torch.arange(2, scores.shape[1] + 2, device=scores.device).to(scores.dtype).log2()
    )
    gap = grades.unsqueeze(2) - grades.unsqueeze(1)
    change = gap * (discount.unsqueeze(2) - discount.unsqueeze(1)).abs()
    weight = change / ideal.clamp(min=torch.finfo(scores.dtype).tiny).view(-1, 1, 1)
    counted = (gap > 0) & listed.unsqueeze(1)
    finite = scores.masked_fill(~listed, 0)
    loss = functional.softplus(-sigma * (finite.unsqueeze(2) - finite.unsqueeze(1)))
    return torch.where(counted, weight * loss, 0.0).sum((1, 2))
