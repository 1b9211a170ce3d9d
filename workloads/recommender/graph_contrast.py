"""The auxiliary term of graph contrastive learning on LightGCN: InfoNCE between two views of the batch's nodes."""

from __future__ import annotations

import torch
from torch.nn import functional

from workloads.clustering import kmeans
from workloads.conditional_params import required
from workloads.losses.contrastive import view_infonce_loss
from workloads.recommender.batches import Batch
from workloads.recommender.contrasts import CONTRASTS, size_error
from workloads.recommender.dataset import RecommenderData
from workloads.recommender.model import LightGCN
from workloads.recommender.params import Params
from workloads.seeding import derive


class GraphContrast:
    """The weighted term of a method, for the batch's distinct users and, separately, its distinct items.

    A node's negatives are the other distinct nodes of its kind in the whole batch, over all workers and micro-batches;
    scores are cosines (E-GCL).
    """

    def __init__(self, params: Params, data: RecommenderData, model: LightGCN, seed: int) -> None:
        """Raises ValueError if there are fewer users or items than ``clusters`` or ``svd_rank``."""
        if message := size_error(params.model_dump(), data.n_users, data.n_items):
            raise ValueError(message)
        self._params = params
        self._n_users = data.n_users
        self._seed = seed
        self._temperature = required(params.contrast_temperature)
        self._weight = required(params.contrast_weight)
        self.views = CONTRASTS[required(params.contrast)].load()(params, data, model)
        self.prototypes: list[tuple[torch.Tensor, torch.Tensor]] = []

    @torch.no_grad()
    def begin(self, table: torch.Tensor, epoch: int) -> None:
        """Cluster the users and the items by E^(0) (N, d) for an epoch; nothing but for NCL. Equal on all workers."""
        params = self._params
        self.prototypes = []
        if params.clusters is None or params.prototype_warmup is None or epoch <= params.prototype_warmup:
            return
        for side, points in enumerate((table[: self._n_users], table[self._n_users :])):
            key = derive(self._seed, "clusters", epoch, side)
            self.prototypes.append(kmeans(points, params.clusters, key))

    def __call__(self, table: torch.Tensor, batch: Batch) -> torch.Tensor:
        """This part's share of the term of the whole batch, a scalar.

        Args:
            table: E^(0), (N, d), with gradient.
            batch: a part of a global batch; the sum over its parts is the term.
        """
        nodes, repeated, users = distinct(batch.users, batch.items, self._n_users, len(table))
        anchors, candidates = (view.index_select(0, nodes) for view in self.views(table, batch))
        own = table.index_select(0, nodes) if self.prototypes else table
        total = table.new_zeros(())
        item_weight = 1 if self._params.item_weight is None else self._params.item_weight
        for side, (first, last) in enumerate(((0, users), (users, len(nodes)))):
            all_rows = slice(first, last)
            start, end = ((last - first) * part // batch.parts for part in (batch.part, batch.part + 1))
            mine = slice(first + start, first + end)
            rows = torch.arange(start, end, device=nodes.device)
            copies = None if repeated is None else repeated[all_rows]
            mean = _mean(nodes[all_rows], copies)[start:end]
            weight = self._weight * (item_weight if side else 1)
            term = view_infonce_loss(anchors[mine], candidates[all_rows], rows, mean, self._temperature, copies)
            total = total + weight * term
            if self.prototypes:
                centres, members = self.prototypes[side]
                clusters = members.index_select(0, nodes[mine] - side * self._n_users)
                term = view_infonce_loss(own[mine], centres, clusters, mean, self._temperature)
                total = total + required(self._params.prototype_weight) * term
        return total


def _mean(nodes: torch.Tensor, repeated: torch.Tensor | None) -> torch.Tensor:
    """Weights (n,) of a mean over the distinct nodes."""
    if repeated is None:
        return torch.full(nodes.shape, 1 / max(1, len(nodes)), device=nodes.device)
    return (~repeated).float() / (~repeated).sum()


def distinct(
    users: torch.Tensor, items: torch.Tensor, n_users: int, n_nodes: int
) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """The distinct ones of a batch's users and items, (n,) each, as nodes.

    On a GPU, where their number is not known without waiting, they stay 2 n, some of them repeated.

    Returns:
        The nodes, ascending, users first; a mask of the repeated ones, or None; and the number of users among them.
    """
    if not users.is_cuda:
        there = users.new_zeros(n_nodes, dtype=torch.bool)
        there[users] = True
        there[items] = True
        return there.nonzero().squeeze(1), None, int(there[:n_users].sum())
    ordered = torch.cat([users, items]).sort().values
    return ordered, functional.pad(ordered[1:] == ordered[:-1], (1, 0)), len(users)
