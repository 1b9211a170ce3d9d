"""Losses of two documents' scores for one query: margin ranking, RankNet, and their forms that adapt to the grades.

A pair (i, j) has scores s_i and s_j and a preference S: 1 where i is more relevant, -1 where j is, 0 where they are
equally so. A loss gives one value a pair, and the caller reduces. The source ("the note") writes RankNet only; what it
leaves blank is settled in the errata, E-R1 to E-R5.
"""

from __future__ import annotations

import torch
from torch.nn import functional

BOUNDS = (0.1, 2.0)
"""Of a margin or a σ that is learnt (E-R4)."""


def margin_ranking_loss(
    s_i: torch.Tensor, s_j: torch.Tensor, preference: torch.Tensor, margin: torch.Tensor | float = 1.0
) -> torch.Tensor:
    """Hinge on the difference of scores, ``max(0, m - S (s_i - s_j))``, 0 for pairs of S = 0 (E-R3).

    Args:
        s_i: scores, (P,).
        s_j: scores, (P,).
        preference: S in {1, 0, -1}, (P,).
        margin: m, in units of the scores, a number or one a pair.

    Returns:
        (P,). The mean of E-R3 is over the pairs with a preference.
    """
    return functional.relu(margin - preference * (s_i - s_j)) * (preference != 0)


def adaptive_margin_ranking_loss(
    s_i: torch.Tensor,
    s_j: torch.Tensor,
    y_i: torch.Tensor,
    y_j: torch.Tensor,
    margin: torch.Tensor | float = 1.0,
    gap_max: float = 1.0,
) -> torch.Tensor:
    """:func:`margin_ranking_loss` with the margin ``m |y_i - y_j| / gap_max`` of the pair's grades (E-R4), (P,).

    Args:
        s_i: scores, (P,).
        s_j: scores, (P,).
        y_i: grades, (P,).
        y_j: grades, (P,).
        margin: m of the largest gap.
        gap_max: the largest difference of two grades; with two grades, this is the plain loss.
    """
    gap = y_i - y_j
    return margin_ranking_loss(s_i, s_j, gap.sign(), margin * gap.abs() / gap_max)


def ranknet_loss(
    s_i: torch.Tensor, s_j: torch.Tensor, preference: torch.Tensor, sigma: torch.Tensor | float = 1.0
) -> torch.Tensor:
    """Cross entropy of P = sigmoid(σ (s_i - s_j)) with P̄ = (1 + S) / 2: ``(1 - S) σ d / 2 + ln(1 + e^{-σ d})``.

    Burges et al., ICML 2005. The note prints a minus before the first term, which is right for S = 1 only (E-R1). The
    gradient of s_i is σ (P - P̄). With S = 0 it draws the two scores together.

    Args:
        s_i: scores, (P,).
        s_j: scores, (P,).
        preference: S in {1, 0, -1}, (P,).
        sigma: σ, a number or one a pair.

    Returns:
        (P,) in nats.
    """
    x = sigma * (s_i - s_j)
    return (1 - preference) / 2 * x + functional.softplus(-x)


def adaptive_ranknet_loss(
    s_i: torch.Tensor,
    s_j: torch.Tensor,
    y_i: torch.Tensor,
    y_j: torch.Tensor,
    sigma: torch.Tensor | float = 1.0,
    gap_max: float = 1.0,
) -> torch.Tensor:
    """:func:`ranknet_loss` with ``σ |y_i - y_j| / gap_max``; equal grades keep σ, with S = 0 (E-R5), (P,).

    Arguments as for :func:`adaptive_margin_ranking_loss`, σ in the place of the margin.
    """
    gap = y_i - y_j
    share = torch.where(gap == 0, 1.0, gap.abs() / gap_max)
    return ranknet_loss(s_i, s_j, gap.sign(), sigma * share)


def bounded(raw: torch.Tensor) -> torch.Tensor:
    """A learnable margin or σ in :data:`BOUNDS`: ``low + (high - low) sigmoid(raw)``, of any shape (E-R4, E-R5).

    Without bounds a hinge's margin is minimised by shrinking it, and σ grows for ever once pairs are in order.
    """
    low, high = BOUNDS
    return low + (high - low) * torch.sigmoid(raw)


def unbounded(value: float) -> torch.Tensor:
    """The ``raw`` that :func:`bounded` makes ``value`` of, a scalar; ``value`` lies inside the bounds."""
    low, high = BOUNDS
    return torch.logit(torch.tensor((value - low) / (high - low)))
