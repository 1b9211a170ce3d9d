"""Exact search, compared with sorting all rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.encoders import search
from workloads.encoders.search import exact_topk


def sorted_all(queries: torch.Tensor, index: torch.Tensor, k: int) -> tuple[list[list[float]], list[list[int]]]:
    """Reference: for each query, all rows are sorted by score and then by row number."""
    scores = (queries @ index.T).tolist()
    rows = [sorted(range(len(row)), key=lambda place: (-row[place], place))[:k] for row in scores]
    return [[row[place] for place in places] for row, places in zip(scores, rows)], rows


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 300), k=st.integers(1, 45), values=st.sampled_from([1, 2, 50]))
def test_rows_are_ordered_by_score_with_ties_by_row_number(seed: int, n: int, k: int, values: int) -> None:
    """With few different values there are ties at every rank, including the cut at k."""
    source = torch.Generator().manual_seed(seed)
    queries, index = (torch.randint(-values, values + 1, (m, 2), generator=source).float() for m in (3, n))
    scores, rows = exact_topk(queries, index, k)
    expected = sorted_all(queries, index, k)
    assert (scores.tolist(), rows.tolist()) == expected
    in_blocks = exact_topk(queries, index.split(7), k)
    assert torch.equal(in_blocks[0], scores)
    assert torch.equal(in_blocks[1], rows)


def test_search_of_a_large_index_in_blocks_equals_topk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_SCORES", {"cpu": 1})
    source = torch.Generator().manual_seed(0)
    queries, index = torch.randn(2, 4, generator=source), torch.randn(2500, 4, generator=source)
    scores, rows = exact_topk(queries, index, 5)
    expected = (queries @ index.T).topk(5)
    assert torch.equal(rows, expected.indices)
    torch.testing.assert_close(scores, expected.values)


def test_an_empty_index_gives_nothing() -> None:
    scores, rows = exact_topk(torch.ones(2, 3), [], 5)
    assert scores.shape == rows.shape == (2, 0)


def test_invalid_k_or_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        exact_topk(torch.ones(1, 2), torch.ones(1, 2), 0)
    with pytest.raises(ValueError, match="the index has 3 dimensions, the queries have 2"):
        exact_topk(torch.ones(1, 2), torch.ones(1, 3), 1)
