"""Hard negatives with a margin, against a slow reference."""

from __future__ import annotations

import torch
from torch.profiler import profile

from workloads.sampling.hard import hardest


def slow(
    scores: torch.Tensor, positive: torch.Tensor, count: int, margin: float, excluded: torch.Tensor
) -> list[list[int]]:
    rows = []
    for row in range(len(scores)):
        fit = [
            column
            for column in range(scores.shape[1])
            if not excluded[row, column] and scores[row, column] <= positive[row] - margin
        ]
        best = sorted(fit, key=lambda column: (-float(scores[row, column]), column))[:count]
        rows.append(best + [-1] * (count - len(best)))
    return rows


def test_the_highest_scores_below_the_margin_are_chosen() -> None:
    drawn = torch.Generator().manual_seed(3)
    scores = torch.randint(-8, 8, (40, 12), generator=drawn) / 8.0
    positive = torch.randint(-8, 9, (40,), generator=drawn) / 8.0
    positive[0] = -torch.inf
    excluded = torch.rand(40, 12, generator=drawn) < 0.3
    for count, margin in ((3, 0.0), (3, 0.25), (12, 0.125), (20, 0.0)):
        chosen = hardest(scores, positive, count, margin, excluded).tolist()
        assert chosen == slow(scores, positive, count, margin, excluded)
    assert hardest(scores, positive, 3, 0.0, excluded)[0].tolist() == [-1, -1, -1]


def test_hardest_negatives_are_selected_without_a_sort() -> None:
    """All sentences of a training part are candidates of each anchor, and a sort of them takes longer than training."""
    scores = torch.rand(4, 3000, generator=torch.Generator().manual_seed(3))
    nothing = torch.zeros_like(scores, dtype=torch.bool)
    with profile() as seen:
        hardest(scores, torch.full((4,), 0.9), 5, 0.0, nothing)
    assert not [event.key for event in seen.key_averages() if "sort" in event.key]
