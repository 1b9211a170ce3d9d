"""Losses of a positive's score against those of N unlabelled samples: InfoNCE and its debiased and weighted forms.

All take scores, cosines or inner products, that the caller has masked; a masked sample has the score -inf. Each
gives one value an anchor, (B,), and the caller reduces; an anchor all of whose samples are masked gives 0 and no
gradient. ``tau`` is the share of positives among the unlabelled samples (τ+ of the thesis), ``temperature`` divides
every score. Sums of exponentials stay in logarithms: nothing overflows or vanishes, however large the scores.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import torch
from torch.nn import functional

from workloads.ecdf import Ties, ecdf

Floor: TypeAlias = Literal["cosine", "minimum", "none"]
"""The least that a debiased mean of negatives can be: e^(-1/t), which holds for cosines alone (E-DCL), the smallest
of the anchor's own scores, which holds for any, or nothing: then the logarithm may not exist."""


_CACHED = 2**18
"""Scores computed at once by :func:`view_infonce_loss`: as many as fit a CPU's caches."""


def infonce_loss(positive: torch.Tensor, negatives: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """InfoNCE, ``-ln(e^{x+/t} / (e^{x+/t} + Σ_n e^{x_n/t}))``. Thesis (2.3), (6.1) and (6.2).

    Args:
        positive: (B,).
        negatives: (B, N).

    Returns:
        (B,) in nats, at least 0.
    """
    return functional.softplus(_log_sum(negatives / temperature) - positive / temperature)


def view_infonce_loss(
    anchors: torch.Tensor,
    candidates: torch.Tensor,
    own: torch.Tensor,
    weights: torch.Tensor,
    temperature: float = 1.0,
    repeated: torch.Tensor | None = None,
) -> torch.Tensor:
    """Weighted sum of InfoNCE of cosines: one candidate is an anchor's positive, the others are its negatives.

    Thesis (2.3) and 2.2.4.4. The gradient is computed with the loss, in blocks that stay in a CPU's caches, so that the
    cosines (B, C) are never stored.

    Args:
        anchors: embeddings, (B, d).
        candidates: embeddings, (C, d).
        own: the positive of each anchor, a row of ``candidates``, (B,).
        weights: of the anchors, (B,), without gradient.
        repeated: boolean (C,), candidates to leave out, except as an anchor's own.

    Returns:
        A scalar in nats, the sum of ``weights`` times losses that are at least 0.
    """
    loss: torch.Tensor = _ViewInfoNCE.apply(anchors, candidates, own, weights, temperature, repeated)
    return loss


class _ViewInfoNCE(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchors: torch.Tensor,
        candidates: torch.Tensor,
        own: torch.Tensor,
        weights: torch.Tensor,
        temperature: float,
        repeated: torch.Tensor | None,
    ) -> torch.Tensor:
        a, a_length = _normalised(anchors)
        c, c_length = _normalised(candidates)
        own = own.unsqueeze(1)
        weights = weights.unsqueeze(1)
        loss = a.new_zeros(())
        of_a = torch.empty_like(a)
        of_c = torch.zeros_like(c)
        scaled = a / temperature
        rows = max(1, _CACHED // max(1, len(c))) if a.device.type == "cpu" else max(1, len(a))
        for first in range(0, len(a), rows):
            block = slice(first, first + rows)
            scores = scaled[block] @ c.T
            if repeated is not None:
                scores.masked_fill_(repeated.expand_as(scores).scatter(1, own[block], False), -math.inf)
            if temperature < 1 / 40:  # otherwise e^(1/t) and its sums are finite
                scores -= scores.amax(1, keepdim=True)
            positive = scores.gather(1, own[block])
            sums = scores.exp_().sum(1, keepdim=True)
            loss += ((sums.log() - positive) * weights[block]).sum()
            share = weights[block] / sums
            torch.mm(scores, c, out=of_a[block])
            of_a[block] *= share
            of_c.addmm_(scores.T, scaled[block] * share)
        of_a -= c.index_select(0, own.squeeze(1)) * weights
        of_c.index_add_(0, own.squeeze(1), scaled * weights, alpha=-1)
        of_a /= temperature
        ctx.save_for_backward(_of_length(of_a, a, a_length), _of_length(of_c, c, c_length))
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None, None, None]:
        of_anchors, of_candidates = ctx.saved_tensors
        return of_anchors * gradient, of_candidates * gradient, None, None, None, None


def _normalised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of length 1, (n, d), and their lengths before, (n, 1)."""
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min_(1e-12)
    return x / length, length


def _of_length(gradient: torch.Tensor, x: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """The gradient before normalisation of that after it, (n, d), for rows ``x`` of length 1."""
    return gradient.addcmul_((gradient * x).sum(1, keepdim=True), x, value=-1).div_(length)


def decoupled_loss(positive: torch.Tensor, negatives: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Decoupled contrastive learning: the positive leaves the denominator. Thesis 2.2.4.3; Yeh et al., ECCV 2022.

    Args:
        positive: (B,).
        negatives: (B, N).

    Returns:
        (B,) in nats; may be negative.
    """
    total = _log_sum(negatives / temperature)
    return (total - positive / temperature).masked_fill(total == -math.inf, 0)


def dcl_loss(
    positive: torch.Tensor,
    negatives: torch.Tensor,
    extra: torch.Tensor,
    *,
    tau: float,
    temperature: float = 1.0,
    floor: Floor = "minimum",
) -> torch.Tensor:
    """Debiased contrastive loss: the share of positives among the samples is taken out of their sum.

    ``N g = (Σ_n e^{x_n/t} - N τ+ mean_m e^{x_m+/t}) / τ-`` stands for the negatives. Thesis 2.2.4.4, 5.6.1.4 and
    (6.47); Chuang et al., NeurIPS 2020. Without extra positives there is no correction (E-DCL).

    Args:
        positive: (B,).
        negatives: (B, N).
        extra: further positives of the anchor, (B, M); usually the positive itself, M = 1.
        tau: τ+ in [0, 1).
        floor: see :data:`Floor`.

    Returns:
        (B,) in nats.
    """
    return hcl_loss(positive, negatives, extra, tau=tau, beta=0, temperature=temperature, floor=floor)


def cosine_dcl_loss(
    positive: torch.Tensor, negatives: torch.Tensor, *, tau: float, temperature: float = 1.0
) -> torch.Tensor:
    """DCL of cosines with K = 1: the positive itself is the only known one (E-DCL). Shapes as for :func:`dcl_loss`."""
    return dcl_loss(positive, negatives, positive.unsqueeze(1), tau=tau, temperature=temperature, floor="cosine")


def cosine_hcl_loss(
    positive: torch.Tensor, negatives: torch.Tensor, *, tau: float, beta: float, temperature: float = 1.0
) -> torch.Tensor:
    """HCL of cosines with K = 1: the positive itself is the only known one (E-DCL). Shapes as for :func:`hcl_loss`."""
    own = positive.unsqueeze(1)
    return hcl_loss(positive, negatives, own, tau=tau, beta=beta, temperature=temperature, floor="cosine")


def hcl_loss(
    positive: torch.Tensor,
    negatives: torch.Tensor,
    extra: torch.Tensor,
    *,
    tau: float,
    beta: float,
    temperature: float = 1.0,
    floor: Floor = "minimum",
) -> torch.Tensor:
    """DCL with hardness weights on the negatives, x̂^β / mean x̂^β with x̂ = e^{x/t}; β = 0 is DCL.

    Thesis 5.6.1.4 and (5.52), with E-5.52; Robinson et al., ICLR 2021.

    Args:
        positive, negatives, extra, tau, floor: as for :func:`dcl_loss`.
        beta: concentration, at least 0.

    Returns:
        (B,) in nats.
    """
    if not negatives.shape[1]:
        return positive * 0
    masked = negatives == -math.inf
    empty = masked.all(1)
    count = (~masked).sum(1).clamp_min(1).to(negatives).log()
    negatives = negatives.masked_fill(empty.unsqueeze(1), 0)
    among = negatives / temperature
    if beta:
        among = among + _log_hcl_weights(negatives, beta, temperature)
    among = among.logsumexp(1)
    positive = positive / temperature
    if extra.shape[1] and tau:
        surplus = (extra / temperature).logsumexp(1) + count + math.log(tau / extra.shape[1])
        if floor == "none":
            top = torch.stack([positive, among, surplus]).detach().amax(0)
            negative = ((among - top).exp() - (surplus - top).exp()) / (1 - tau)
            return (((positive - top).exp() + negative).log() + top - positive).masked_fill(empty, 0)
        lowest = -1 if floor == "cosine" else negatives.detach().masked_fill(masked, math.inf).amin(1)
        among = _floored(among, surplus, tau, count + lowest / temperature)
    return functional.softplus(among - positive).masked_fill(empty, 0)


def _floored(among: torch.Tensor, surplus: torch.Tensor, tau: float, least: torch.Tensor) -> torch.Tensor:
    """ln max((e^among - e^surplus) / τ-, e^least)."""
    positive = surplus < among
    gap = torch.where(positive, surplus - among, -1)  # where it is not used it must have a finite gradient
    corrected = among + (-torch.expm1(gap)).log() - math.log1p(-tau)
    return torch.where(positive & (corrected > least), corrected, least)


def _log_hcl_weights(negatives: torch.Tensor, beta: float, temperature: float) -> torch.Tensor:
    masked = negatives == -math.inf
    count = (~masked).sum(1, keepdim=True)
    hardness = negatives.masked_fill(masked, 0) * (beta / temperature)
    return hardness.masked_fill(masked & (count > 0), -math.inf).log_softmax(1) + count.to(negatives).log()


def _log_sum(scores: torch.Tensor) -> torch.Tensor:
    """Logarithm of a row's sum of exponentials, -inf without gradient for a row that is all masked."""
    empty = (scores == -math.inf).all(1)
    return scores.masked_fill(empty.unsqueeze(1), 0).logsumexp(1).masked_fill(empty, -math.inf)


def bcl_phi(unlabelled: torch.Tensor, alpha: float, tau: float) -> torch.Tensor:
    """Φ(x̂) from Φ_UN(x̂): the root of ``a Φ² + b Φ = Φ_UN`` in [0, 1]. Thesis (6.28) and (6.29).

    Written ``2 Φ_UN / (b + √(b² + 4 a Φ_UN))``: exact for every α and τ+, a = 0 included, no cancellation (E-6.29).
    Of any shape, α in [.5, 1], τ+ in [0, 1).
    """
    _, b = _quadratic(alpha, tau)
    return (2 * unlabelled / (b + _root(unlabelled, alpha, tau))).clamp_max(1)


def bcl_weights_at(unlabelled: torch.Tensor, *, alpha: float, beta: float, tau: float) -> torch.Tensor:
    """ω as a function of Φ_UN. Thesis (6.25) and (6.26), with the limits of E-6.25 where these are 0/0.

    Args:
        unlabelled: Φ_UN of each sample, any shape.
        alpha: in [.5, 1], how well the scores separate the classes.
        beta: in [0, 1], the share of hard negatives aimed at; .5 only corrects the bias.
        tau: τ+ in [0, 1).

    Returns:
        Like ``unlabelled``, at least 0.
    """
    phi = bcl_phi(unlabelled, alpha, tau)
    denominator = _root(unlabelled, alpha, tau) / 2
    z = (1 - beta) * alpha + beta * (1 - alpha)
    # Written so that neither term is negative: a difference could round below 0.
    numerator = phi if z == 0 else ((1 - beta) * alpha * (1 - phi) + beta * (1 - alpha) * phi) / z
    return torch.where(denominator > 0, numerator / denominator, 1)


def bcl_weights(negatives: torch.Tensor, *, alpha: float, beta: float, tau: float, ties: Ties = "le") -> torch.Tensor:
    """ω of each unlabelled score within its anchor's row, without gradient. Thesis algorithm 5.

    Args:
        negatives: (B, N); those of -inf are left out of the row's distribution and weigh nothing that matters.
        alpha, beta, tau: in [.5, 1], [0, 1] and [0, 1), as for :func:`bcl_weights_at`.
        ties: see :data:`workloads.ecdf.Ties`.

    Returns:
        (B, N), at least 0.
    """
    n = negatives.shape[1]
    cdf = ecdf(negatives, ties)
    masked = (negatives == -math.inf).sum(1, keepdim=True)  # they rank below all others: subtract their number
    cdf = ((cdf * n - masked) / (n - masked).clamp_min(1)).clamp(0, 1)
    return bcl_weights_at(cdf, alpha=alpha, beta=beta, tau=tau)


def bcl_loss(
    positive: torch.Tensor,
    negatives: torch.Tensor,
    *,
    alpha: float,
    beta: float,
    tau: float,
    temperature: float = 1.0,
    ties: Ties = "le",
) -> torch.Tensor:
    """Bayesian self-supervised contrastive loss: InfoNCE with ω on the unlabelled samples. Thesis (6.31), algorithm 5.

    Args:
        positive: (B,).
        negatives: (B, N); the empirical distribution is the anchor's own, so N should be 16 or more (E-6.30).
        alpha, beta, tau, ties: as for :func:`bcl_weights`.

    Returns:
        (B,) in nats, at least 0.
    """
    weights = bcl_weights(negatives, alpha=alpha, beta=beta, tau=tau, ties=ties)
    return infonce_loss(positive, negatives + temperature * weights.log(), temperature)


def alpha_from_auc(auc: float, *, literal: bool = False) -> float:
    """α of classes that independent draws separate with this AUC: ``clip(1/2 + 3/2 (AUC - 1/2), 1/2, 1)`` (E-6.21).

    ``literal`` takes the AUC itself, as the thesis calls α, in the same bounds.
    """
    return min(1.0, max(0.5, auc if literal else 0.5 + 1.5 * (auc - 0.5)))


def _quadratic(alpha: float, tau: float) -> tuple[float, float]:
    """a and b of thesis (6.28); their sum is one."""
    return (1 - 2 * alpha) * (1 - 2 * tau), 2 * (alpha * (1 - tau) + (1 - alpha) * tau)


def _root(unlabelled: torch.Tensor, alpha: float, tau: float) -> torch.Tensor:
    """√(b² + 4 a Φ_UN) as a sum of terms that are not negative, for either sign of a."""
    a, b = _quadratic(alpha, tau)
    square = b * b + 4 * a * unlabelled if a >= 0 else (1 + a) ** 2 - 4 * a * (1 - unlabelled)
    return square.sqrt()
