"""Which documents of a session are trained on, and which are remembered: PSS and ISD of the L2R notes.

A query's own n documents are a row of a block (Q, n, d), -inf being the score of filling. What a document has in common
with the query is the part along it, what is its own the part across. All functions are batched over queries.
"""

from __future__ import annotations

import torch


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
        (Q, n); above 0 where the document is the less relevant one, by the model.
    """
    return along(positive.unsqueeze(1), query) - along(docs, query)


def isd(
    docs: torch.Tensor, docs_there: torch.Tensor, among: torch.Tensor, among_there: torch.Tensor, query: torch.Tensor
) -> torch.Tensor:
    """Inter-sample diversity: mean distance of each document to a set, across the query (E-L1, E-L4).

    A document of the set has distance 0 to itself, which stays in the mean. To an empty set the diversity is 0.

    Args:
        docs: (Q, n, d).
        docs_there: (Q, n).
        among: the set D, (Q, m, d).
        among_there: (Q, m).
        query: (Q, d).

    Returns:
        (Q, n), -inf for filling.
    """
    distances = torch.cdist(across(docs, query), across(among, query), compute_mode="donot_use_mm_for_euclid_dist")
    total = distances.masked_fill(~among_there.unsqueeze(1), 0).sum(2)
    mean = total / among_there.sum(1, keepdim=True).clamp(min=1)
    return mean.masked_fill(~docs_there, -torch.inf)


def new_scores(
    docs: torch.Tensor,
    there: torch.Tensor,
    positive: torch.Tensor,
    query: torch.Tensor,
    alpha: float,
    standardise: bool = False,
) -> torch.Tensor:
    """alpha PSS + (1 - alpha) ISD of a session's candidates, raw as printed or each standardised over them (E-L3).

    Returns:
        (Q, n), -inf for filling.
    """
    superiority = pss(docs, positive, query).masked_fill(~there, -torch.inf)
    diversity = isd(docs, there, docs, there, query)
    if standardise:
        superiority, diversity = _standardised(superiority, there), _standardised(diversity, there)
    mixed = alpha * superiority.masked_fill(~there, 0) + (1 - alpha) * diversity.masked_fill(~there, 0)
    return mixed.masked_fill(~there, -torch.inf)


def top_positions(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The places of the ``count`` highest of each row, ties by place; -1 where a row has fewer (E-L1). (Q, count)."""
    values, places = scores.sort(dim=1, descending=True, stable=True)
    places = torch.where(values == -torch.inf, -1, places)[:, :count]
    return torch.nn.functional.pad(places, (0, count - places.shape[1]), value=-1)


def gather_docs(docs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The numbers at some places of each row, -1 where a place is. (Q, n), (Q, k) -> (Q, k)."""
    if not docs.shape[1]:
        return torch.full_like(places, -1)
    return torch.where(places < 0, -1, docs.gather(1, places.clamp(min=0)))


def _standardised(scores: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    count = there.sum(1, keepdim=True).clamp(min=1)
    centred = scores.masked_fill(~there, 0)
    centred = (centred - centred.sum(1, keepdim=True) / count).masked_fill(~there, 0)
    deviation = (centred.square().sum(1, keepdim=True) / count).sqrt()
    return centred / torch.where(deviation > 0, deviation, 1)


def _direction(query: torch.Tensor) -> torch.Tensor:
    norm = query.norm(dim=1, keepdim=True)
    return torch.where(norm > 0, query / torch.where(norm > 0, norm, 1), 0)
