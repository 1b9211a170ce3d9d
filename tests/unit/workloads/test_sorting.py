"""The order of rows of scores, compared with Python's sort."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from workloads.sorting import sort_with_positions


def _with_ties(shape: tuple[int, ...]) -> torch.Tensor:
    """Scores with equal ones, both zeros and -inf."""
    source = torch.Generator().manual_seed(0)
    scores = torch.randint(-20, 20, shape, generator=source) * torch.tensor(0.37)
    scores = torch.where(torch.rand(shape, generator=source) < 0.2, -0.0, scores)
    return torch.where(torch.rand(shape, generator=source) < 0.1, -torch.inf, scores)


@pytest.mark.parametrize("shape", [(1, 1), (4, 9), (2, 3, 700), (2, 0)])
def test_sort_with_positions_matches_pythons_stable_order(shape: tuple[int, ...]) -> None:
    scores = _with_ties(shape)
    values, places = sort_with_positions(scores)
    for row, value, place in zip(*(x.flatten(0, -2).tolist() for x in (scores, values, places))):
        assert place == sorted(range(len(row)), key=row.__getitem__)
        ordered = [row[at] for at in place]
        assert [a < b for a, b in pairwise(ordered)] == [a < b for a, b in pairwise(value)]


@pytest.mark.parametrize("count", [1, 2, 350, 699, 700])
def test_first_positions_are_those_of_the_whole_order(count: int) -> None:
    scores = _with_ties((2, 3, 700))
    for part, whole in zip(sort_with_positions(scores, count), sort_with_positions(scores)):
        assert torch.equal(part, whole[..., :count])
