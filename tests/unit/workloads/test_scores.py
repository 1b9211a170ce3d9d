"""Scores of embeddings in all forms compared with plain algebra, and their gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from workloads import scores
from workloads.ecdf import ecdf
from workloads.losses.contrastive import infonce_loss


@pytest.mark.parametrize("cached", [0, 2**21])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_node_scores_and_gradient_match_inner_products(n: int, cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once and in blocks of a few columns with a smaller last one; some nodes occur several times."""
    monkeypatch.setattr(scores, "_CACHED", cached)
    monkeypatch.setattr(scores, "_BLOCK", 3 * (1 + n) * 4)
    source = torch.Generator().manual_seed(n)
    table = torch.randn(6, 4, dtype=torch.float64, generator=source, requires_grad=True)
    nodes = torch.randint(0, 6, (1 + n, 7), generator=source)
    expected = (table[nodes[1:]] * table[nodes[0]]).sum(-1)
    torch.testing.assert_close(scores.node_scores(table, nodes), expected)
    assert torch.autograd.gradcheck(lambda rows: scores.node_scores(rows, nodes), table)


def test_dots_of_the_first_row_with_all_others_match_einsum() -> None:
    rows = torch.randn(4, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    torch.testing.assert_close(scores.dots(rows), torch.einsum("bd,nbd->nb", rows[0], rows[1:]))
    assert torch.autograd.gradcheck(scores.dots, rows)


def _nt_xent(first: torch.Tensor, second: torch.Tensor, temperature: float) -> torch.Tensor:
    """SimCLR's loss for two views of each image, which are normalised here."""
    views = functional.normalize(torch.cat([first, second]), dim=1)
    positive, negatives = scores.two_view_scores(views, torch.arange(len(views)))
    return infonce_loss(positive, negatives, temperature).mean()


def test_two_view_scores_match_the_definition() -> None:
    """For each anchor i, the sum over all k != i has 2B - 1 terms, the positive among them (E-2.4)."""
    views = torch.randn(10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    table = (views @ views.T).tolist()
    losses = []
    for i in range(10):
        terms = [table[i][k] for k in range(10) if k != i]
        assert len(terms) == 9
        losses.append(-table[i][(i + 5) % 10] + torch.tensor(terms, dtype=torch.float64).logsumexp(0).item())
    positive, negatives = scores.two_view_scores(views, torch.arange(10))
    assert negatives.shape == (10, 8)
    torch.testing.assert_close(infonce_loss(positive, negatives), torch.tensor(losses, dtype=torch.float64))


def test_two_view_scores_of_some_anchors_equal_rows_of_all_scores() -> None:
    views = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    anchors = torch.tensor([1, 2, 5, 6])
    for whole, part in zip(scores.two_view_scores(views, torch.arange(8)), scores.two_view_scores(views, anchors)):
        torch.testing.assert_close(part, whole[anchors])
    assert torch.autograd.gradcheck(lambda rows: scores.two_view_scores(rows, anchors), views)


@pytest.mark.parametrize(
    ("first", "second", "temperature", "expected"),
    [
        ([[0.1235, 0.9937, 0.8275, -0.777]], [[0.3503, 2.068, 0.4876, 0.4974]], 0.5, 0.0),
        (
            [[-0.0931, -0.2637, 0.0822, 1.0766], [1.6099, 1.5612, 0.8012, 0.3544], [0.8855, 0.5593, -1.0673, -1.5851]],
            None, 0.3, 0.11908137248038712,
        ),
        (
            [[0.625, 0.0607, 1.506, 1.0466], [0.5965, -0.3691, 0.027, -0.6111], [0.1332, 1.1385, -2.357, 0.4853]],
            [[-0.1957, -0.4475, -0.9861, 2.3959], [-0.2892, -0.7105, -0.2911, -0.8431],
             [0.756, 1.5661, -0.4817, -0.9618]],
            0.01, 4.153958586340129,
        ),
    ],
)  # fmt: skip
def test_nt_xent_matches_expected_values(
    first: list[list[float]], second: list[list[float]] | None, temperature: float, expected: float
) -> None:
    """The cases: one image, which has no negatives; two equal views; a temperature near 0."""
    one = torch.tensor(first, dtype=torch.float64)
    other = one if second is None else torch.tensor(second, dtype=torch.float64)
    assert _nt_xent(one, other, temperature).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("count", [16, 80])
def test_ecdf_of_batch_negatives_equals_the_cubic_comparison(count: int) -> None:
    """The reference is the N³ comparison of the definition (6.30) in the authors' code; some images occur twice."""
    views = torch.randn(2 * count, 8, generator=torch.Generator().manual_seed(3))
    views[5] = views[6]
    _, negatives = scores.two_view_scores(functional.normalize(views, dim=1), torch.arange(2 * count))
    cube = negatives.unsqueeze(1) <= negatives.unsqueeze(2)
    assert torch.equal(ecdf(negatives), cube.sum(2) / negatives.shape[1])
