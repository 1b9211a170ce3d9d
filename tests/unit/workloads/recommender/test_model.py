"""The two backbones and their optimiser, compared with dense float64 algebra and torch.optim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from workloads.recommender.adam import Adam
from workloads.recommender.model import LightGCN, MatrixFactorisation, normalised_graph, xavier


def dense_propagation(seen: np.ndarray[Any, Any], embedding: np.ndarray[Any, Any], layers: int) -> Any:
    """LightGCN in float64 with full matrices, and the matrix that maps E^(0) to E."""
    n_users, n_items = seen.shape
    adjacency = np.block([[np.zeros((n_users, n_users)), seen], [seen.T, np.zeros((n_items, n_items))]])
    degrees = adjacency.sum(1)
    scale = np.where(degrees > 0, degrees, np.inf) ** -0.5
    step = scale[:, None] * adjacency * scale
    mean = sum(np.linalg.matrix_power(step, layer) for layer in range(layers + 1)) / (layers + 1)
    return mean @ embedding, mean


@pytest.mark.parametrize("layers", [1, 3])
def test_lightgcn_embeddings_and_gradient_match_dense_formula(layers: int) -> None:
    rng = np.random.default_rng(layers)
    seen = rng.random((7, 5)) < 0.4
    seen[2], seen[:, 3] = False, False
    users, items = (torch.from_numpy(side) for side in np.nonzero(seen))
    initial = torch.from_numpy(rng.normal(size=(12, 4)).astype(np.float32))
    model = LightGCN(initial.clone(), normalised_graph(users, items + 7, 12), layers)
    expected, mean = dense_propagation(seen.astype(float), initial.double().numpy(), layers)
    np.testing.assert_allclose(model.embeddings().detach(), expected, atol=1e-6)
    np.testing.assert_allclose(model.embeddings()[2].detach(), initial[2] / (layers + 1), atol=1e-6)

    # The gradient with respect to E^(0) is the transposed map of the one with respect to E.
    outer = torch.from_numpy(rng.normal(size=(12, 4)).astype(np.float32))
    torch.autograd.backward((model.embeddings() * outer).sum())
    assert model.embedding.grad is not None
    np.testing.assert_allclose(model.embedding.grad, mean.T @ outer.double().numpy(), atol=1e-6)


def test_a_graph_whose_edges_do_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.recommender.model.MAX_EDGES", 5)
    users = torch.tensor([0, 0, 1])
    items = torch.tensor([2, 3, 3])
    normalised_graph(users[:2], items[:2], 4)
    with pytest.raises(ValueError, match="at most 2 interactions; these are 3"):
        normalised_graph(users, items, 4)


def test_scores_are_inner_products() -> None:
    model = MatrixFactorisation(torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    nodes = torch.tensor([[0, 1, 1, 3], [4, 5, 5, 8], [8, 4, 4, 4]])
    (positive, negative), _ = model(nodes)
    rows = model.embedding.tolist()
    for column, (user, item, other) in enumerate(nodes.T.tolist()):
        assert positive[column].item() == pytest.approx(sum(a * b for a, b in zip(rows[user], rows[item])))
        assert negative[column].item() == pytest.approx(sum(a * b for a, b in zip(rows[user], rows[other])))
    assert torch.autograd.gradcheck(
        lambda table: torch.func.functional_call(model, {"embedding": table}, (nodes,))[0], model.embedding
    )


def test_a_group_of_users_is_scored_with_the_item() -> None:
    model = MatrixFactorisation(torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    nodes = torch.tensor([[0, 1], [4, 5], [2, 3], [1, 0], [8, 6]])  # user, item, two other users, negative
    scores, _ = model(nodes, None, 2)
    rows = model.embedding.detach()
    expected = [(0, 1), (1, 2), (1, 3), (0, 4)]
    for score, (one, other) in zip(scores, expected):
        torch.testing.assert_close(score, (rows[nodes[one]] * rows[nodes[other]]).sum(1))


def test_negative_choice_receives_the_embeddings_that_are_scored() -> None:
    rng = torch.Generator().manual_seed(1)
    graph = normalised_graph(torch.tensor([0, 1]), torch.tensor([3, 4]), 6)
    model = LightGCN(torch.randn(6, 4, generator=rng), graph, 1)
    seen = []

    def choose(table: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        seen.append(table)
        return nodes[[0, 1, 3]]

    scores, nodes = model(torch.tensor([[0], [3], [4], [5]]), choose)
    assert nodes.flatten().tolist() == [0, 3, 5]
    assert not seen[0].requires_grad
    assert torch.equal(seen[0], model.embeddings())
    torch.testing.assert_close(scores[1], seen[0][[0]] @ seen[0][5])


def test_embedding_tables_are_initialised_with_glorot_normal() -> None:
    table = xavier(3000, 1000, 64, seed=1)
    assert table[:3000].std().item() == pytest.approx((2 / 3064) ** 0.5, rel=0.02)
    assert table[3000:].std().item() == pytest.approx((2 / 1064) ** 0.5, rel=0.02)


def test_adam_updates_equal_those_of_torch_adam() -> None:
    source = torch.Generator().manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(20, 3, generator=source))
    theirs = torch.nn.Parameter(ours.detach().clone())
    adam, reference = Adam(ours, 0.01), torch.optim.Adam([theirs], weight_decay=0.01, fused=True)
    for lr in (0.1, 0.1, 0.03, 0.01):
        gradient = torch.randn(20, 3, generator=source)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        adam.update(lr)
        reference.param_groups[0]["lr"] = lr
        reference.step()
    assert torch.equal(ours, theirs)
    assert ours.grad is None
