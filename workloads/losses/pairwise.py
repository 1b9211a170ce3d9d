"""Losses of a positive's score against a negative's.

A loss gives one value a positive, (B,), and the caller reduces: the gradient of a mean over a global batch is
then right for ragged batches, micro-batches and several workers alike.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

DPL_FLOOR = 0.01
"""P̂ of :func:`dpl_loss` from below (E-5.18b)."""


def bpr_loss(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Bayesian personalised ranking, ``-ln σ(x_ui - x_uj)``.

    Thesis (2.2), (3.4) and (4.1), with the minus sign that (4.1), an objective to maximise, leaves out.
    Rendle et al., UAI 2009, BPR-Opt. Neither overflows nor loses the tail for large differences.

    Args:
        positive: x_ui, (B,).
        negative: x_uj, (B,).

    Returns:
        (B,) in nats, at least 0.
    """
    return functional.softplus(negative - positive)


def bce_loss(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Binary cross entropy of a positive (label 1) and a negative (label 0), their mean. Thesis table 4.4.

    Args:
        positive: x_ui, (B,).
        negative: x_uj, (B,).

    Returns:
        (B,) in nats, at least 0.
    """
    return (functional.softplus(-positive) + functional.softplus(negative)) / 2


def dpl_loss(
    positive: torch.Tensor, negatives: torch.Tensor, extra: torch.Tensor, *, tau: float, floor: float = DPL_FLOOR
) -> torch.Tensor:
    """Debiased pairwise loss, ``-ln P̂`` with P̂ an unbiased estimate from M extra positives and N unlabelled samples.

    ``P̂ = mean_n σ(x_ui - x_un) / τ- - τ+/τ- mean_m σ(x_ui - x_um)``. Thesis (5.17), (5.18) and algorithm 4, with the
    indices of E-A4. Without extra positives there is no correction, so M = 0 and N = 1 is BPR (E-5.17).

    Args:
        positive: x_ui, (B,).
        negatives: (B, N).
        extra: (B, M), further positives of the user.
        tau: τ+ in [0, 1), the share of positives among the unlabelled.
        floor: P̂ from below; a corrected estimate under it, negative even, gives no gradient (E-5.18b).

    Returns:
        (B,) in nats; may be slightly negative, since P̂ may pass 1.
    """
    if not extra.shape[1]:  # a mean of probabilities, which needs no floor
        return math.log(negatives.shape[1]) - functional.logsigmoid(positive.unsqueeze(1) - negatives).logsumexp(1)
    return -debiased_probability(positive, negatives, extra, tau=tau).clamp_min(floor).log()


def debiased_probability(
    positive: torch.Tensor, negatives: torch.Tensor, extra: torch.Tensor, *, tau: float
) -> torch.Tensor:
    """P̂ of thesis (5.17), (B,), in [-τ+/τ-, 1/τ-]; arguments as for :func:`dpl_loss`."""
    unlabelled = torch.sigmoid(positive.unsqueeze(1) - negatives).mean(1)
    if not extra.shape[1]:
        return unlabelled
    positives = torch.sigmoid(positive.unsqueeze(1) - extra).mean(1)
    return (unlabelled - tau * positives) / (1 - tau)


def supervised_loss(positive: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
    """The supervised oracle that DPL approaches, ``-ln P_PN``, P_PN the mean of ``σ(x_ui - x_uj)`` over true negatives.

    Thesis (5.27), L_SUP, with a mean over drawn true negatives for the expectation (E-5.27).

    Args:
        positive: x_ui, (B,).
        negatives: (B, N), with -inf for those that are not true negatives.

    Returns:
        (B,) in nats, at least 0; 0 without gradient where no negative is left.
    """
    masked = negatives == -math.inf
    empty = masked.all(1)
    logs = functional.logsigmoid(positive.unsqueeze(1) - negatives.masked_fill(masked, 0))
    logs = logs.masked_fill(masked & ~empty.unsqueeze(1), -math.inf)
    return ((~masked).sum(1).clamp_min(1).to(positive).log() - logs.logsumexp(1)).masked_fill(empty, 0)


def gbpr_loss(positive: torch.Tensor, group: torch.Tensor, negative: torch.Tensor, *, rho: float) -> torch.Tensor:
    """Group preference BPR: the positive's score mixed with the mean over users who share it. Thesis 3.5.1.

    Pan and Chen, IJCAI 2013: ``-ln σ(ρ mean_w x_wi + (1 - ρ) x_ui - x_uj)``.

    Args:
        positive: x_ui, (B,).
        group: x_wi of users w who have i, u among them, (B, G).
        negative: x_uj, (B,).
        rho: in [0, 1]; 0 is BPR.
    """
    return bpr_loss(rho * group.mean(1) + (1 - rho) * positive, negative)


def mpr_loss(
    positive: torch.Tensor,
    viewed: tuple[torch.Tensor, torch.Tensor],
    unobserved: tuple[torch.Tensor, torch.Tensor],
    *,
    lam: float,
) -> torch.Tensor:
    """Multiple pairwise ranking: differences within the classes are smaller than those between them. Thesis 3.5.1.

    Yu et al., CIKM 2018: ``x_i - x_j2 >= x_j1 - x_j2 >= x_i1 - x_i2``, both in one sigmoid with the weight λ.

    Args:
        positive: x_ui, (B,).
        viewed: x_ui1 and x_ui2 of two further positives, (B,) each.
        unobserved: x_uj1 and x_uj2 of two negatives, (B,) each.
        lam: in [0, 1].
    """
    between = unobserved[0] - unobserved[1]
    within = viewed[0] - viewed[1]
    margin = lam * (positive - unobserved[1] - between) + (1 - lam) * (between - within)
    return functional.softplus(-margin)


def truncated_bce_loss(positive: torch.Tensor, negative: torch.Tensor, drop_rate: float) -> torch.Tensor:
    """DenoiseRec, truncated: the largest losses of positives are dropped. Thesis 3.5.1; Wang et al., WSDM 2021.

    Of the 2B samples the ``(1 - drop_rate) 2B`` are kept whose loss, counted for positives alone, is smallest.

    Returns:
        (B,), scaled so that its mean is the mean over the kept samples.
    """
    losses = torch.cat([functional.softplus(-positive), functional.softplus(negative)])
    key = torch.cat([losses[: len(positive)].detach(), torch.zeros_like(negative)])
    kept = int((1 - drop_rate) * len(losses))
    keep = torch.zeros_like(losses)
    keep[key.argsort(stable=True)[:kept]] = 1
    return (losses * keep).view(2, len(positive)).sum(0) * (len(positive) / max(1, kept))


def reweighted_bce_loss(positive: torch.Tensor, negative: torch.Tensor, beta: float) -> torch.Tensor:
    """DenoiseRec, reweighted: weights p^β for positives and (1 - p)^β for negatives, without gradient; (B,)."""
    weights = torch.sigmoid(positive).detach() ** beta, torch.sigmoid(-negative).detach() ** beta
    return (weights[0] * functional.softplus(-positive) + weights[1] * functional.softplus(negative)) / 2


def truncated_bpr_loss(positive: torch.Tensor, negative: torch.Tensor, threshold: float) -> torch.Tensor:
    """DenoiseRec in the thesis' words (3.5.1): BPR, with a loss above ``threshold`` set to 0; (B,)."""
    loss = bpr_loss(positive, negative)
    return loss.masked_fill(loss > threshold, 0)


def truncated_share(step: int, *, maximum: float, steps: int) -> float:
    """How much DenoiseRec drops at ``step``, counted from 0: rising to ``maximum`` over ``steps``."""
    return min(maximum * step / steps, maximum)
