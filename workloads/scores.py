"""Scores from embeddings: users with items, in the way fastest on each device, and views; and standardised scores."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_CACHED = 2**21
"""Approximate number of embedding entries that fit a CPU's caches; larger steps are gathered in blocks, twice."""

_BLOCK = 2**17
"""Entries of such a block."""


def node_scores(table: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """Inner products of the first node's embedding with each of the others'.

    Args:
        table: embeddings, (N, d).
        nodes: (1 + n, B), such as a user and n items, for each of B.

    Returns:
        (n, B).
    """
    if table.device.type == "cpu" and len(nodes) > 3 and nodes.numel() * table.shape[1] > _CACHED:
        scores: torch.Tensor = _InBlocks.apply(table, nodes)
        return scores
    # One gather for all rows: index_select scatters its gradient in one pass as well.
    return dots(table.index_select(0, nodes.flatten()).view(*nodes.shape, table.shape[1]))


def two_view_scores(views: torch.Tensor, anchors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of views with all others of a batch, for NT-Xent. Thesis 2.2.4.1; Chen et al., ICML 2020.

    A view's positive is the other view of its image; its negatives are both views of all other images: 2B - 2, which
    with the positive are the 2B - 1 terms of the denominator (E-2.4).

    Args:
        views: embeddings, (2B, d), the first views of all images, then the second ones in the same order.
        anchors: rows of ``views`` whose scores are wanted, (A,).

    Returns:
        The positive's score (A,) and the negatives' (A, 2B - 2).
    """
    count = len(views)
    scores = views.index_select(0, anchors) @ views.T
    columns = _negatives_of(anchors, count)
    positive = (anchors.unsqueeze(1) + count // 2) % count
    return scores.gather(1, positive).squeeze(1), scores.gather(1, columns)


def standardised(scores: torch.Tensor) -> torch.Tensor:
    """Scores (Q, n) with mean 0 and deviation 1 in each row, without padding of -inf; 0 if they are all equal."""
    there = scores != -torch.inf
    count = there.sum(1, keepdim=True).clamp(min=1)
    finite = scores.masked_fill(~there, 0)
    centred = (finite - finite.sum(1, keepdim=True) / count).masked_fill(~there, 0)
    deviation = (centred.square().sum(1, keepdim=True) / count).sqrt()
    return centred / torch.where(deviation > 1e-6, deviation, 1)


def false_negatives(labels: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """Which of the negatives of :func:`two_view_scores` have the class of their anchor.

    Args:
        labels: classes of the views, (2B,), in the order of the views; -1 for an unknown one, which equals no other.
        anchors: as for :func:`two_view_scores`, (A,).

    Returns:
        (A, 2B - 2), bool.
    """
    own = labels.index_select(0, anchors).unsqueeze(1)
    return (labels[_negatives_of(anchors, len(labels))] == own) & (own >= 0)


def _negatives_of(anchors: torch.Tensor, count: int) -> torch.Tensor:
    """Rows of each anchor's negatives, (A, count - 2)."""
    # By their distance from the anchor, around the batch: 0 is the anchor itself, count / 2 its other view.
    distance = torch.arange(1, count - 1, device=anchors.device)
    distance = distance + (distance >= count // 2)
    return (anchors.unsqueeze(1) + distance) % count


def in_batch_scores(
    anchors: torch.Tensor, candidates: torch.Tensor, own: torch.Tensor, masked: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of anchors with all candidates of a batch: one is the anchor's own, the others are negatives.

    Args:
        anchors: embeddings, (A, d).
        candidates: embeddings, (C, d).
        own: the row of each anchor's own candidate, (A,).
        masked: further candidates that are not negatives of an anchor, boolean, (A, C).

    Returns:
        The score of the own candidate (A,) and all scores (A, C), with -inf for those that are not negatives.
    """
    scores = anchors @ candidates.T
    positive = scores.gather(1, own.unsqueeze(1))
    return positive.squeeze(1), scores.masked_fill(masked.scatter(1, own.unsqueeze(1), True), -torch.inf)


def dots(rows: torch.Tensor) -> torch.Tensor:
    """Inner products of the first row with each of the others.

    Args:
        rows: (1 + n, B, d), such as a user's embedding and those of n items, for each of B.

    Returns:
        (n, B).
    """
    scores: torch.Tensor = _Dots.apply(rows)
    return scores


class _Dots(torch.autograd.Function):
    """Inner products row by row on a CPU: a product of all rows at once would not fit its caches."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        if rows.device.type != "cpu":
            return (rows[1:] * rows[0]).sum(-1)
        first, *others = rows.unbind()
        scores = rows.new_empty(len(others), rows.shape[1])
        product = torch.empty_like(first)
        for other, score in zip(others, scores.unbind()):
            torch.sum(torch.mul(first, other, out=product), -1, out=score)
        return scores

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (rows,) = ctx.saved_tensors
        result = torch.empty_like(rows)
        factors = gradient.unsqueeze(-1)
        torch.mul(factors, rows[0], out=result[1:])
        if rows.device.type != "cpu":
            torch.sum(factors * rows[1:], 0, out=result[0])
            return result
        torch.mul(factors[0], rows[1], out=result[0])
        product = torch.empty_like(rows[0])
        for factor, row in zip(factors[1:], rows[2:]):
            result[0].add_(torch.mul(factor, row, out=product))
        return result


class _InBlocks(torch.autograd.Function):
    """Node scores in blocks that stay in a CPU's caches, where the rows of a whole step do not."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(table, nodes)
        parts = []
        for block in torch.split(nodes, _columns(table, nodes), dim=1):
            rows = table.index_select(0, block.flatten()).view(*block.shape, -1)
            parts.append(rows[1:].mul_(rows[0]).sum(-1))
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        table, nodes = ctx.saved_tensors
        result = torch.zeros_like(table)
        size = _columns(table, nodes)
        # embedding_bag sums weighted rows without materialising them.
        others = nodes[1:].T.contiguous()
        weights = gradient.T.contiguous()
        result.index_add_(0, nodes[0], functional.embedding_bag(others, table, mode="sum", per_sample_weights=weights))
        for block, factors in zip(torch.split(nodes, size, dim=1), torch.split(gradient, size, dim=1)):
            rows = factors.unsqueeze(-1) * table.index_select(0, block[0])
            result.index_add_(0, block[1:].flatten(), rows.flatten(0, 1))
        return result, None


def _columns(table: torch.Tensor, nodes: torch.Tensor) -> int:
    return max(1, _BLOCK // (len(nodes) * table.shape[1]))
