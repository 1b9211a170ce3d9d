"""Builders of the samplers, which the rows of ``SAMPLERS`` name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from workloads.conditional_params import required
from workloads.data import load_interactions
from workloads.data.datasets import friends, occupations
from workloads.data.interactions.priors import read_prior
from workloads.recommender.dataset import RecommenderData
from workloads.recommender.losses import SAMPLERS
from workloads.recommender.params import Params
from workloads.sampling.bayesian import (
    BNS,
    Prior,
    ScoreECDF,
    group_prior,
    item_prior,
    occupation_prior,
    oracle_prior,
    social_prior,
    warm_lambda,
)
from workloads.sampling.dynamic import AOBPR, DNS
from workloads.sampling.in_batch import InBatch
from workloads.sampling.popularity import Popularity
from workloads.sampling.sampler import Sampler, Uniform
from workloads.sampling.srns import SRNS

_AT_ONCE = 2**24
"""Values in memory at once while the friends' interactions are counted."""


def sampler(params: Params, data: RecommenderData, root: Path) -> Sampler:
    """Build the sampler of the parameters for their dataset, whose files are under ``root``.

    Raises:
        workloads.data.DataError: the prior needs the users' occupations, and the dataset has none.
        ValueError: the truth is needed, and this dataset has none.
    """
    built: Sampler = SAMPLERS[params.sampler].load()(params, data, root)
    return built


def uniform(params: Params, data: RecommenderData, root: Path) -> Sampler:
    return Uniform(data.unobserved)


def in_batch(params: Params, data: RecommenderData, root: Path) -> Sampler:
    shares = data.popularity / data.popularity.sum()
    return InBatch(data.observed, shares.log() if params.logq else None)


def popularity(params: Params, data: RecommenderData, root: Path) -> Sampler:
    return Popularity(data.unobserved, data.observed, data.popularity)


def aobpr(params: Params, data: RecommenderData, root: Path) -> Sampler:
    return AOBPR(data.unobserved, data.observed, required(params.aobpr_lambda))


def dns(params: Params, data: RecommenderData, root: Path) -> Sampler:
    return DNS(data.unobserved, required(params.candidates))


def srns(params: Params, data: RecommenderData, root: Path) -> Sampler:
    own = {name: getattr(params, name) for name in SAMPLERS["srns"].params}
    return SRNS(
        data.unobserved,
        memory=own["srns_memory"],
        pool=own["candidates"],
        alpha=own["srns_alpha"],
        warmup=own["srns_warmup"],
        temperature=own["srns_temperature"],
    )


def bns(params: Params, data: RecommenderData, root: Path) -> Sampler:
    lam = params.bns_lambda
    ecdf = ScoreECDF(data.observed, data.n_items, required(params.ecdf), params.ecdf_items or 1)
    return BNS(
        data.unobserved,
        required(params.candidates),
        ecdf,
        _prior(params, data, root),
        warm_lambda if lam == "warm" else lambda _epoch: float(lam or 0),
        posterior_only=params.sampler == "bns_posterior",
        uniform_epochs=params.bns_uniform_epochs or 0,
    )


def _prior(params: Params, data: RecommenderData, root: Path) -> Prior:
    if params.sampler == "bns_oracle":
        otherwise = None if params.bns_prior == "label" else _table_prior(params, data, root)
        return oracle_prior(data.liked(required(params.truth)).contains, otherwise)
    return _table_prior(params, data, root)


def _table_prior(params: Params, data: RecommenderData, root: Path) -> Prior:
    probabilities, groups = prior_table(params, data, root)
    return item_prior(probabilities[0]) if groups is None else group_prior(probabilities, groups)


def prior_table(params: Params, data: RecommenderData, root: Path) -> tuple[torch.Tensor, torch.Tensor | None]:
    """P_fn of ``bns_prior`` for each group of users, (G, I), and each user's group, (U,), or None for one group.

    Raises:
        workloads.data.DataError: the prior needs the users' occupations or friends, and the dataset has none; or the
            file of an own prior is damaged.
    """
    popularity = data.popularity.float().unsqueeze(0)
    if params.bns_prior == "users":
        return popularity / data.n_users, None
    if params.bns_prior == "uninformative":
        return torch.full_like(popularity, 1 / data.n_items), None
    if params.bns_prior == "occupation":
        groups = torch.from_numpy(occupations(params.dataset, root)).to(popularity.device, torch.int64)
        cells = groups[data.train.users] * data.n_items + data.train.items
        size = (int(groups.max()) + 1) * data.n_items
        by_group = torch.bincount(cells, minlength=size).view(-1, data.n_items)
        return occupation_prior(data.popularity, by_group), groups
    if params.bns_prior == "social":
        pairs = torch.from_numpy(friends(params.dataset, root)).to(popularity.device, torch.int64)
        by_friends = popularity.new_zeros(data.n_users, data.n_items)
        items = data.train.mask(0, data.n_users, data.n_items).float()
        for part in torch.split(pairs, max(1, _AT_ONCE // data.n_items)):
            by_friends.index_add_(0, part[:, 0], items[part[:, 1]])
        linked = torch.bincount(pairs[:, 0], minlength=data.n_users) > 0
        return social_prior(data.popularity, by_friends, linked), torch.arange(data.n_users, device=pairs.device)
    if params.bns_prior == "file":
        return _own_prior(params, data, root, popularity / popularity.sum())
    return popularity / popularity.sum(), None


def _own_prior(
    params: Params, data: RecommenderData, root: Path, otherwise: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As :func:`prior_table`, of ``prior_file``; pairs that it does not have keep ``otherwise`` (1, I)."""
    interactions = load_interactions(params.dataset, root, params.split, min_rating=params.dataset_min_rating)
    own = read_prior(Path(required(params.prior_file)), interactions)
    device = otherwise.device
    items, p = (torch.from_numpy(column).to(device) for column in (own.items, own.p))
    if own.users is None:
        table = otherwise.clone()
        table[0, items] = p
        return table, None
    # A row for each user that the file names, and row 0 for the others: a table of all users may not fit into memory.
    named, rows = np.unique(own.users, return_inverse=True)
    table = otherwise.repeat(1 + len(named), 1)
    table[1 + torch.from_numpy(rows).to(device), items] = p
    groups = torch.zeros(data.n_users, dtype=torch.int64, device=device)
    groups[torch.from_numpy(named).to(device)] = torch.arange(1, 1 + len(named), device=device)
    return table, groups
