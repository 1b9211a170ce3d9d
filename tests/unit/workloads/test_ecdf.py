"""Empirical distribution functions compared with the comparison of all pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.ecdf import Ties, ecdf, ecdf_at


def _all_pairs(sample: torch.Tensor, x: torch.Tensor, ties: Ties) -> torch.Tensor:
    """Thesis (2.4), with one comparison for each pair."""
    below = (sample[:, None, :] < x[:, :, None]).double()
    equal = (sample[:, None, :] == x[:, :, None]).double()
    return (below + equal * (1.0 if ties == "le" else 0.5)).mean(2)


@pytest.mark.parametrize("ties", ["le", "mid"])
@given(rows=st.integers(1, 4), n=st.integers(1, 9), seed=st.integers(0, 2**20))
@settings(max_examples=40, deadline=None)
def test_ecdf_matches_the_comparison_of_all_pairs(ties: Ties, rows: int, n: int, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 4, (rows, n), generator=source).double()  # few distinct values, hence many ties
    torch.testing.assert_close(ecdf(scores, ties), _all_pairs(scores, scores, ties), rtol=0, atol=1e-15)
    elsewhere = torch.randint(-4, 5, (rows, 5), generator=source).double()
    found = ecdf_at(scores.sort(1).values, elsewhere, ties)
    torch.testing.assert_close(found, _all_pairs(scores, elsewhere, ties), rtol=0, atol=1e-15)


@pytest.mark.parametrize("ties", ["le", "mid"])
def test_ecdf_of_long_rows_matches_the_comparison_of_all_pairs(ties: Ties) -> None:
    """Rows too long for pairwise comparison, with ties, both zeros, and infinities."""
    source = torch.Generator().manual_seed(0)
    scores = torch.randint(-60, 60, (3, 2, 300), generator=source) / 8
    scores[0, 0, :5] = torch.tensor([-0.0, 0.0, torch.inf, -torch.inf, -torch.inf])
    scores[1] = 2.5
    expected = _all_pairs(scores.flatten(0, 1), scores.flatten(0, 1), ties).view_as(scores)
    torch.testing.assert_close(ecdf(scores, ties), expected.float(), rtol=0, atol=1e-7)
    assert torch.equal(ecdf(scores.to(torch.bfloat16).float(), ties).bfloat16(), ecdf(scores.to(torch.bfloat16), ties))


@pytest.mark.parametrize("anchors", [4, 512])
def test_ecdf_of_a_batch_of_256_equals_all_comparisons_bit_for_bit(anchors: int) -> None:
    """N = 510 as in thesis 6.6.3.2: sorting gives the float32 counts of the authors' comparison of all pairs."""
    source = torch.Generator().manual_seed(6)
    scores = torch.rand(anchors, 510, generator=source) * 2 - 1
    scores[:, 7] = scores[:, 3]
    counted = [(row.unsqueeze(0) <= row.unsqueeze(1)).float().sum(1) / 510 for row in scores]
    assert torch.equal(ecdf(scores), torch.stack(counted))


def test_ecdf_values_with_ties_and_constant_rows_are_exact() -> None:
    scores = torch.tensor([[2.0, 1.0, 2.0, 5.0]])
    assert ecdf(scores).tolist() == [[0.75, 0.25, 0.75, 1.0]]
    assert ecdf(scores, "mid").tolist() == [[0.5, 0.125, 0.5, 0.875]]
    assert ecdf(torch.full((1, 6), 3.0)).tolist() == [[1.0] * 6]  # scores of a collapsed encoder
    assert ecdf(torch.full((1, 6), 3.0), "mid").tolist() == [[0.5] * 6]
    assert ecdf(torch.tensor([[7.0]])).item() == 1


def test_ecdf_is_invariant_under_a_monotone_map() -> None:
    scores = torch.randn(8, 33, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ecdf(scores), ecdf((scores / 0.1).exp()))


def test_ecdf_has_no_gradient_and_accepts_any_memory_layout() -> None:
    scores = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert not ecdf(scores).requires_grad
    assert torch.equal(ecdf(scores.T), ecdf(scores.T.contiguous()))
    assert ecdf(torch.empty(3, 0)).shape == (3, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_ecdf_keeps_the_dtype_of_the_scores(dtype: torch.dtype) -> None:
    assert ecdf(torch.tensor([[3, 1, 2, 4]], dtype=dtype)).tolist() == [[0.75, 0.25, 0.5, 1.0]]
    assert ecdf(torch.zeros(1, 2, dtype=dtype)).dtype == dtype
