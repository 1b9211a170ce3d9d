"""Losses of a pair's cosine against a graded similarity: regression, order and two classes."""

from __future__ import annotations

import torch

HIGHEST = 5.0
"""Grades are from 0 to this."""


def cosine_target(grades: torch.Tensor, lowest: float = 0.0) -> torch.Tensor:
    """Grades of 0 to 5 on the scale of a cosine, linearly: ``grade / 5``. Design note 2.4, E-S0; any shape.

    A grade outside its bounds, such as the -1 of a hidden one, gives NaN and no target (E-S1).

    Args:
        lowest: the cosine of grade 0; -1 is the other map of the note, ``grade 2/5 - 1``.
    """
    inside = (grades >= 0) & (grades <= HIGHEST)
    return torch.where(inside, grades * ((1 - lowest) / HIGHEST) + lowest, torch.nan)


def cosine_mse_loss(cosines: torch.Tensor, grades: torch.Tensor, lowest: float = 0.0) -> torch.Tensor:
    """Squared difference of cosine and target. Design note 2.4 (E-S0).

    Args:
        cosines: (B,).
        grades: from 0 to 5, (B,).
        lowest: see :func:`cosine_target`.

    Returns:
        (B,).
    """
    return (cosines - cosine_target(grades, lowest)).square()


def cosine_embedding_loss(cosines: torch.Tensor, positive: torch.Tensor, margin: float = 0.0) -> torch.Tensor:
    """``1 - cos`` of a pair that belongs together and ``max(0, cos - margin)`` of one that does not.

    Hadsell, Chopra and LeCun, CVPR 2006, on cosines; PyTorch's ``CosineEmbeddingLoss``.

    Args:
        cosines: (B,).
        positive: whether the two belong together, boolean, (B,).

    Returns:
        (B,).
    """
    return torch.where(positive, 1 - cosines, (cosines - margin).clamp_min(0))


def cosent_loss(cosines: torch.Tensor, grades: torch.Tensor, temperature: float = 0.05) -> torch.Tensor:
    """CoSENT, ``ln(1 + Σ_{grade_i > grade_j} e^{(cos_j - cos_i)/t})``: each pair above those of lower grade.

    Su Jianlin, "CoSENT", 2022 (kexue.fm/archives/8847). Only the order of the grades counts.

    Args:
        cosines: (B,).
        grades: (B,), of any scale.

    Returns:
        A scalar of the whole batch, in nats; 0 without gradient where all grades are equal.
    """
    gaps = (cosines.unsqueeze(0) - cosines.unsqueeze(1)) / temperature
    ordered = gaps.masked_fill(grades.unsqueeze(1) <= grades.unsqueeze(0), -torch.inf)
    return torch.cat([ordered.new_zeros(1), ordered.flatten()]).logsumexp(0)
