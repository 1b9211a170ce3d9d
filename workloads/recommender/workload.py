"""The recommender workload: matrix factorisation or LightGCN, trained on (user, item, negative) triples."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from workloads.contract import Evaluation, Metrics, Objective, Runtime, Servable, Split, State
from workloads.distributed import reduce_sum, without_sync, wrap
from workloads.losses.pairwise import PAIRWISE
from workloads.metrics.ranking import metric_names, per_user
from workloads.recommender.adam import Adam
from workloads.recommender.model import LightGCN, MatrixFactorisation, xavier
from workloads.recommender.params import Params as RecommenderParams
from workloads.recommender.prepared import History, prepared
from workloads.recommender.triples import triples
from workloads.sampling.negatives import SAMPLERS

CUTOFFS = (5, 10, 20)
"""The k of every metric at k."""

_SCORES = {"cpu": 2**18, "cuda": 2**25}  # ranked at once: on a CPU what its cache holds


class Recommender:
    """Learn to rank a user's unseen items from which items it has interacted with.

    bf16 applies to LightGCN's propagation, which it saves half the bytes; tables, optimiser, scores and
    evaluation are float32, and matrix factorisation, which multiplies no matrices in training, has no use for it.
    """

    Params: ClassVar[type[RecommenderParams]] = RecommenderParams
    objective: Objective = Objective("ndcg_at_20", "max", refit=True)

    def __init__(self, params: RecommenderParams, runtime: Runtime) -> None:
        """Build on ``runtime.device``; from the second time in a process on the data is there already.

        Raises:
            ValueError: the batch does not divide over the workers, or there is nothing to train on.
            workloads.data.DataError: the dataset is unknown, missing or damaged.
        """
        _check_batch(params.batch_size, runtime.world_size)
        self.params, self.runtime = params, runtime
        self.data = prepared(params.dataset, runtime.data, params.split_seed, runtime.holdout, runtime.device)
        if self.data.pairs.shape[1] == 0:
            raise ValueError(f"dataset {params.dataset!r} has no interaction that a negative item exists for")
        initial = xavier(self.data.n_users, self.data.n_items, params.dim, runtime.seed).to(runtime.device)
        if params.backbone == "lightgcn":
            dtype = torch.bfloat16 if runtime.precision == "bf16" else torch.float32
            self.model: MatrixFactorisation = LightGCN(initial, self.data.graph, params.layers, dtype)
        else:
            self.model = MatrixFactorisation(initial)
        self.replica = wrap(self.model, runtime)
        self.optimizer = Adam(self.model.embedding, params.weight_decay)

    def train_epoch(self, epoch: int) -> Metrics:
        """One pass, or ``runtime.steps_per_epoch`` steps of one; gives the mean ``loss`` of its triples."""
        params, runtime = self.params, self.runtime
        loss_of, sampler = PAIRWISE[params.loss], SAMPLERS[params.sampler]
        lr = params.lr * params.lr_decay ** ((epoch - 1) // params.lr_decay_every)
        total, count = torch.zeros((), dtype=torch.float64, device=runtime.device), 0
        for nodes, size in triples(self.data, sampler, params.batch_size, runtime, epoch):
            parts = nodes.tensor_split(runtime.accumulate, dim=1)
            for part in parts:
                with nullcontext() if part is parts[-1] else without_sync(self.replica):
                    positive, negative = self.replica(part)
                    loss = loss_of(positive, negative).sum()
                    # DDP averages over ranks: with this factor, to the mean over the global batch.
                    torch.autograd.backward(loss * (runtime.world_size / size))
                total += loss.detach()  # stays on the device: reading it here would wait for every step
            self.optimizer.update(lr)
            count += size
        return {"loss": reduce_sum(total).item() / count}

    @torch.no_grad()
    def evaluate(self, split: Split) -> Evaluation:
        """Rank every candidate of every user that has items in the split; users are shared out over the ranks.

        Candidates exclude the user's train items and, for the test, its validation items as well.

        Raises:
            ValueError: the validation split of a refit, which has been trained on.
        """
        data, device = self.data, self.runtime.device
        relevant, known = self._judged(split)
        users, items = torch.split(self.model.embeddings(), [data.n_users, data.n_items])
        names = metric_names(CUTOFFS)
        values = torch.zeros(data.n_users, len(names), device=device)
        rows = max(1, _SCORES.get(device.type, 2**18) // data.n_items)
        blocks = range(0, data.n_users, rows)[self.runtime.rank :: self.runtime.world_size]
        for first in blocks:
            last = min(first + rows, data.n_users)
            measured = per_user(
                users[first:last] @ items.T,
                relevant.mask(first, last, data.n_items),
                known.mask(first, last, data.n_items),
                CUTOFFS,
            )
            values[first:last] = torch.stack([measured[name] for name in names], dim=1)
        ids = np.flatnonzero(relevant.counts)
        units = dict(zip(names, reduce_sum(values).cpu().numpy()[ids].T))
        metrics = {name: _mean(column) for name, column in units.items()}
        return Evaluation(metrics, {"id": ids, **units} if self.runtime.rank == 0 else {})

    def _judged(self, split: Split) -> tuple[History, History]:
        """The items to find and the items that are no candidates."""
        if split == "test":
            return self.data.test, self.data.known
        if not self.runtime.holdout:
            raise ValueError(
                "a refit has no validation split: it was trained on. Evaluate on test, or build with holdout"
            )
        return self.data.validation, self.data.train

    def state_dict(self) -> State:
        """The table and the optimiser, on the device and not copied. No stream position: it follows from the epoch."""
        return {"embedding": self.model.embedding.detach(), "adam": self.optimizer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Copy a state. Learning rate and weight decay stay those of the parameters.

        Raises:
            ValueError: the state belongs to another dataset, dim or workload.
        """
        found = getattr(state.get("embedding"), "shape", None)
        if found != self.model.embedding.shape:
            raise ValueError(
                f"the checkpoint does not fit: its embedding has shape {found and tuple(found)}, dataset "
                f"{self.params.dataset!r} with dim={self.params.dim} has {tuple(self.model.embedding.shape)}"
            )
        self.model.embedding.copy_(state["embedding"])
        self.optimizer.load_state_dict(state["adam"])

    @torch.no_grad()
    def servable(self) -> Servable:
        """Final embeddings, what each user has seen (train and validation) and the items' popularity."""
        data = self.data
        users, items = torch.split(self.model.embeddings(), [data.n_users, data.n_items])
        weights = {
            "users": users,
            "items": items,
            "seen_indptr": torch.from_numpy(data.known.indptr),
            "seen_items": data.known.items.int(),
            "popularity": torch.bincount(data.known.items, minlength=data.n_items),
        }
        return Servable(
            predictor=Path(__file__).with_name("predictor.py"),
            weights={name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()},
            config={"dataset": self.params.dataset, "backbone": self.params.backbone},
            example={"user": np.flatnonzero(data.known.counts)[:3]},
            params={"k": 20, "exclude_seen": True, "unknown": "popular"},
            requirements=("numpy", "pandas"),
        )


def _mean(column: np.ndarray[Any, Any]) -> float:
    """Over the users it is defined for: an AUC needs a pair to compare. One half, which knows nothing, for none."""
    defined = column[~np.isnan(column)]
    return float(defined.mean(dtype=np.float64)) if len(defined) else 0.5


def _check_batch(batch_size: int, world_size: int) -> None:
    if batch_size % world_size:
        nearest = max(1, round(batch_size / world_size)) * world_size
        raise ValueError(
            f"batch_size={batch_size} is the global batch and does not divide over {world_size} workers; "
            f"the nearest that does is {nearest}"
        )
