"""Epochs of our sequential SGD, one process: the seconds of each, as JSON. Compilation is reported separately.

--round times rounds of BPRAC instead: the credence of all interactions, then 1000 x users triples (thesis 3.3.1).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from harness import data_root

from workloads.data import Interactions, load_interactions
from workloads.data.interactions.splits import user_csr
from workloads.recommender.credence import GaussianFactors, credence, interaction_scores, prior_log_odds
from workloads.recommender.model import normal
from workloads.recommender.sequential.mf import SequentialMF, Settings

DIM, PRIOR_VARIANCE = 32, 0.6


def gowalla_size() -> Interactions:
    """30,000 users, 41,000 items and 1,000,000 interactions; both popularities are power laws."""
    source = np.random.default_rng(0)
    n_users, n_items, n = 30_000, 41_000, 1_000_000
    activity = source.pareto(1.5, n_users).clip(0.1, 50)
    popularity = source.permutation(1 / (np.arange(n_items) + 20) ** 0.8)
    drawn = 2 * n
    users = source.choice(n_users, drawn, p=activity / activity.sum())
    items = source.choice(n_items, drawn, p=popularity / popularity.sum())
    codes = source.choice(np.unique(users.astype(np.int64) * n_items + items), n, replace=False)
    train = np.stack([codes // n_items, codes % n_items], axis=1).astype(np.int32)
    return Interactions(n_users, n_items, train, np.zeros((0, 2), np.int32))


def rounds(data: Interactions, model: SequentialMF, table: torch.Tensor) -> Callable[[int], Any]:
    """BPRAC's E-step and M-step with the model."""
    indptr, items = user_csr(data.train, data.n_users)
    users = np.repeat(np.arange(data.n_users), np.diff(indptr))
    pairs = torch.from_numpy(np.stack([users, items]).astype(np.int64))
    counts = torch.bincount(pairs[1], minlength=data.n_items)
    prior = prior_log_odds(counts).index_select(0, pairs[1])
    distribution = GaussianFactors(DIM, PRIOR_VARIANCE)

    def one(epoch: int) -> None:
        scores = interaction_scores(table[: data.n_users], table[data.n_users :], pairs)
        model.train_epoch(epoch, credence=credence(scores, prior, distribution, "mean1").float())

    return one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=("ml-100k", "ml-1m", "gowalla-size"), default="ml-100k")
    parser.add_argument("--sampler", default="uniform")
    parser.add_argument("--round", action="store_true")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    data = gowalla_size() if args.data == "gowalla-size" else load_interactions(args.data, data_root())
    table = normal(data.n_users + data.n_items, DIM, 0.1, seed=0)
    settings = Settings(sampler=args.sampler, threads=args.threads, triples=1000 * data.n_users if args.round else None)
    model = SequentialMF(
        table[: data.n_users], table[data.n_users :], *user_csr(data.train, data.n_users), settings, seed=0
    )
    epoch_of = rounds(data, model, table) if args.round else model.train_epoch
    seconds = []
    for epoch in range(1, args.epochs + 1):
        started = time.perf_counter()
        epoch_of(epoch)
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"seconds": seconds, "examples": settings.triples or len(data.train)}))


if __name__ == "__main__":
    main()
