"""Losses of a retrieval model trained to stay compatible with stored document embeddings (L2R).

For a query there is a block of C documents: the positive, then those of the memory, O in all, whose embeddings are
stored in an index, and then new ones, which are not. A score is an inner product; divide the query's vector by a
temperature where there is one. ``there`` (Q, C) tells real documents from filling. Each loss gives one value a query.
"""

from __future__ import annotations

import torch


def inner_products(query: torch.Tensor, docs: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """f(q, d) = <q, d> of each query with its documents; -inf for filling.

    Args:
        query: (Q, d).
        docs: (Q, C, d).
        there: (Q, C), bool.

    Returns:
        (Q, C).
    """
    return (docs @ query.unsqueeze(2)).squeeze(2).masked_fill(~there, -torch.inf)


def no_compat_loss(query: torch.Tensor, fresh: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """L_no-com: -log softmax at the positive, every document embedded by the model in training (algorithm, step 3).

    Args:
        query: (Q, d).
        fresh: (Q, C, d), the positive first.
        there: (Q, C).

    Returns:
        (Q,); 0 where the positive is alone.
    """
    return _at_positive(inner_products(query, fresh, there))


def rank_loss(query: torch.Tensor, stored: torch.Tensor, new: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """L_rank: the same with positive and memory by their stored embeddings, which are constants (E-L6, E-L8).

    Args:
        query: (Q, d), of the model in training.
        stored: (Q, O, d), the positive first.
        new: (Q, N, d), of the model in training.
        there: (Q, O + N).

    Returns:
        (Q,).
    """
    return _at_positive(inner_products(query, torch.cat([stored.detach(), new], 1), there))


def embedding_alignment_loss(stored: torch.Tensor, fresh: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """L_align-e: half the squared distance of each document's fresh embedding to its stored one, summed (E-L8).

    Args:
        stored: (Q, O, d), constants.
        fresh: (Q, O, d), the same documents by the model in training.
        there: (Q, O).

    Returns:
        (Q,).
    """
    distances = (fresh - stored.detach()).square().sum(2)
    return distances.masked_fill(~there, 0).sum(1) / 2


def ranking_alignment_loss(
    query: torch.Tensor, stored: torch.Tensor, fresh: torch.Tensor, there: torch.Tensor, *, detach_target: bool = False
) -> torch.Tensor:
    """L_align-r: KL(p || p') of two rankings of the same documents, by the formula rather than its words (E-L5).

    Both take the query from the model in training; p has the stored embeddings of positive and memory, p' fresh ones
    of all. Both carry a gradient, but for the stored embeddings.

    Args:
        query: (Q, d).
        stored: (Q, O, d), the positive first.
        fresh: (Q, C, d), all documents in the same order.
        there: (Q, C).
        detach_target: p is a constant.

    Returns:
        (Q,), at least 0.
    """
    mixed = torch.cat([stored.detach(), fresh[:, stored.shape[1] :]], 1)
    target = inner_products(query, mixed, there).log_softmax(1)
    if detach_target:
        target = target.detach()
    fitted = inner_products(query, fresh, there).log_softmax(1)
    # Filling has -inf on both sides; 0 before the product keeps NaN out of value and gradient.
    target = target.masked_fill(~there, 0)
    fitted = fitted.masked_fill(~there, 0)
    return (target.exp() * (target - fitted)).masked_fill(~there, 0).sum(1)


def _at_positive(scores: torch.Tensor) -> torch.Tensor:
    """-log softmax at the first column, (Q,)."""
    return scores.logsumexp(1) - scores[:, 0]
