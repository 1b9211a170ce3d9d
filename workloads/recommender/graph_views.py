"""The views of graph contrastive learning, which the rows of ``CONTRASTS`` name.

A view is a linear map of the table E^(0) (N, d), plus a constant for SimGCL. It is applied without autograd and
differentiated by its transpose. Random draws are pure functions of the pass and, for SimGCL, of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch.nn import functional

from workloads.conditional_params import required
from workloads.recommender.batches import Batch
from workloads.recommender.dataset import RecommenderData
from workloads.recommender.model import Graph, LightGCN, linear, propagate
from workloads.recommender.params import Params
from workloads.sampling.negatives import random_bits
from workloads.seeding import derive, generator

Views: TypeAlias = Callable[[torch.Tensor, Batch], tuple[torch.Tensor, torch.Tensor]]
"""Function from E^(0) and a batch to two views of all nodes, (N, d) each: the anchors' and the candidates'."""


def sgl(params: Params, data: RecommenderData, model: LightGCN) -> Views:
    """SGL: propagation through two subgraphs, drawn for each pass over the data.

    With ``random_walk`` each layer has its own edges. The subgraphs are normalised by their own degrees.
    """
    edges = Edges(model.graph)
    augmentation = required(params.augmentation)
    ratio = required(params.drop_ratio)
    passes: dict[int, list[list[Graph]]] = {}

    def graphs(key: int) -> list[list[Graph]]:
        if key not in passes:
            passes.clear()
            layers = model.layers if augmentation == "random_walk" else 1
            keep = edges.without_nodes if augmentation == "node_drop" else edges.without_edges
            passes[key] = [
                [edges.subgraph(keep(derive(key, f"view {view}", layer), ratio)) for layer in range(layers)]
                * (model.layers // layers)
                for view in (1, 2)
            ]
        return passes[key]

    def views(table: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = (through(table, chosen, model.dtype) for chosen in graphs(batch.key))
        return first, second

    return views


def simgcl(params: Params, data: RecommenderData, model: LightGCN) -> Views:
    """SimGCL: the mean of layers 1 to L, each with noise of length ``noise`` in the orthant of its embedding."""
    noise = required(params.noise)

    def noisy(layer: torch.Tensor, source: torch.Generator) -> torch.Tensor:
        total = torch.zeros_like(layer)
        for _ in range(model.layers):
            layer = (model.graph @ layer.to(model.dtype)).float()
            drawn = torch.rand(layer.shape, generator=source, device=layer.device)
            layer += layer.sign() * functional.normalize(drawn) * noise
            total += layer
        return total / model.layers

    def clean(x: torch.Tensor) -> torch.Tensor:
        return (propagate(x, [model.graph] * model.layers, model.dtype) * (model.layers + 1) - x) / model.layers

    def views(table: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        source = generator(batch.key, "noise", batch.step, device=table.device)
        mean = linear(table, clean, clean)
        # The noise is a constant: both views have the gradient of the mean without it.
        with torch.no_grad():
            first, second = (noisy(table, source) - mean for _ in range(2))
        return mean + first, mean + second

    return views


def lightgcl(params: Params, data: RecommenderData, model: LightGCN) -> Views:
    """LightGCL: the embeddings, and their layers propagated through the truncated SVD of the graph instead."""
    layers = model.layers
    graphs = [model.graph] * layers
    low_rank = LowRank(model.graph, data.n_users, required(params.svd_rank))

    def approximate(x: torch.Tensor) -> torch.Tensor:
        """(E^(0) + Σ_{l < L} Â E^(l)) / (L + 1) with Â of low rank."""
        return (x + low_rank(propagate(x, graphs[1:], model.dtype)) * layers) / (layers + 1)

    def transposed(x: torch.Tensor) -> torch.Tensor:
        return (x + propagate(low_rank(x), graphs[1:], model.dtype) * layers) / (layers + 1)

    def views(table: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return through(table, graphs, model.dtype), linear(table, approximate, transposed)

    return views


def ncl(params: Params, data: RecommenderData, model: LightGCN) -> Views:
    """NCL's structural neighbours: E^(2), which gathers nodes of the same kind, and E^(0)."""

    def twice(x: torch.Tensor) -> torch.Tensor:
        return (model.graph @ (model.graph @ x.to(model.dtype))).float()

    def views(table: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return linear(table, twice, twice), table

    return views


class Edges:
    """The edges of a graph, for subgraphs that share its structure: what is dropped has the weight 0."""

    def __init__(self, graph: Graph) -> None:
        """``graph``: its rows are the users' first, then the items'."""
        device = graph.indices.device
        nodes = len(graph.indptr) - 1
        size = len(graph.indices)
        self.graph = graph
        self.rows = torch.repeat_interleave(
            torch.arange(nodes, device=device), graph.indptr.diff().long(), output_size=size
        )
        self.columns = graph.indices.long()
        self.count = size // 2
        # The users' rows list the edges by user and item, the items' rows the same edges by item and user.
        by_item = torch.argsort(self.columns[: self.count] * nodes + self.rows[: self.count])
        self.numbers = torch.cat([torch.arange(self.count, device=device), by_item])

    def without_edges(self, key: int, ratio: float) -> torch.Tensor:
        """Mask of the entries that are left when edges are dropped with probability ``ratio``, (nnz,)."""
        return self._left(key, self.count, ratio).index_select(0, self.numbers)

    def without_nodes(self, key: int, ratio: float) -> torch.Tensor:
        """Mask of the entries that are left when nodes are dropped with probability ``ratio``, (nnz,)."""
        left = self._left(key, len(self.graph.indptr) - 1, ratio)
        return left.index_select(0, self.rows) & left.index_select(0, self.columns)

    def subgraph(self, left: torch.Tensor) -> Graph:
        """The graph of the entries in a mask (nnz,), normalised by its own degrees."""
        kept = left.float()
        degrees = kept.new_zeros(len(self.graph.indptr) - 1).index_add_(0, self.rows, kept)
        scale = degrees.clamp_min(1).rsqrt()
        weights = kept * scale.index_select(0, self.rows) * scale.index_select(0, self.columns)
        return Graph(self.graph.indptr, self.graph.indices, weights)

    def _left(self, key: int, count: int, ratio: float) -> torch.Tensor:
        return random_bits(key, torch.arange(count, device=self.rows.device)) >= int(ratio * 2**32)


class LowRank:
    """The truncated SVD of the normalised adjacency, as a symmetric map of (N, d) like the graph itself."""

    STEPS = 30
    """Subspace iterations, a power of 61 of the singular values."""

    def __init__(self, graph: Graph, n_users: int, rank: int) -> None:
        """``rank``: q, the number of singular values that are kept, at most that of users and of items."""
        n_items = len(graph.indptr) - 1 - n_users
        size = min(rank + 11, n_users, n_items)
        device = graph.weights.device
        start = torch.randn(n_items, size, generator=generator(0, "svd"), dtype=torch.float64).to(device)
        users = start.new_zeros(n_users, size)
        for _ in range(self.STEPS):
            users = torch.linalg.qr(self._of_items(graph, start, n_users))[0]
            start = torch.linalg.qr(self._of_users(graph, users, n_items))[0]
        left, values, right = torch.linalg.svd(self._of_items(graph, start, n_users), full_matrices=False)
        self.users = (left[:, :rank] * values[:rank]).float()
        self.items = (start @ right[:rank].T).float()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(N, N) @ (N, d) of the matrix of rank 2 q."""
        users, items = torch.split(x, [len(self.users), len(self.items)])
        return torch.cat([self.users @ (self.items.T @ items), self.items @ (self.users.T @ users)])

    @staticmethod
    def _of_items(graph: Graph, items: torch.Tensor, n_users: int) -> torch.Tensor:
        return (graph @ functional.pad(items, (0, 0, n_users, 0)))[:n_users]

    @staticmethod
    def _of_users(graph: Graph, users: torch.Tensor, n_items: int) -> torch.Tensor:
        return (graph @ functional.pad(users, (0, 0, 0, n_items)))[len(users) :]


def through(x: torch.Tensor, graphs: Sequence[Graph], dtype: torch.dtype) -> torch.Tensor:
    """Mean of layers 0..L of ``x`` (N, d), where layer l is propagated by ``graphs[l - 1]``, each symmetric."""

    def transposed(x: torch.Tensor) -> torch.Tensor:
        total = x
        for graph in reversed(graphs):
            total = (graph @ total.to(dtype)).float().add_(x)
        return total.div_(len(graphs) + 1)

    return linear(x, lambda x: propagate(x, graphs, dtype), transposed)
