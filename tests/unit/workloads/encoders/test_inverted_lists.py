"""Search with inverted lists: exact if all lists are searched, and otherwise exact within the searched lists."""

from __future__ import annotations

import pytest
import torch

from workloads.encoders import inverted_lists
from workloads.encoders.inverted_lists import InvertedLists
from workloads.encoders.search import exact_topk


def drawn(seed: int, count: int, dim: int = 6) -> torch.Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("lists", [1, 7, 40])
def test_with_all_lists_the_search_is_exact(lists: int) -> None:
    rows, queries = drawn(0, 40), drawn(1, 5)
    scores, found = InvertedLists(rows, lists).search(queries, 9, lists)
    expected = exact_topk(queries, rows, 9)
    torch.testing.assert_close(scores, expected[0])
    assert torch.equal(found, expected[1])


def test_with_some_lists_the_best_rows_of_these_lists_are_returned() -> None:
    rows, queries = drawn(0, 200), drawn(1, 8)
    index = InvertedLists(rows, 10)
    nearest = torch.cdist(rows, index.centres).argmin(1)
    scores, found = index.search(queries, 5, 3)
    for query in range(8):
        probed = torch.cdist(queries[query : query + 1], index.centres)[0].argsort()[:3]
        among = torch.isin(nearest, probed).nonzero().squeeze(1)
        own = queries[query] @ rows[among].T
        assert found[query].tolist() == among[own.argsort(descending=True)[:5]].tolist()
        torch.testing.assert_close(scores[query], own.sort(descending=True).values[:5])


def test_results_beyond_the_rows_of_the_lists_are_filled_with_minus_1() -> None:
    rows = torch.cat([drawn(0, 3) + 50, drawn(1, 3) - 50])
    scores, found = InvertedLists(rows, 2).search(torch.full((1, 6), 50.0), 5, 1)
    assert sorted(found[0, :3].tolist()) == [0, 1, 2]
    assert found[0, 3:].tolist() == [-1, -1]
    assert (scores[0, 3:] == -torch.inf).all()


def test_numbers_of_lists_and_probes_out_of_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="lists must be from 1 to the 4 rows, got 5"):
        InvertedLists(drawn(0, 4), 5)
    with pytest.raises(ValueError, match="k and probes"):
        InvertedLists(drawn(0, 4), 2).search(drawn(1, 1), 1, 0)


def test_search_of_queries_in_parts_equals_the_whole_search(monkeypatch: pytest.MonkeyPatch) -> None:
    index, queries = InvertedLists(drawn(0, 60), 6), drawn(1, 10)
    expected = index.search(queries, 4, 3)
    monkeypatch.setattr(inverted_lists, "_CANDIDATES", 3 * 4 * 3)
    scores, found = index.search(queries, 4, 3)
    torch.testing.assert_close(scores, expected[0])
    assert torch.equal(found, expected[1])
