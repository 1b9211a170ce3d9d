"""PSS and ISD of the L2R notes: the scores by which documents are chosen for training and for the memory.

Each query has n documents, a row of a block (Q, n, d). A document's vector is decomposed into the part along the query
and the part across (perpendicular to) it. The score of padding is -inf. All functions are batched over queries.
"""

from __future__ import annotations

import torch

from workloads.scores import standardised


def along(docs: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Signed length of each document along its query, d.q / |q|; 0 for a zero query. (Q, n, d), (Q, d) -> (Q, n)."""
    return (docs @ _direction(query).unsqueeze(2)).squeeze(2)


def across(docs: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """The part of each document that is perpendicular to its query, d - (d.q) q / |q|^2. (Q, n, d)."""
    return docs - along(docs, query).unsqueeze(2) * _direction(query).unsqueeze(1)


def pss(docs: torch.Tensor, positive: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Positive sample superiority: how much farther along the query the positive is than each document (E-L2).

    Args:
        docs: (Q, n, d).
        positive: (Q, d).
        query: (Q, d).

    Returns:
        (Q, n); above 0 if the model considers the document less relevant than the positive.
    """
    return along(positive.unsqueeze(1), query) - along(docs, query)


def isd(
    docs: torch.Tensor,
    docs_mask: torch.Tensor,
    among: torch.Tensor,
    among_mask: torch.Tensor,
    query: torch.Tensor,
    whole: bool = False,
) -> torch.Tensor:
    """Inter-sample diversity: mean distance of each document to a set, across the query (E-L1, E-L4).

    If the document is in the set, its distance 0 to itself is part of the mean. The diversity to an empty set is 0.

    Args:
        docs: (Q, n, d).
        docs_mask: False for padding, (Q, n).
        among: the set D, (Q, m, d).
        among_mask: False for padding, (Q, m).
        query: (Q, d).
        whole: measure distances of whole vectors, which the query does not change.

    Returns:
        (Q, n), -inf for padding.
    """
    sides = (docs, among) if whole else (across(docs, query), across(among, query))
    distances = torch.cdist(*sides, compute_mode="donot_use_mm_for_euclid_dist")
    total = distances.masked_fill(~among_mask.unsqueeze(1), 0).sum(2)
    mean = total / among_mask.sum(1, keepdim=True).clamp(min=1)
    return mean.masked_fill(~docs_mask, -torch.inf)


def new_scores(
    docs: torch.Tensor,
    mask: torch.Tensor,
    positive: torch.Tensor,
    query: torch.Tensor,
    alpha: float,
    standardise: bool = False,
    whole: bool = False,
) -> torch.Tensor:
    """alpha PSS + (1 - alpha) ISD of a session's candidates, raw as in the notes or standardised (E-L3).

    ``whole``: as for :func:`isd`.

    Returns:
        (Q, n), -inf for padding.
    """
    superiority = pss(docs, positive, query).masked_fill(~mask, -torch.inf)
    diversity = isd(docs, mask, docs, mask, query, whole)
    if standardise:
        superiority = standardised(superiority)
        diversity = standardised(diversity)
    mixed = alpha * superiority.masked_fill(~mask, 0) + (1 - alpha) * diversity.masked_fill(~mask, 0)
    return mixed.masked_fill(~mask, -torch.inf)


def top_positions(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Positions of the ``count`` highest scores of each row, ties by position; padded with -1 (E-L1). (Q, count)."""
    values, positions = scores.sort(dim=1, descending=True, stable=True)
    positions = torch.where(values == -torch.inf, -1, positions)[:, :count]
    return torch.nn.functional.pad(positions, (0, count - positions.shape[1]), value=-1)


def gather_docs(docs: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The documents at the given positions of each row; -1 for a position of -1. (Q, n), (Q, k) -> (Q, k)."""
    if not docs.shape[1]:
        return torch.full_like(positions, -1)
    return torch.where(positions < 0, -1, docs.gather(1, positions.clamp(min=0)))


def _direction(query: torch.Tensor) -> torch.Tensor:
    norm = query.norm(dim=1, keepdim=True)
    return torch.where(norm > 0, query / torch.where(norm > 0, norm, 1), 0)
