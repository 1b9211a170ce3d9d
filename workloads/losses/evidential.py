"""Losses of a Beta distribution on each candidate and of a query's success probability: the VERA note, section 2 to 4.

Blocks are (Q, C), one row a query; ``listed`` is False where a row is shorter. A loss gives one value a query, (Q,),
and the caller divides: by the number of queries, of those with a positive, or of pairs, as each docstring says. All is
in nats (E-V3), and in log space, so that scores of any size leave it finite (E-V5). The note's loss of the ranking,
4.1, is :func:`workloads.losses.listwise.listwise_softmax_loss` of ``scores / τ``.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

LN2 = math.log(2.0)


def beta_parameters(
    a: torch.Tensor, b: torch.Tensor, prior_positive: float, prior_negative: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``α = λ+ + softplus(a)`` and ``β = λ- + softplus(b)``, of any shape. Note 2; values of both λ by E-V8."""
    return prior_positive + functional.softplus(a), prior_negative + functional.softplus(b)


def log_hit(alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """``ln μ``, μ = α/(α + β) the probability that a candidate is right; of any shape."""
    return -(beta / alpha).log1p()


def log_miss(alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """``ln(1 - μ)``, exact for a μ too small for ``1 - μ`` to show it; of any shape."""
    return -(alpha / beta).log1p()


def top(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Columns of the k highest scores of each row, best first, equal ones in input order (E-V7).

    Args:
        scores: (Q, C); -inf is no candidate.
        k: more than C gives all.

    Returns:
        (Q, min(k, C)), int64; constant for the gradient.
    """
    return scores.detach().argsort(dim=1, descending=True, stable=True)[:, :k]


def log_failure(log_misses: torch.Tensor, columns: torch.Tensor, listed: torch.Tensor) -> torch.Tensor:
    """``ln(1 - c^(k))``, the log-probability that none of the first k answers: ``Σ ln(1 - μ_j)``. Note 2, E-V5, E-V6.

    Args:
        log_misses: ``ln(1 - μ)``, (Q, C).
        columns: of :func:`top`, (Q, k).
        listed: (Q, C).

    Returns:
        (Q,), below 0.
    """
    return log_misses.masked_fill(~listed, 0).gather(1, columns).sum(1)


def succeeds(positive: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """``Z^(k)``: whether a positive (Q, C) is among the columns (Q, k). Note 1. (Q,), bool."""
    return positive.gather(1, columns).any(1)


def log1mexp(x: torch.Tensor) -> torch.Tensor:
    """``ln(1 - e^x)`` of x < 0, exact at both ends, with a finite gradient; of any shape (E-V5)."""
    near = x > -LN2
    small = (-torch.where(near, x, -1).expm1()).log()
    return torch.where(near, small, (-torch.where(near, -1, x).exp()).log1p())


def quantile_groups(confidence: torch.Tensor, groups: int) -> torch.Tensor:
    """Group index of each query, ``⌊rank · G / n⌋`` by ascending confidence: (n,) to (n,) int64. E-V1.

    Equal confidences are ranked in input order.
    """
    order = confidence.argsort(stable=True)
    restored = torch.empty_like(order)
    restored[order] = torch.arange(len(order), device=order.device) * groups // max(1, len(order))
    return restored


def group_rates(success: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """``p_g = (Σ Z + 1)/(n_g + 2)`` of each query's group, so that a group of one query is no certainty. E-V1.

    Args:
        success: Z, (n,) of a real kind.
        groups: (n,) int64.

    Returns:
        (n,), in (0, 1).
    """
    count = int(groups.max()) + 1 if len(groups) else 0
    sums = success.new_zeros(count).index_add(0, groups, success)
    sizes = success.new_zeros(count).index_add(0, groups, torch.ones_like(success))
    return ((sums + 1) / (sizes + 2)).index_select(0, groups)


def entropy_gate(p: torch.Tensor) -> torch.Tensor:
    """``1 - H(p)/ln 2``: 1 for certainty, 0 for p = 1/2. Note 3, E-V3. Of any shape."""
    return 1 + (torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)) / LN2


def vera_loss(
    log_failures: torch.Tensor, rate: torch.Tensor, target: torch.Tensor, alpha: float = 0.7, beta: float = 1.0
) -> torch.Tensor:
    """``α KL(p'||q) + (1-α) KL(q||p) + β (1 - H(p)/ln 2) KL(p'||q)``, q = c^(k). Note 3 and 4.3, E-V1, E-V4.

    The note sets p = p' = Z, whose entropy is 0 and whose KL(q||p) is infinite; therefore p must be inside (0, 1), such
    as the success rate of the query's group. ``rate`` and ``target`` get no gradient.

    Args:
        log_failures: ln(1 - c^(k)), (Q,), of :func:`log_failure`.
        rate: p, the probability of success in the reverse divergence and in the gate, (Q,), inside (0, 1).
        target: p', the probability of success in the forward divergences, (Q,), in [0, 1]; it may be Z itself.
        alpha: weight of the forward divergence against the reverse one, in [0, 1].
        beta: weight of the gated one.

    Returns:
        (Q,); divide by the number of queries N.
    """
    log_c = log1mexp(log_failures)
    p = rate.detach()
    forward_p = target.detach()
    negative_entropy = torch.xlogy(forward_p, forward_p) + torch.xlogy(1 - forward_p, 1 - forward_p)
    forward = negative_entropy - forward_p * log_c - (1 - forward_p) * log_failures
    reverse = -log_failures.expm1() * (log_c - p.log()) + log_failures.exp() * (log_failures - (-p).log1p())
    return (alpha + beta * entropy_gate(p)) * forward + (1 - alpha) * reverse


def candidate_loss(
    alpha: torch.Tensor, beta: torch.Tensor, positive: torch.Tensor, listed: torch.Tensor, negative_weight: float
) -> torch.Tensor:
    """``mean_P -ln μ + λ_neg mean_N -ln(1 - μ)``: evidence of candidates, each query's classes alike. Note 4.2.

    Args:
        alpha: (Q, C).
        beta: (Q, C).
        positive: (Q, C), bool.
        listed: (Q, C), bool.
        negative_weight: λ_neg.

    Returns:
        (Q,), 0 without a positive; divide by the number N' of queries that have one. Without negatives their term is 0
        (E-V10).
    """
    negative = listed & ~positive
    positives = positive.sum(1)
    negatives = negative.sum(1)
    loss = torch.where(positive, -log_hit(alpha, beta), 0.0).sum(1) / positives.clamp(min=1)
    others = torch.where(negative, -log_miss(alpha, beta), 0.0).sum(1) / negatives.clamp(min=1)
    return torch.where(positives > 0, loss + negative_weight * others, 0.0)


def consistency_loss(
    scores: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor, listed: torch.Tensor
) -> torch.Tensor:
    """``Σ_j (σ(s_j) - μ_j)²``. Note 4.4. Detach what is not to move (E-V9).

    Returns:
        (Q,); divide by the number of pairs (E-V10).
    """
    gap = scores.masked_fill(~listed, 0).sigmoid() - alpha / (alpha + beta)
    return torch.where(listed, gap.square(), 0.0).sum(1)


def evidential_loss(
    alpha: torch.Tensor, beta: torch.Tensor, positive: torch.Tensor, listed: torch.Tensor
) -> torch.Tensor:
    """``Σ_j -ln μ_j`` of positives and ``-ln(1 - μ_j)`` of the others: type-II likelihood, queries not balanced.

    The baseline of the note's section 4: evidential deep learning's (Sensoy et al., NeurIPS 2018, equation 3) for two
    classes, where all candidates count alike.

    Returns:
        (Q,); divide by the number of pairs.
    """
    log_p = torch.where(positive, log_hit(alpha, beta), log_miss(alpha, beta))
    return torch.where(listed, -log_p, 0.0).sum(1)
