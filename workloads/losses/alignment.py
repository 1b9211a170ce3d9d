"""Losses of a retrieval model trained to stay compatible with stored document embeddings (L2R).

Each query has C documents, in this order: its positive, O - 1 documents of the memory, N new ones (C = O + N). The
first O have embeddings stored in an index. ``mask`` (Q, C) is False for padding. Scores are inner products; divide the
query's vector by a temperature beforehand. Each loss returns one value per query, (Q,).
"""

from __future__ import annotations

import torch


def inner_products(query: torch.Tensor, docs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """f(q, d) = <q, d> of each query with its documents; -inf for padding.

    Args:
        query: (Q, d).
        docs: (Q, C, d).
        mask: (Q, C), bool.

    Returns:
        (Q, C).
    """
    return (docs @ query.unsqueeze(2)).squeeze(2).masked_fill(~mask, -torch.inf)


def no_compat_loss(query: torch.Tensor, fresh: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """L_no-com: -log softmax at the positive, every document embedded by the model in training (algorithm, step 3).

    Args:
        query: (Q, d).
        fresh: (Q, C, d), the positive first.
        mask: (Q, C).

    Returns:
        (Q,); 0 where the positive is alone.
    """
    return _at_positive(inner_products(query, fresh, mask))


def rank_loss(query: torch.Tensor, stored: torch.Tensor, new: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """L_rank: -log softmax at the positive; positive and memory use their stored, constant embeddings (E-L6, E-L8).

    Args:
        query: (Q, d), of the model in training.
        stored: (Q, O, d), the positive first.
        new: (Q, N, d), of the model in training.
        mask: (Q, O + N).

    Returns:
        (Q,).
    """
    return _at_positive(inner_products(query, torch.cat([stored.detach(), new], 1), mask))


def embedding_alignment_loss(stored: torch.Tensor, fresh: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """L_align-e: half the squared distance of each document's fresh embedding to its stored one, summed (E-L8).

    Args:
        stored: (Q, O, d), constants.
        fresh: (Q, O, d), the same documents by the model in training.
        mask: (Q, O).

    Returns:
        (Q,).
    """
    distances = (fresh - stored.detach()).square().sum(2)
    return distances.masked_fill(~mask, 0).sum(1) / 2


def ranking_alignment_loss(
    query: torch.Tensor, stored: torch.Tensor, fresh: torch.Tensor, mask: torch.Tensor, *, detach_target: bool = False
) -> torch.Tensor:
    """L_align-r: KL(p || p'), p from stored and p' from fresh embeddings of the same documents (E-L5).

    Both take the query from the model in training; p has the stored embeddings of positive and memory, p' fresh ones
    of all. Both carry a gradient, but for the stored embeddings.

    Args:
        query: (Q, d).
        stored: (Q, O, d), the positive first.
        fresh: (Q, C, d), all documents in the same order.
        mask: (Q, C).
        detach_target: p is a constant.

    Returns:
        (Q,), at least 0.
    """
    mixed = torch.cat([stored.detach(), fresh[:, stored.shape[1] :]], 1)
    target = inner_products(query, mixed, mask).log_softmax(1)
    if detach_target:
        target = target.detach()
    fitted = inner_products(query, fresh, mask).log_softmax(1)
    # Padding has -inf on both sides; 0 before the product keeps NaN out of value and gradient.
    target = target.masked_fill(~mask, 0)
    fitted = fitted.masked_fill(~mask, 0)
    return (target.exp() * (target - fitted)).masked_fill(~mask, 0).sum(1)


def _at_positive(scores: torch.Tensor) -> torch.Tensor:
    """-log softmax at the first column, (Q,)."""
    return scores.logsumexp(1) - scores[:, 0]
