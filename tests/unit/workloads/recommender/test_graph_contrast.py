"""Graph contrastive learning, compared with dense float64 algebra and autograd, and its random draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from workloads.contract import Runtime
from workloads.recommender import graph_views
from workloads.recommender.batches import Batch, batches
from workloads.recommender.graph_contrast import distinct
from workloads.recommender.model import Graph, normalised_graph
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender

pytestmark = pytest.mark.usefixtures("one_thread")
RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=3, epochs=2)


def build(**params: Any) -> tuple[Recommender, Batch]:
    """A workload of two layers, and its first batch."""
    values = {"backbone": "lightgcn", "layers": 2, "dim": 4, "batch_size": 64, **params}
    workload = Recommender(Params(**values), RUNTIME)
    return workload, next(batches(workload.data, workload.draws, 64, RUNTIME, 1))


def dense(graph: Graph) -> torch.Tensor:
    """The graph as a dense float64 matrix (N, N)."""
    n = len(graph.indptr) - 1
    return (graph @ torch.eye(n)).double()


def normalised(adjacency: torch.Tensor) -> torch.Tensor:
    """D^-1/2 A D^-1/2 of a dense 0/1 matrix."""
    scale = adjacency.sum(1).clamp_min(1) ** -0.5
    return scale[:, None] * adjacency * scale


def slow_term(anchors: torch.Tensor, candidates: torch.Tensor, nodes: list[int], temperature: float) -> torch.Tensor:
    """Mean InfoNCE of some nodes, with the matrix of all cosines."""
    cosines = functional.cosine_similarity(anchors[nodes].unsqueeze(1), candidates[nodes].unsqueeze(0), dim=2)
    return -(cosines / temperature).softmax(1).diagonal().log().mean()


def check(
    workload: Recommender, batch: Batch, views: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Compare the term and its gradient with those of views that autograd differentiates."""
    assert workload.contrast is not None
    table = workload.model.embedding
    term = workload.contrast(table, batch)
    (gradient,) = torch.autograd.grad(term, table)
    exact = table.detach().double().requires_grad_()
    anchors, candidates = views(exact)
    params = workload.params
    assert params.contrast_weight is not None
    assert params.contrast_temperature is not None
    expected = torch.zeros((), dtype=torch.float64)
    for side, nodes in enumerate((batch.users, batch.items)):
        weight = params.contrast_weight * ((params.item_weight or 1) if side else 1)
        chosen = sorted(set(nodes.tolist()))
        expected = expected + weight * slow_term(anchors, candidates, chosen, params.contrast_temperature)
    (slow,) = torch.autograd.grad(expected, exact)
    assert term.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient.double(), slow, rtol=1e-3, atol=1e-6 * slow.abs().max().item() + 1e-9)


@pytest.mark.parametrize("augmentation", ["edge_drop", "node_drop", "random_walk"])
def test_sgl_term_and_gradient_match_dense_reference(augmentation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference builds its subgraphs from the recorded masks."""
    masks: list[torch.Tensor] = []
    original = graph_views.Edges.subgraph

    def recorded(self: graph_views.Edges, left: torch.Tensor) -> Graph:
        masks.append(left)
        return original(self, left)

    monkeypatch.setattr(graph_views.Edges, "subgraph", recorded)
    workload, batch = build(contrast="sgl", augmentation=augmentation, drop_ratio=0.3, contrast_temperature=0.5)
    n = workload.data.n_users + workload.data.n_items
    graph = workload.data.graph
    rows = torch.repeat_interleave(torch.arange(n), graph.indptr.diff().long())

    def views(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        empty = torch.zeros(n, n, dtype=torch.float64)
        one = torch.ones((), dtype=torch.float64)
        matrices = [normalised(empty.index_put((rows[left], graph.indices[left].long()), one)) for left in masks]
        layers = [matrices[:2], matrices[2:]] if augmentation == "random_walk" else [[m, m] for m in matrices]
        results = [(table + first @ table + second @ (first @ table)) / 3 for first, second in layers]
        return results[0], results[1]

    check(workload, batch, views)
    assert len(masks) == (4 if augmentation == "random_walk" else 2)
    share = torch.stack(masks).float().mean().item()
    assert share == pytest.approx(0.49 if augmentation == "node_drop" else 0.7, abs=0.04)
    assert not torch.equal(masks[0], masks[-1])
    other = replace(batch, key=batch.key + 1)
    assert workload.contrast is not None
    workload.contrast(workload.model.embedding, other)
    assert len(masks) == 2 * (4 if augmentation == "random_walk" else 2)


def test_a_subgraph_is_symmetric_and_whole_at_ratio_0() -> None:
    users = torch.tensor([0, 0, 1, 2, 2])
    items = torch.tensor([3, 4, 3, 4, 5])
    graph = normalised_graph(users, items, 6)
    edges = graph_views.Edges(graph)
    torch.testing.assert_close(edges.subgraph(edges.without_edges(1, 0.0)).weights, graph.weights)
    for keep in (edges.without_edges, edges.without_nodes):
        matrices = [dense(edges.subgraph(keep(key, 0.5))) for key in range(20)]
        assert all(torch.equal(matrix, matrix.T) for matrix in matrices)
        assert len({tuple(matrix.flatten().tolist()) for matrix in matrices}) > 5


def test_simgcl_adds_noise_of_the_given_length_in_the_orthant_of_the_layer() -> None:
    workload, batch = build(contrast="simgcl", noise=0.05, layers=1, contrast_temperature=0.5)
    assert workload.contrast is not None
    layer = dense(workload.data.graph)
    table = workload.model.embedding
    clean = layer @ table.detach().double()
    views = [view.double() for view in workload.contrast.views(table, batch)]
    for view in views:
        noise = (view - clean).detach()
        filled = clean.abs().sum(1) > 0
        torch.testing.assert_close(noise.norm(dim=1)[filled], torch.full((int(filled.sum()),), 0.05).double())
        assert (noise.sign() == clean.sign()).float().mean() > 0.999
    constants = [(view - clean).detach() for view in views]
    check(workload, batch, lambda exact: (layer @ exact + constants[0], layer @ exact + constants[1]))


def test_simgcl_of_two_layers_matches_reference_and_noise_varies_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, batch = build(contrast="simgcl", noise=0.0, contrast_temperature=0.5)
    layer = dense(workload.data.graph)
    mean = (layer + layer @ layer) / 2
    check(workload, batch, lambda exact: (mean @ exact, mean @ exact))
    workload, batch = build(contrast="simgcl", noise=0.1)
    assert workload.contrast is not None
    drawn: list[torch.Tensor] = []
    rand = torch.rand
    with monkeypatch.context() as patch:
        patch.setattr(torch, "rand", lambda *shape, **kind: drawn.append(rand(*shape, **kind)) or drawn[-1])
        first, second = workload.contrast.views(workload.model.embedding, batch)
    for view, noises in ((first, drawn[:2]), (second, drawn[2:])):
        step, total = workload.model.embedding.detach().double(), torch.zeros(())
        for noise in noises:
            step = layer @ step
            step = step + 0.1 * step.sign() * functional.normalize(noise.double())
            total = total + step / 2
        torch.testing.assert_close(view.detach().double(), total, rtol=1e-4, atol=1e-6)
    again, _ = workload.contrast.views(workload.model.embedding, batch)
    later, _ = workload.contrast.views(workload.model.embedding, replace(batch, step=batch.step + 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, later)


def test_lightgcl_term_and_gradient_match_dense_svd() -> None:
    workload, batch = build(contrast="lightgcl", svd_rank=4, layers=3, contrast_temperature=0.5)
    n_users = workload.data.n_users
    step = dense(workload.data.graph)
    left, values, right = torch.linalg.svd(step[:n_users, n_users:])
    block = left[:, :4] @ torch.diag(values[:4]) @ right[:4]
    low_rank = torch.zeros_like(step)
    low_rank[:n_users, n_users:] = block
    low_rank[n_users:, :n_users] = block.T
    powers = [torch.linalg.matrix_power(step, layer) for layer in range(4)]
    eye = torch.eye(len(step), dtype=torch.float64)
    whole, view = sum(powers) / 4, (eye + low_rank @ sum(powers[:3])) / 4
    check(workload, batch, lambda exact: (whole @ exact, view @ exact))


def test_ncl_contrasts_structural_neighbours_and_prototypes() -> None:
    params = {"contrast": "ncl", "item_weight": 1.5, "layers": 1, "contrast_temperature": 0.5, "clusters": 5}
    workload, batch = build(**params, prototype_warmup=1)
    twice = torch.linalg.matrix_power(dense(workload.data.graph), 2)
    assert workload.contrast is not None
    workload.contrast.begin(workload.model.embedding, 1)
    check(workload, batch, lambda exact: (twice @ exact, exact))

    without, batch = build(**{**params, "item_weight": 0.0})
    assert without.contrast is not None
    without.contrast.begin(without.model.embedding, 1)
    nearly, _ = build(**{**params, "item_weight": 1e-12})
    assert nearly.contrast is not None
    nearly.contrast.begin(nearly.model.embedding, 1)
    terms = [one.contrast(one.model.embedding, batch).item() for one in (without, nearly) if one.contrast]
    assert terms[0] == pytest.approx(terms[1], rel=1e-6)

    workload, batch = build(**params, prototype_warmup=1, contrast_weight=0.0, prototype_weight=0.3)
    assert workload.contrast is not None
    table = workload.model.embedding
    workload.contrast.begin(table, 2)
    exact = table.detach().double().requires_grad_()
    expected = torch.zeros((), dtype=torch.float64)
    for side, nodes in enumerate((batch.users, batch.items)):
        centres, members = workload.contrast.prototypes[side]
        offset = side * workload.data.n_users
        for node in (chosen := sorted(set(nodes.tolist()))):
            cosines = functional.cosine_similarity(exact[node].unsqueeze(0), centres.double()) / 0.5
            expected = expected + 0.3 * (cosines.logsumexp(0) - cosines[members[node - offset]]) / len(chosen)
    term = workload.contrast(table, batch)
    assert term.item() == pytest.approx(expected.item(), rel=1e-5)
    gradients = torch.autograd.grad(term, table)[0].double(), torch.autograd.grad(expected, exact)[0]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("contrast", ["sgl", "simgcl", "lightgcl", "ncl"])
def test_contrast_terms_of_batch_parts_sum_to_that_of_the_batch(contrast: str) -> None:
    workload, batch = build(contrast=contrast)
    assert workload.contrast is not None
    workload.contrast.begin(workload.model.embedding, 30)
    whole = workload.contrast(workload.model.embedding, batch)
    parts = [workload.contrast(workload.model.embedding, part) for part in replace(batch, part=1, parts=2).split(3)]
    parts += [workload.contrast(workload.model.embedding, part) for part in replace(batch, parts=2).split(2)]
    assert torch.stack(parts).sum().item() == pytest.approx(whole.item(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("contrast", ["sgl", "simgcl", "lightgcl", "ncl"])
def test_training_with_default_contrast_weight_exceeds_the_ndcg_bound(contrast: str) -> None:
    """With too large a weight the embeddings only spread: NDCG@20 stays at .02. Without the term it is .2."""
    workload = Recommender(Params(backbone="lightgcn", contrast=contrast), RUNTIME)
    for epoch in range(1, 13):
        workload.train_epoch(epoch)
    assert workload.evaluate("validation").metrics["ndcg_at_20"] > 0.15


def test_distinct_nodes_on_gpu_equal_those_on_cpu_with_repeats_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    users, items = torch.tensor([2, 0, 2, 2]), torch.tensor([5, 5, 4, 7])
    nodes, repeated, count = distinct(users, items, 3, 8)
    assert (nodes.tolist(), repeated, count) == ([0, 2, 4, 5, 7], None, 2)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    padded, repeated, count = distinct(users, items, 3, 8)
    assert repeated is not None
    assert padded[~repeated].tolist() == nodes.tolist()
    assert padded.tolist() == [0, 2, 2, 2, 4, 5, 5, 7]
    assert count == 4


def test_invalid_contrast_parameters_are_refused() -> None:
    with pytest.raises(ValidationError, match="contrast=sgl needs the graph of backbone=lightgcn, not backbone=mf"):
        Params(contrast="sgl")
    with pytest.raises(ValidationError, match=r"noise=0\.2 has no effect with contrast=sgl"):
        Params(contrast="sgl", backbone="lightgcn", noise=0.2)
    with pytest.raises(ValidationError, match=r"contrast_weight=0\.1 has no effect with contrast=null"):
        Params(backbone="lightgcn", contrast_weight=0.1)
    with pytest.raises(ValidationError, match="'sgl', 'simgcl', 'lightgcl' or 'ncl'"):
        Params(backbone="lightgcn", contrast="gcl")
    with pytest.raises(ValueError, match="clusters=401 is more than the 600 users or 400 items"):
        build(contrast="ncl", clusters=401)
    with pytest.raises(ValueError, match="svd_rank=401 is more than the 600 users or 400 items"):
        build(contrast="lightgcl", svd_rank=401)
    for own, message in (
        ({"contrast": "ncl", "clusters": 401}, "clusters=401"),
        ({"contrast": "lightgcl", "svd_rank": 401}, "svd_rank=401"),
    ):
        with pytest.raises(ValueError, match=f"{message} is more than the 600 users or 400 items"):
            Params(backbone="lightgcn", **own).check_data(Path())
    Params(backbone="lightgcn", contrast="ncl", clusters=400).check_data(Path())
