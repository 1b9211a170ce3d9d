"""Matrix factorisation and LightGCN: a user's and an item's embedding, scored by their inner product.

Users and items are nodes of one numbering, item i being node U + i, and share one table E of N = U + I rows:
one gather, one scatter and one fused optimiser step serve both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from workloads.scores import dots, node_scores
from workloads.seeding import generator

Choose: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Function from the final embeddings (N, d), without gradient, and drawn nodes to the nodes of a step."""

Map: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class MatrixFactorisation(nn.Module):
    """x_ui = w_u · h_i (thesis algorithm 1), with W and H stacked in the rows of ``embedding`` (N, d)."""

    def __init__(self, initial: torch.Tensor) -> None:
        """From E^(0), (N, d), float32."""
        super().__init__()
        self.embedding = nn.Parameter(initial)

    def embeddings(self) -> torch.Tensor:
        """Final embeddings of all nodes, (N, d), float32."""
        return self.embedding

    def forward(
        self,
        nodes: torch.Tensor,
        choose: Choose | None = None,
        of_item: int = 0,
        shared: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores of user ``nodes[0]`` with item ``nodes[1]``, ``nodes[2]``, ...

        Args:
            nodes: (1 + n, B), node numbers.
            choose: chooses among the drawn nodes by the embeddings that the scores are computed from.
            of_item: number of rows from ``nodes[2]`` on that are other users, scored with item ``nodes[1]``.
            shared: further items (m,), as nodes, scored with every user, and a mask (m, B) of scores to set to -inf.

        Returns:
            Scores (n, B), with ``shared`` (n + m, B), and the nodes (1 + n, B) of the first n scores.
        """
        table = self.embeddings()
        if shared is not None:
            items, masked = shared
            block = table.index_select(0, items) @ table.index_select(0, nodes[0]).T
            return torch.cat([node_scores(table, nodes), block.masked_fill(masked, -torch.inf)]), nodes
        if choose is not None:
            nodes = choose(table.detach(), nodes)
        if not of_item:
            return node_scores(table, nodes), nodes
        rows = table.index_select(0, nodes.flatten()).view(*nodes.shape, table.shape[1])
        users = dots(torch.cat([rows[:2], rows[2 + of_item :]]))
        others = dots(rows[1 : 2 + of_item])
        return torch.cat([users[:1], others, users[1:]]), nodes


def xavier(n_users: int, n_items: int, dim: int, seed: int) -> torch.Tensor:
    """E^(0): the users' and the items' tables, each Glorot-normal as in the source's code; (N, dim), on the host.

    Drawn on the host so that every device starts from the same numbers.
    """
    source = generator(seed, "init")
    tables = (torch.empty(n, dim) for n in (n_users, n_items))
    return torch.cat([nn.init.xavier_normal_(table, generator=source) for table in tables])


def normal(n_nodes: int, dim: int, deviation: float, seed: int) -> torch.Tensor:
    """E^(0) of thesis algorithm 1: all entries from N(0, deviation^2), (n_nodes, dim), on the host."""
    return torch.randn(n_nodes, dim, generator=generator(seed, "init")) * deviation


MAX_EDGES = 2**31 - 1
"""Most edges of a graph, two per interaction: their numbers are int32."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The normalised adjacency D^-1/2 A D^-1/2 of the interactions, without self loops, symmetric, in CSR.

    ``indptr`` (N + 1,) and ``indices`` (nnz,) are int32, ``weights`` (nnz,) float32.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    weights: torch.Tensor

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        """(N, N) @ (N, d). An isolated node gets a zero row."""
        # The weighted bag sum is a CSR product, on a CPU twice as fast as that of torch.sparse (measured).
        return functional.embedding_bag(
            self.indices,
            x,
            self.indptr,
            mode="sum",
            per_sample_weights=self.weights.to(x.dtype),
            include_last_offset=True,
        )


def normalised_graph(users: torch.Tensor, items: torch.Tensor, n_nodes: int) -> Graph:
    """The graph of the given edges between user nodes and item nodes, (n,) each, every edge once.

    Raises:
        ValueError: there are more than :data:`MAX_EDGES` in both directions.
    """
    if 2 * len(users) > MAX_EDGES:
        raise ValueError(f"a graph holds at most {MAX_EDGES // 2:,} interactions; these are {len(users):,}")
    rows = torch.cat([users, items])
    columns = torch.cat([items, users])
    degrees = torch.bincount(rows, minlength=n_nodes)
    order = torch.argsort(rows * n_nodes + columns)
    rows = rows[order]
    columns = columns[order]
    indptr = functional.pad(degrees.cumsum(0), (1, 0))
    weights = (degrees[rows] * degrees[columns]).float().rsqrt()
    return Graph(indptr.int(), columns.int(), weights)


class LightGCN(MatrixFactorisation):
    """E = mean of E^(0), ..., E^(L) with E^(l+1) = D^-1/2 A D^-1/2 E^(l), (He et al., SIGIR 2020, eqs. 3-8).

    Thesis 4.5.1.2, with one layer (E-LGCN). An isolated node keeps E^(0) / (L + 1).
    """

    def __init__(self, initial: torch.Tensor, graph: Graph, layers: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(initial)
        self.graph = graph
        self.layers = layers
        self.dtype = dtype

    def embeddings(self) -> torch.Tensor:
        # Propagation is a polynomial of a symmetric matrix, hence its own transpose.
        return linear(self.embedding, self._propagate, self._propagate)

    def _propagate(self, x: torch.Tensor) -> torch.Tensor:
        return propagate(x, [self.graph] * self.layers, self.dtype)


def propagate(x: torch.Tensor, graphs: Sequence[Graph], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Mean of layers 0..L of ``x`` (N, d), float32, layer l by ``graphs[l - 1]``; the products are of ``dtype``."""
    total = x.clone()
    layer = x.to(dtype)
    for graph in graphs:
        layer = graph @ layer
        total += layer
    return total.div_(len(graphs) + 1)


def linear(x: torch.Tensor, forward: Map, transposed: Map) -> torch.Tensor:
    """``forward(x)``, differentiated by its transpose."""
    mapped: torch.Tensor = _Linear.apply(x, forward, transposed)
    return mapped


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Map, transposed: Map) -> torch.Tensor:
        ctx.transposed = transposed
        return forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.transposed(gradient), None, None
