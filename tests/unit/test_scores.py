"""Scores of embeddings in each of their forms against plain algebra, and their gradients."""

from __future__ import annotations

import pytest
import torch

from workloads import scores


@pytest.mark.parametrize("cached", [0, 2**21])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_inner_products_and_their_gradient(n: int, cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole and in blocks of a few columns, the last of them smaller; nodes occur several times."""
    monkeypatch.setattr(scores, "_CACHED", cached)
    monkeypatch.setattr(scores, "_BLOCK", 3 * (1 + n) * 4)
    source = torch.Generator().manual_seed(n)
    table = torch.randn(6, 4, dtype=torch.float64, generator=source, requires_grad=True)
    nodes = torch.randint(0, 6, (1 + n, 7), generator=source)
    expected = (table[nodes[1:]] * table[nodes[0]]).sum(-1)
    torch.testing.assert_close(scores.node_scores(table, nodes), expected)
    assert torch.autograd.gradcheck(lambda rows: scores.node_scores(rows, nodes), table)


def test_the_first_row_with_each_of_the_others() -> None:
    rows = torch.randn(4, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    torch.testing.assert_close(scores.dots(rows), torch.einsum("bd,nbd->nb", rows[0], rows[1:]))
    assert torch.autograd.gradcheck(scores.dots, rows)
