"""What a recommender shows, beyond what is relevant: popularity, novelty, coverage and concentration of its lists.

Every function takes ``lists`` (U, k), int64 item numbers, -1 past a list's end. The first two give one value a user,
(U,), float32, 0 for an empty list; the other two one value for all lists. The thesis asks for diversity and novelty
(1.1) without a formula.
"""

from __future__ import annotations

import torch


def popularity(lists: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Mean number of training interactions of the listed items, (U,): average recommendation popularity.

    Yin et al., "Challenging the Long Tail Recommendation", VLDB 2012. ``counts`` (I,). Lower is less popular.
    """
    return _mean(counts.float(), lists)


def novelty(lists: torch.Tensor, counts: torch.Tensor, n_users: int) -> torch.Tensor:
    """Mean self-information log2(n_users / count) of the listed items, in bits, (U,).

    Zhou et al., "Solving the apparent diversity-accuracy dilemma of recommender systems", PNAS 2010. ``counts`` (I,);
    an item without training interactions counts as one with one. Higher is more novel.
    """
    return _mean((n_users / counts.clamp(min=1)).float().log2(), lists)


def coverage(lists: torch.Tensor, n_items: int) -> float:
    """Share of the catalogue that is in at least one list (Ge et al., RecSys 2010). Higher covers more."""
    return float((_exposure(lists, n_items) > 0).sum() / n_items)


def gini(lists: torch.Tensor, n_items: int) -> float:
    """Gini coefficient of the numbers of lists that items are in: 0 if equal, 1 - 1 / n_items if all lists show one.

    Σ (2 r - I - 1) c_(r) / (I Σ c) over the counts c in ascending order, ranks r from 1 (Fleder and Hosanagar,
    Management Science 2009). Lower is more even; 0 without a list.
    """
    shown = _exposure(lists, n_items).sort().values.double()
    ranks = torch.arange(1, n_items + 1, device=shown.device)
    total = float(shown.sum())
    return float(((2 * ranks - n_items - 1) * shown).sum() / (n_items * total)) if total else 0.0


def _mean(values: torch.Tensor, lists: torch.Tensor) -> torch.Tensor:
    listed = lists >= 0
    return (values[lists.clamp(min=0)] * listed).sum(1) / listed.sum(1).clamp(min=1)


def _exposure(lists: torch.Tensor, n_items: int) -> torch.Tensor:
    """Number of lists that each item is in, (I,)."""
    return torch.bincount(lists[lists >= 0], minlength=n_items)
