"""The recommender workload: matrix factorisation or LightGCN, trained on (user, item, negative) triples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from workloads.contract import Evaluation, Metrics, Objective, Runtime, Servable, Split, State
from workloads.distributed import reduce_sum, without_sync, wrap
from workloads.losses.pairwise import PAIRWISE
from workloads.metrics.ranking import metric_names, per_user
from workloads.recommender.model import LightGCN, MatrixFactorisation
from workloads.recommender.params import Params
from workloads.recommender.prepared import prepared
from workloads.sampling.negatives import SAMPLERS
from workloads.seeding import derive, generator

CUTOFFS = (5, 10, 20)

_SAMPLED = 2**20  # triples whose negatives are drawn at once
_CELLS = {"cpu": 2**18, "cuda": 2**25}  # scores ranked at once: on a CPU what its cache holds


class Recommender:
    Params: ClassVar[type[Params]] = Params
    objective: Objective = Objective("ndcg_at_20", "max", refit=True)

    def __init__(self, params: Params, runtime: Runtime) -> None:
        self.params, self.runtime = params, runtime
        self.data = prepared(params.dataset, runtime.data, params.split_seed, runtime.holdout, runtime.device)
        initial = xavier((self.data.n_users, self.data.n_items), params.dim, runtime.seed).to(runtime.device)
        if params.backbone == "lightgcn":
            dtype = torch.bfloat16 if runtime.precision == "bf16" else torch.float32
            self.model: MatrixFactorisation = LightGCN(initial, self.data.graph, params.layers, dtype)
        else:
            self.model = MatrixFactorisation(initial)
        self.replica = wrap(self.model, runtime)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=params.lr, weight_decay=params.weight_decay, fused=True
        )

    def train_epoch(self, epoch: int) -> Metrics:
        loss_of, world = PAIRWISE[self.params.loss], self.runtime.world_size
        p = self.params
        self.optimizer.param_groups[0]["lr"] = p.lr * p.lr_decay ** ((epoch - 1) // p.lr_decay_every)
        total = torch.zeros((), dtype=torch.float64, device=self.runtime.device)
        count = 0
        for nodes, size in self._batches(epoch):
            parts = nodes.tensor_split(self.runtime.accumulate, dim=1)
            for part in parts:
                with nullcontext() if part is parts[-1] else without_sync(self.replica):
                    positive, negative = self.replica(part)
                    loss = loss_of(positive, negative).sum()
                    # DDP averages over ranks; this makes it the gradient of the mean over the global batch.
                    (loss * (world / size)).backward()
                total += loss.detach()
            self.optimizer.step()
            self.optimizer.zero_grad()
            count += size
        return {"loss": float(reduce_sum(total)) / count}

    def _batches(self, epoch: int) -> Iterator[tuple[torch.Tensor, int]]:
        size, n = self.params.batch_size, self.data.pairs.shape[1]
        per_pass = -(-n // size)
        steps = self.runtime.steps_per_epoch or per_pass
        step, end = (epoch - 1) * steps, epoch * steps
        while step < end:
            number, first = divmod(step, per_pass)
            last = min(per_pass, first + end - step, first + max(1, _SAMPLED // size))
            yield from self._block(number + 1, first, last)
            step += last - first

    def _block(self, number: int, first: int, last: int) -> Iterator[tuple[torch.Tensor, int]]:
        seed, rank, world, device = (
            self.runtime.seed,
            self.runtime.rank,
            self.runtime.world_size,
            self.runtime.device,
        )
        size, n = self.params.batch_size, self.data.pairs.shape[1]
        starts = range(first * size, last * size, size)
        sizes = [min(size, n - start) for start in starts]
        positions = [
            torch.arange(start + s * rank // world, start + s * (rank + 1) // world, device=device)
            for start, s in zip(starts, sizes)
        ]
        local = [len(p) for p in positions]
        position = torch.cat(positions)
        rows = _order(seed, number, n, device).index_select(0, position)
        pairs = torch.stack([side.index_select(0, rows) for side in self.data.pairs])
        negatives = SAMPLERS[self.params.sampler](
            self.data.unobserved, pairs[0], position, derive(seed, "negatives", number)
        )
        nodes = torch.cat([pairs, negatives[None] + self.data.n_users])
        yield from zip(nodes.split(local, dim=1), sizes)

    @torch.no_grad()
    def evaluate(self, split: Split) -> Evaluation:
        data, rank, world = self.data, self.runtime.rank, self.runtime.world_size
        if split == "validation":
            relevant, excluded = data.validation, data.train
        else:
            relevant, excluded = data.test, data.known
        users, items = self.model.embeddings().split([data.n_users, data.n_items])
        names = metric_names(CUTOFFS)
        values = torch.zeros(data.n_users, len(names), device=self.runtime.device)
        block = max(1, _CELLS[self.runtime.device.type] // data.n_items)
        for first in range(0, data.n_users, block):
            last = min(first + block, data.n_users)
            measured = per_user(
                users[first:last] @ items.T,
                relevant.mask(first, last, data.n_items),
                excluded.mask(first, last, data.n_items),
                CUTOFFS,
            )
            values[first:last] = torch.stack([measured[name] for name in names], 1)
        judged = np.flatnonzero(relevant.counts)
        table = reduce_sum(values).cpu().numpy()[judged]
        columns = dict(zip(names, table.T))
        return Evaluation(
            {k: float(np.nanmean(v, dtype=np.float64)) for k, v in columns.items()},
            {"id": judged, **columns},
        )

    def state_dict(self) -> State:
        return {"embedding": self.model.embedding.detach(), "adam": self.optimizer.state_dict()["state"]}


@lru_cache(maxsize=1)
def _order(seed: int, number: int, n: int, device: torch.device) -> torch.Tensor:
    return torch.randperm(n, generator=generator(seed, "order", number, device=device), device=device)


def xavier(sizes: tuple[int, ...], dim: int, seed: int) -> torch.Tensor:
    source = generator(seed, "init")
    return torch.cat([torch.nn.init.xavier_normal_(torch.empty(n, dim), generator=source) for n in sizes])
