"""Approximate search of a collection: recall is the share of the exact best rows, and at least the requested one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from workloads.encoders import approximate
from workloads.encoders.approximate import Approximate, CollectionSearch, check
from workloads.encoders.search import exact_topk

COUNT, DIM, K = 3000, 8, 10


def clustered(seed: int, count: int) -> torch.Tensor:
    """Unit vectors around fifty centres."""
    draws = torch.Generator().manual_seed(seed)
    centres = torch.randn(50, DIM, generator=torch.Generator().manual_seed(9))
    rows = centres[torch.randint(50, (count,), generator=draws)] + 0.4 * torch.randn(count, DIM, generator=draws)
    return torch.nn.functional.normalize(rows)


def test_recall_is_measured_on_the_first_queries_and_at_least_as_requested() -> None:
    rows, queries = clustered(0, COUNT), clustered(1, 300)
    queries[7] = 0  # a query without words
    index = Approximate(rows)
    exact = exact_topk(queries, rows, K)[1]
    sample = [row for row in range(201) if row != 7]
    probes = []
    for recall in (0.5, 0.9, 0.99):
        _, found, measured = index.search(queries, K, recall)
        shares = [len(np.intersect1d(exact[row], found[row])) / K for row in sample]
        assert measured == pytest.approx(np.mean(shares), abs=1e-6)
        assert measured >= recall
        probes.append(index._chosen[K, recall][0])
    assert probes == sorted(probes)
    assert 1 < probes[-1] < len(index.lists.centres) / 2, "only some of the lists are searched"
    few = Approximate(rows)
    _, _, measured = few.search(queries[:1], K, 0.9)
    few.search(queries[8:207], K, 0.9)
    assert len(few._sample) == 200, "one query is too small a sample: later queries are added"
    assert few.search(queries[:1], K, 0.9)[2] >= 0.9
    assert not torch.equal(few._sample[:1], torch.zeros(1, DIM))


def test_a_small_collection_and_a_recall_of_1_are_searched_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, queries = clustered(0, COUNT), clustered(1, 250)
    exact = exact_topk(queries, rows, K)
    search = CollectionSearch()
    for recall in (0.5, 1.0):
        monkeypatch.setattr(approximate, "LEAST_ROWS", COUNT + 1 if recall < 1 else 1)
        scores, found, measured = search(queries, torch.split(rows, 700), COUNT, K, recall)
        assert torch.equal(scores, exact[0])
        assert torch.equal(found, exact[1])
        assert measured == 1
    scores, found, measured = search(queries, torch.split(rows, 700), COUNT, K, 0.5)
    assert 0.5 <= measured < 1
    assert (found != exact[1]).any()
    real = found >= 0
    torch.testing.assert_close(scores[real], (queries[:, None] * rows[found]).sum(2)[real])
    assert search(queries, iter(()), COUNT, K, 0.5)[2] == measured, "the lists are made once"


def test_a_recall_out_of_bounds_or_with_a_promise_is_refused() -> None:
    for recall in (0, 1.1):
        with pytest.raises(ValueError, match="recall must be above 0 and at most 1, got"):
            check(recall, False)
    with pytest.raises(ValueError, match="holds for exact search"):
        check(0.9, True)
    check(1.0, True)
