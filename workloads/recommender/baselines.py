"""Backbones that are fitted in closed form: popularity, item neighbours, EASE, implicit ALS.

The first epoch is the whole fit; for iALS an epoch is one alternation. Work is divided over the ranks in
blocks; each rank's blocks are summed with zeros, so that several workers give what one gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from workloads.conditional_params import required
from workloads.contract import Metrics, Runtime, State
from workloads.data.interactions.codes import encode
from workloads.distributed import reduce_sum
from workloads.memory import available_bytes
from workloads.metrics.ranking import top_k
from workloads.recommender.backbones import ease_memory_error
from workloads.recommender.credence import interaction_scores
from workloads.recommender.data_checks import rated_interactions
from workloads.recommender.dataset import History, RecommenderData
from workloads.recommender.model import Graph, normal
from workloads.recommender.params import Params
from workloads.recommender.scorers import Factors, FromHistory, Scorer
from workloads.sampling.lists import Lists

_BLOCK = 256
"""Items whose co-occurrences are counted at once."""

_GATHERED = {"cpu": 2**13, "cuda": 2**18}
"""Rows of embeddings gathered at once, at most, by the type of device: on a CPU as many as stay in its caches."""


@dataclass
class Baseline:
    """A model fitted in closed form, whose state is a few tensors of fixed shapes."""

    params: Params
    runtime: Runtime
    data: RecommenderData
    tensors: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.tensors = {name: tensor.to(self.runtime.device) for name, tensor in self._initial().items()}

    def _initial(self) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def train_epoch(self, epoch: int) -> Metrics:
        """Fit in the first epoch; the state holds the fit in later ones. A collective; equal on all workers."""
        if epoch == 1:
            self._fit()
        return {}

    def _fit(self) -> None:
        raise NotImplementedError

    def scorer(self, known: History) -> Scorer:
        """The scores of users whose items are ``known``."""
        raise NotImplementedError

    def served(self) -> Mapping[str, torch.Tensor]:
        """What the predictor needs to score, by name."""
        raise NotImplementedError

    def state_dict(self) -> State:
        """The fitted tensors, not copied."""
        return dict(self.tensors)


class Popularity(Baseline):
    """The score of an item is its number of training interactions."""

    def _initial(self) -> dict[str, torch.Tensor]:
        return {"popularity": torch.zeros(self.data.n_items)}

    def _fit(self) -> None:
        self.tensors["popularity"].copy_(self.data.popularity)

    def scorer(self, known: History) -> Factors:
        return Factors(**self.served()).only(known.numbers)

    def served(self) -> dict[str, torch.Tensor]:
        popularity = self.tensors["popularity"]
        return {"users": popularity.new_ones(self.data.n_users, 1), "items": popularity.unsqueeze(1)}


class ItemKNN(Baseline):
    """x_uj = Σ s_ij over those of u's items that are among the k most similar to j.

    s_ij = c_ij / (√(n_i n_j) + shrink), where c_ij users have both and n_i users have i: the cosine of the items'
    columns, shrunk where few users support it.
    """

    def _initial(self) -> dict[str, torch.Tensor]:
        shape = self.data.n_items, min(required(self.params.knn_items), self.data.n_items)
        return {"neighbours": torch.zeros(shape, dtype=torch.int64), "similarities": torch.zeros(shape)}

    def _fit(self) -> None:
        neighbours, similarities = (torch.zeros_like(tensor) for tensor in self.tensors.values())
        norms = self.data.popularity.float().sqrt()
        k = neighbours.shape[1]
        for first, counts in _co_occurrences(self.data, self.runtime):
            columns = torch.arange(first, first + len(counts), device=counts.device)
            # Items without interactions have no similar ones; all other products of norms are at least 1.
            similar = counts / ((norms[columns, None] * norms).clamp(min=1) + required(self.params.knn_shrink))
            similar[columns - first, columns] = 0
            neighbours[columns] = top_k(similar, k)
            similarities[columns] = similar.gather(1, neighbours[columns])
        for name, part in (("neighbours", neighbours), ("similarities", similarities)):
            self.tensors[name].copy_(reduce_sum(part))

    def scorer(self, known: History) -> FromHistory:
        neighbours, similarities = self.tensors.values()
        starts = torch.arange(0, neighbours.numel() + 1, neighbours.shape[1], device=neighbours.device)
        weights = Graph(starts, neighbours.flatten(), similarities.flatten())
        return FromHistory(known, self.data.n_items, lambda histories: (weights @ histories.T.contiguous()).T)

    def served(self) -> dict[str, torch.Tensor]:
        """For each item, the items that it is a neighbour of, in CSR, with the similarities."""
        neighbours, similarities = self.tensors.values()
        targets = torch.arange(len(neighbours), device=neighbours.device).repeat_interleave(neighbours.shape[1])
        some = similarities.flatten() > 0
        order = neighbours.flatten()[some].argsort(stable=True)
        counts = torch.bincount(neighbours.flatten()[some], minlength=self.data.n_items)
        return {
            "similar_indptr": torch.nn.functional.pad(counts.cumsum(0), (1, 0)),
            "similar_items": targets[some][order].int(),
            "similarities": similarities.flatten()[some][order],
        }


class EASE(Baseline):
    """x_u = (row u of X) B, where B minimises |X - X B|² + λ |B|² with a zero diagonal.

    B_ij = -P_ij / P_jj for i ≠ j, with P = (XᵀX + λ I)⁻¹, in float64.
    """

    def _initial(self) -> dict[str, torch.Tensor]:
        device = self.runtime.device
        if message := ease_memory_error(self.data.n_items, available_bytes(device)):
            raise ValueError(message)
        return {"weights": torch.zeros(self.data.n_items, self.data.n_items, device=device)}

    def _fit(self) -> None:
        weights = self.tensors["weights"]
        weights.zero_()
        for first, counts in _co_occurrences(self.data, self.runtime):
            weights[first : first + len(counts)] = counts
        gram = reduce_sum(weights).double()
        gram.diagonal().add_(required(self.params.ease_lambda))
        factor = _cholesky(gram, "the matrix of EASE is singular: set a larger ease_lambda", out=gram)
        inverse = torch.cholesky_inverse(factor)
        inverse.div_(-inverse.diagonal().clone())
        inverse.diagonal().zero_()
        weights.copy_(inverse)

    def scorer(self, known: History) -> FromHistory:
        return FromHistory(known, self.data.n_items, lambda histories: histories @ self.tensors["weights"])

    def served(self) -> dict[str, torch.Tensor]:
        return {"item_weights": self.tensors["weights"]}


class IALS(Baseline):
    """Matrix factorisation by alternating least squares on all pairs of a user and an item.

    Minimises Σ c_ui (p_ui - w_u · h_i)² + λ (Σ |w_u|² + Σ |h_i|²), where p = 1 and c = 1 + α, or 1 + α r of rating r,
    for training interactions, p = 0 and c = 1 for all other pairs. An epoch solves for all users, then for all items.
    """

    INITIAL: ClassVar[float] = 0.1
    """Standard deviation of an initial embedding's length (Rendle et al., RecSys 2022)."""

    def _initial(self) -> dict[str, torch.Tensor]:
        dim = self.params.dim
        table = normal(self.data.n_users + self.data.n_items, dim, self.INITIAL / math.sqrt(dim), self.runtime.seed)
        users, items = torch.split(table, [self.data.n_users, self.data.n_items])
        return {"users": users.clone(), "items": items.clone()}

    def train_epoch(self, epoch: int) -> Metrics:
        """One alternation. Returns the objective over the number of training interactions as ``loss``."""
        users, items = self.tensors["users"], self.tensors["items"]
        users.copy_(self._solved(self.data.observed, items, self._extra))
        by_item = None if self._extra is None else self._extra[self.data.train.items.argsort(stable=True)]
        items.copy_(self._solved(self.data.chosen_by, users, by_item))
        own = interaction_scores(users, items, torch.stack([self.data.train.users, self.data.train.items])).double()
        everything = ((users.T @ users) * (items.T @ items)).sum().double()
        extra = required(self.params.ials_alpha) if self._extra is None else self._extra
        of_own = ((1 + extra) * (1 - own).square() - own.square()).sum()
        length = users.double().square().sum() + items.double().square().sum()
        loss = everything + of_own + required(self.params.ials_lambda) * length
        return {"loss": loss.item() / max(1, len(own))}

    @cached_property
    def _extra(self) -> torch.Tensor | None:
        """α r of each training interaction, (n,), in the order of ``data.train``; None: α of all."""
        if self.params.ials_confidence == "equal":
            return None
        rated = rated_interactions(self.params.model_dump(), self.runtime.data)
        assert rated.train_ratings is not None
        train = self.data.train
        codes = encode(rated.train, self.data.n_items)
        order = np.argsort(codes)
        own = (train.users * self.data.n_items + train.items).cpu().numpy()
        ratings = rated.train_ratings[order[np.searchsorted(codes, own, sorter=order)]]
        return torch.from_numpy(ratings).to(train.items.device) * required(self.params.ials_alpha)

    def fold_in(self) -> dict[str, float | None]:
        """Settings to solve for an unknown user.

        ``alpha``, c - 1 of an item without a rating (the mean of training), and ``ridge``.
        """
        alpha = self.params.ials_alpha if self._extra is None else self._extra.double().mean().item()
        return {"alpha": alpha, "ridge": self.params.ials_lambda}

    def _solved(self, lists: Lists, other: torch.Tensor, extra: torch.Tensor | None) -> torch.Tensor:
        """The least-squares embedding of each list given the ``other`` side's, (n, d); zero for an empty list.

        ``extra``: c - 1 of each member of the lists, (m,); None: α.
        """
        alpha = required(self.params.ials_alpha)
        result = other.new_zeros(len(lists.counts), other.shape[1])
        gram = other.T @ other
        gram.diagonal().add_(required(self.params.ials_lambda))
        counts = lists.counts
        with_padding = torch.cat([other, other.new_zeros(1, other.shape[1])])
        for number, (rows, longest) in enumerate(_of_similar_length(counts, _GATHERED[other.device.type])):
            if number % self.runtime.world_size != self.runtime.rank:
                continue
            places = torch.arange(longest, device=other.device)
            at = (lists.indptr[rows, None] + places).clamp(max=len(lists.members) - 1)
            members = lists.members[at]
            members = torch.where(places < counts[rows, None], members, len(other))
            vectors = with_padding.index_select(0, members.flatten()).view(*members.shape, -1)
            result[rows] = solve(gram, vectors, alpha if extra is None else extra[at])
        return reduce_sum(result)

    def scorer(self, known: History) -> Factors:
        return Factors(**self.tensors).only(known.numbers)

    def served(self) -> dict[str, torch.Tensor]:
        return dict(self.tensors)


def solve(gram: torch.Tensor, vectors: torch.Tensor, extra: float | torch.Tensor) -> torch.Tensor:
    """(gram + Σ e h hᵀ)⁻¹ Σ (1 + e) h of B lists of ``vectors`` h (B, L, d), padded with zeros; (B, d).

    ``extra``: e, one number or (B, L).

    Raises:
        ValueError: a system is singular.
    """
    if isinstance(extra, torch.Tensor):
        weighted = vectors * extra.unsqueeze(2)
        systems = torch.baddbmm(gram, weighted.transpose(1, 2), vectors)
        right = (vectors + weighted).sum(1)
    else:
        systems = torch.baddbmm(gram, vectors.transpose(1, 2), vectors, alpha=extra)
        right = (1 + extra) * vectors.sum(1)
    factors = _cholesky(systems, "the systems of iALS are singular: set a larger ials_lambda or a smaller ials_alpha")
    return torch.cholesky_solve(right.unsqueeze(2), factors).squeeze(2)


def _cholesky(matrices: torch.Tensor, singular: str, out: torch.Tensor | None = None) -> torch.Tensor:
    """The Cholesky factors. Raises ValueError with the sentence ``singular`` for a matrix that has none."""
    try:
        factors: torch.Tensor = torch.linalg.cholesky(matrices, out=out)
    except RuntimeError as error:
        if "positive-definite" not in str(error):
            raise
        raise ValueError(singular) from None
    return factors


def _of_similar_length(counts: torch.Tensor, size: int) -> Iterator[tuple[torch.Tensor, int]]:
    """Numbers of the lists with items, the longest first, in blocks of at most ``size`` padded places.

    With each block comes the length of its longest list.
    """
    order = counts.argsort(descending=True, stable=True)
    lengths = counts[order].tolist()
    first = 0
    while first < len(lengths) and lengths[first]:
        last = min(first + max(1, size // lengths[first]), len(lengths))
        block = order[first:last]
        yield block[counts[block] > 0], lengths[first]
        first = last


def _co_occurrences(data: RecommenderData, runtime: Runtime) -> Iterator[tuple[int, torch.Tensor]]:
    """This rank's blocks of XᵀX: number of the first item, and the users it has in common with each item, (b, I)."""
    lists = data.chosen_by
    ones = torch.ones(len(lists.members), device=lists.members.device)
    columns = Graph(lists.indptr, lists.members, ones)
    for first in range(0, data.n_items, _BLOCK)[runtime.rank :: runtime.world_size]:
        last = min(first + _BLOCK, data.n_items)
        part = slice(int(lists.indptr[first]), int(lists.indptr[last]))
        owners = torch.arange(last - first, device=ones.device).repeat_interleave(lists.counts[first:last])
        block = ones.new_zeros(data.n_users, last - first)
        block[lists.members[part], owners] = 1
        yield first, (columns @ block).T
